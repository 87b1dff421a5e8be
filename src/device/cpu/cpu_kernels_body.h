/* cpu_kernels_body.h - included by cpu_kernels.c once for each instruction set, with ISA(name) set. No guard: that is its
 * purpose. Contract in cpu_kernels.h. */

INLINE lanes ISA(splat)(float x)
{
    return (lanes){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE lanes ISA(load)(const float *x)
{
    return *(const lanes_at *)x;
}

INLINE lanes ISA(load_part)(const float *x, uint32_t n, float rest)
{
    float part[LANES];

    for (uint32_t i = 0; i < LANES; i++)
        part[i] = i < n ? x[i] : rest;
    return ISA(load)(part);
}

INLINE void ISA(store)(float *x, lanes v)
{
    *(lanes_at *)x = v;
}

INLINE void ISA(store_part)(float *x, lanes v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = v[i];
}

INLINE lanes ISA(select)(lanes_i mask, lanes a, lanes b) /* mask: all ones or zero */
{
    return (lanes)(((lanes_i)a & mask) | ((lanes_i)b & ~mask));
}

INLINE lanes ISA(max)(lanes a, lanes b)
{
    return ISA(select)(a > b, a, b);
}

INLINE float ISA(sum_of)(lanes v) /* a tree: i + (i + 8), then + 4, 2, 1 */
{
    float s[LANES];

    ISA(store)(s, v);
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

INLINE float ISA(max_of)(lanes v)
{
    v = ISA(max)(
        v, __builtin_shuffle(v, (lanes_i){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
    v = ISA(max)(
        v, __builtin_shuffle(v, (lanes_i){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
    v = ISA(max)(
        v, __builtin_shuffle(v, (lanes_i){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
    v = ISA(max)(
        v, __builtin_shuffle(v, (lanes_i){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
    return v[0];
}

/* e^x within 2 units in the last place for x <= 88; 0 below -87; NaN stays. Source: Cephes expf (Moshier). */
INLINE lanes ISA(exp)(lanes x)
{
    const lanes magic = ISA(splat)(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    lanes clamped =
        ISA(max)(ISA(select)(x < ISA(splat)(88.0f), x, ISA(splat)(88.0f)), ISA(splat)(-87.0f));
    lanes n = ISA(fma)(clamped, ISA(splat)(1.44269504088896341f), magic) - magic;
    lanes r = ISA(fma)(n, ISA(splat)(-0.693359375f), clamped);
    lanes p = ISA(splat)(1.9875691500e-4f);

    r = ISA(fma)(n, ISA(splat)(2.12194440e-4f), r);
    p = ISA(fma)(p, r, ISA(splat)(1.3981999507e-3f));
    p = ISA(fma)(p, r, ISA(splat)(8.3334519073e-3f));
    p = ISA(fma)(p, r, ISA(splat)(4.1665795894e-2f));
    p = ISA(fma)(p, r, ISA(splat)(1.6666665459e-1f));
    p = ISA(fma)(p, r, ISA(splat)(5.0000001201e-1f));
    p = ISA(fma)(p, r * r, r) + ISA(splat)(1.0f);
    lanes_i power = (__builtin_convertvector(n, lanes_i) + 127) << 23;
    p = ISA(select)(x >= ISA(splat)(-87.0f), p * (lanes)power, ISA(splat)(0.0f));
    return ISA(select)(x == x, p, x);
}

static float ISA(max_finite)(const float *x, uint32_t n, bool *finite)
{
    lanes top = ISA(splat)(-INFINITY), zero = ISA(splat)(0.0f);
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        lanes v = ISA(load)(x + i);
        zero += v * ISA(splat)(0.0f); /* NaN or infinity makes NaN */
        top = ISA(max)(v, top);
    }
    if (i < n) {
        zero += ISA(load_part)(x + i, n - i, 0.0f) * ISA(splat)(0.0f);
        top = ISA(max)(ISA(load_part)(x + i, n - i, -INFINITY), top);
    }
    *finite = ISA(sum_of)(zero) == 0.0f;
    return ISA(max_of)(top);
}

static double ISA(exp_store)(const float *x, uint32_t n, float max, float scale, float *p)
{
    double total = 0;

    for (uint32_t run = 0; run < n; run += SUM_RUN) {
        uint32_t end = n - run < SUM_RUN ? n : run + SUM_RUN, i = run;
        lanes sum = ISA(splat)(0.0f);
        for (; i + LANES <= end; i += LANES) {
            lanes e = ISA(exp)((ISA(load)(x + i) - max) * scale);
            if (p) ISA(store)(p + i, e);
            sum += e;
        }
        if (i < end) {
            lanes e = ISA(exp)((ISA(load_part)(x + i, end - i, -INFINITY) - max) * scale);
            if (p) ISA(store_part)(p + i, e, end - i);
            sum += e;
        }
        total += (double)ISA(sum_of)(sum);
    }
    return total;
}

static uint32_t ISA(find)(const float *x, uint32_t from, uint32_t n, float least)
{
    uint32_t i = from;

    while (i + LANES <= n && !ISA(any)(ISA(load)(x + i) >= least))
        i += LANES;
    while (i < n && !(x[i] >= least))
        i++;
    return i;
}

static uint32_t ISA(gather)(const float *x, uint32_t n, float least, uint32_t *out)
{
    uint32_t count = 0, i = 0;

    for (; i + LANES <= n; i += LANES) {
        if (!ISA(any)(ISA(load)(x + i) >= least)) continue;
        for (uint32_t k = i; k < i + LANES; k++) {
            out[count] = k; /* overwritten unless it counts: no branch to mispredict */
            count += x[k] >= least;
        }
    }
    for (; i < n; i++) {
        if (x[i] >= least) out[count++] = i;
    }
    return count;
}

static double ISA(sum)(const float *x, uint32_t n)
{
    double total = 0;

    for (uint32_t run = 0; run < n; run += SUM_RUN) {
        uint32_t end = n - run < SUM_RUN ? n : run + SUM_RUN, i = run;
        lanes sum = ISA(splat)(0.0f);
        for (; i + LANES <= end; i += LANES)
            sum += ISA(load)(x + i);
        if (i < end) sum += ISA(load_part)(x + i, end - i, 0.0f);
        total += (double)ISA(sum_of)(sum);
    }
    return total;
}

static void ISA(norm)(const float *x, uint32_t n, float eps, const float *gain, float offset,
                      float *out)
{
    double squares = 0;
    uint32_t i;

    for (uint32_t run = 0; run < n; run += SUM_RUN) {
        uint32_t end = n - run < SUM_RUN ? n : run + SUM_RUN;
        lanes sum = ISA(splat)(0.0f);
        for (i = run; i + LANES <= end; i += LANES) {
            lanes v = ISA(load)(x + i);
            sum = ISA(fma)(v, v, sum);
        }
        if (i < end) {
            lanes v = ISA(load_part)(x + i, end - i, 0.0f);
            sum = ISA(fma)(v, v, sum);
        }
        squares += (double)ISA(sum_of)(sum);
    }
    float factor = (float)(1.0 / sqrt(squares / n + (double)eps));
    for (i = 0; i + LANES <= n; i += LANES)
        ISA(store)(out + i, ISA(load)(x + i) * factor * (ISA(load)(gain + i) + offset));
    for (; i < n; i++)
        out[i] = x[i] * factor * (gain[i] + offset);
}

INLINE lanes ISA(activate)(enum activation act, lanes x)
{
    lanes y =
        x; /* act(x) = x * sigmoid(y): tanh(z) = 2 sigmoid(2z) - 1 makes GELU the same shape */

    if (act == ACT_GELU_TANH) y = x * 1.5957691216057308f * (x * x * 0.044715f + 1.0f);
    return x / (ISA(exp)(-y) + 1.0f);
}

static void ISA(act_mul)(enum activation act, float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        ISA(store)(gate + i, ISA(activate)(act, ISA(load)(gate + i)) * ISA(load)(up + i));
    if (i < n) {
        lanes g = ISA(activate)(act, ISA(load_part)(gate + i, n - i, 0.0f));
        ISA(store_part)(gate + i, g * ISA(load_part)(up + i, n - i, 0.0f), n - i);
    }
}

static void ISA(kv_store)(const float *k, const float *v, uint32_t head_dim, uint32_t dim_padded,
                          bool half, uint32_t column, void *keys, void *values)
{
    uint16_t bits[LANES];

    for (uint32_t d = 0; d < head_dim; d += LANES) {
        uint32_t count = head_dim - d < LANES ? head_dim - d : LANES;
        lanes kv = count == LANES ? ISA(load)(k + d) : ISA(load_part)(k + d, count, 0.0f);
        lanes vv = count == LANES ? ISA(load)(v + d) : ISA(load_part)(v + d, count, 0.0f);
        if (half) {
            ISA(half_store)(kv, bits);
            for (uint32_t i = 0; i < count; i++)
                ((uint16_t *)keys)[(d + i) * KV_TILE + column] = bits[i];
            ISA(half_store)(vv, (uint16_t *)values + column * dim_padded + d);
        } else {
            for (uint32_t i = 0; i < count; i++)
                ((float *)keys)[(d + i) * KV_TILE + column] = kv[i];
            ISA(store)((float *)values + column * dim_padded + d, vv);
        }
    }
}

/* 16 floats of the pool; `half` is a constant wherever this is inlined. */
INLINE lanes ISA(kv_load)(const void *base, uint32_t index, bool half)
{
    return half ? ISA(half_load)((const uint16_t *)base + index)
                : ISA(load)((const float *)base + index);
}

/* The tiles of a span; those behind its end repeat the first and are masked. */
struct ISA(span) {
    const void *keys[KV_SPAN / KV_TILE], *values[KV_SPAN / KV_TILE];
};

/* s[j][i]: scores of query i with the 16 tokens of tile j; a score adds in order of the dimension. */
INLINE void ISA(scores)(const float *const q[4], uint32_t count, const struct ISA(span) * span,
                        bool half, uint32_t head_dim, lanes s[4][4])
{
    lanes a[4][4];

    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t i = 0; i < count; i++)
            a[j][i] = ISA(splat)(0.0f);
    for (uint32_t d = 0; d < head_dim; d++) {
        lanes k0 = ISA(kv_load)(span->keys[0], d * KV_TILE, half);
        lanes k1 = ISA(kv_load)(span->keys[1], d * KV_TILE, half);
        lanes k2 = ISA(kv_load)(span->keys[2], d * KV_TILE, half);
        lanes k3 = ISA(kv_load)(span->keys[3], d * KV_TILE, half);
        for (uint32_t i = 0; i < count; i++) {
            lanes qd = ISA(splat)(q[i][d]);
            a[0][i] = ISA(fma)(qd, k0, a[0][i]);
            a[1][i] = ISA(fma)(qd, k1, a[1][i]);
            a[2][i] = ISA(fma)(qd, k2, a[2][i]);
            a[3][i] = ISA(fma)(qd, k3, a[3][i]);
        }
    }
    for (uint32_t j = 0; j < 4; j++)
        for (uint32_t i = 0; i < count; i++)
            s[j][i] = a[j][i];
}

/* acc[i] += sum over tokens lo..hi-1 of p[i][token] * value, for `count` queries that see the same tokens. */
INLINE void ISA(add_values)(const float *p, uint32_t count, uint32_t lo, uint32_t hi,
                            const struct ISA(span) * span, bool half, uint32_t dim_padded,
                            float *acc)
{
    uint32_t d = 0;

    for (; d + 4 * LANES <= dim_padded; d += 4 * LANES) {
        lanes a[4][4];
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < 4; j++)
                a[i][j] = ISA(load)(acc + i * dim_padded + d + j * LANES);
        for (uint32_t t = lo; t < hi; t++) {
            const void *values = span->values[t / KV_TILE];
            uint32_t at = t % KV_TILE * dim_padded + d;
            lanes v0 = ISA(kv_load)(values, at, half);
            lanes v1 = ISA(kv_load)(values, at + LANES, half);
            lanes v2 = ISA(kv_load)(values, at + 2 * LANES, half);
            lanes v3 = ISA(kv_load)(values, at + 3 * LANES, half);
            for (uint32_t i = 0; i < count; i++) {
                lanes w = ISA(splat)(p[i * KV_SPAN + t]);
                a[i][0] = ISA(fma)(w, v0, a[i][0]);
                a[i][1] = ISA(fma)(w, v1, a[i][1]);
                a[i][2] = ISA(fma)(w, v2, a[i][2]);
                a[i][3] = ISA(fma)(w, v3, a[i][3]);
            }
        }
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < 4; j++)
                ISA(store)(acc + i * dim_padded + d + j * LANES, a[i][j]);
    }
    for (; d < dim_padded; d += LANES)
        for (uint32_t i = 0; i < count; i++) {
            lanes a = ISA(load)(acc + i * dim_padded + d);
            for (uint32_t t = lo; t < hi; t++)
                a = ISA(fma)(
                    ISA(splat)(p[i * KV_SPAN + t]),
                    ISA(kv_load)(span->values[t / KV_TILE], t % KV_TILE * dim_padded + d, half), a);
            ISA(store)(acc + i * dim_padded + d, a);
        }
}

INLINE lanes ISA(cap)(lanes s, float cap) /* cap * tanh(s / cap) */
{
    return (ISA(splat)(1.0f) - 2.0f / (ISA(exp)(s * (2 / cap)) + 1.0f)) * cap;
}

/* Folds a span's scores of query `at` into its state; p: the span's weights [64]. */
INLINE void ISA(fold)(const struct attend_tile *tile, lanes s0, lanes s1, lanes s2, lanes s3,
                      uint32_t lo, uint32_t hi, float *p, struct attend_state *state, uint32_t at)
{
    const lanes_i index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    lanes s[4] = {s0, s1, s2, s3}, sum = ISA(load)(state->sum + (uint64_t)at * LANES);
    float old = state->max[at], top;

    for (uint32_t j = 0; j < 4; j++) {
        s[j] *= tile->scale;
        if (tile->softcap > 0) s[j] = ISA(cap)(s[j], tile->softcap);
    }
    if (lo > 0 || hi < KV_SPAN)
        for (uint32_t j = 0; j < 4; j++) {
            lanes_i token = index + (int32_t)(j * KV_TILE);
            s[j] = ISA(select)((token >= (int32_t)lo) & (token < (int32_t)hi), s[j],
                               ISA(splat)(-INFINITY));
        }
    top = ISA(max_of)(ISA(max)(ISA(max)(s[0], s[1]), ISA(max)(s[2], s[3])));
    if (top > old) {
        float *acc = state->acc + (uint64_t)at * tile->dim_padded;
        float shrink = ISA(exp)(ISA(splat)(old - top))[0];
        state->max[at] = old = top;
        sum *= shrink;
        for (uint32_t d = 0; d < tile->dim_padded; d += LANES)
            ISA(store)(acc + d, ISA(load)(acc + d) * shrink);
    }
    for (uint32_t j = 0; j < 4; j++) {
        s[j] = ISA(exp)(s[j] - old);
        sum += s[j];
        ISA(store)(p + j * KV_TILE, s[j]);
    }
    ISA(store)(state->sum + (uint64_t)at * LANES, sum);
}

/* Where the tiles of the tokens t .. end - 1 (at most 64) are. Of a tile in front of `first`, the first token that some row sees, the table's entry
 * is not read: its block may be another's by now. Tiles that nobody sees are those of tokens that somebody does. */
INLINE void ISA(find_span)(const struct attend_tile *tile, uint32_t t, uint32_t first, uint32_t end,
                           struct ISA(span) * out)
{
    uint32_t element = tile->half ? 2 : 4;
    uint64_t tile_bytes = (uint64_t)KV_TILE * (tile->head_dim + tile->dim_padded) * element;

    for (uint32_t j = 0; j < KV_SPAN / KV_TILE; j++) {
        uint32_t at = t + j * KV_TILE < end ? t + j * KV_TILE : t;
        if (at + KV_TILE <= first) at = first / KV_TILE * KV_TILE;
        const char *base = tile->pool + tile->table[at / tile->block_tokens] * tile->block_bytes +
                           tile->kv_at + at % tile->block_tokens / KV_TILE * tile_bytes;
        out->keys[j] = base;
        out->values[j] = base + (uint64_t)KV_TILE * tile->head_dim * element;
    }
}

/* Converts a span to float32 once, for many queries. */
INLINE void ISA(widen_span)(const struct attend_tile *tile, uint32_t tokens,
                            struct ISA(span) * span)
{
    uint32_t keys = KV_TILE * tile->head_dim, values = KV_TILE * tile->dim_padded;

    for (uint32_t j = 0; j * KV_TILE < tokens; j++) {
        float *to = tile->scratch + j * (keys + values);
        for (uint32_t i = 0; i < keys; i += LANES)
            ISA(store)(to + i, ISA(kv_load)(span->keys[j], i, true));
        for (uint32_t i = 0; i < values; i += LANES)
            ISA(store)(to + keys + i, ISA(kv_load)(span->values[j], i, true));
        span->keys[j] = to;
        span->values[j] = to + keys;
    }
    for (uint32_t j = (tokens + KV_TILE - 1) / KV_TILE; j < KV_SPAN / KV_TILE; j++)
        span->keys[j] = span->keys[0], span->values[j] = span->values[0];
}

/* Which of the tokens t .. t + 63, below `end`, row r sees: [*lo, *hi). */
INLINE void ISA(seen)(const struct attend_tile *tile, uint32_t r, uint32_t t, uint32_t end,
                      uint32_t *lo, uint32_t *hi)
{
    uint32_t pos = tile->first_pos + r, last = pos + 1 < end ? pos + 1 : end;
    uint32_t first = tile->window && pos + 1 > tile->window ? pos + 1 - tile->window : 0;

    *lo = first > t ? (first - t < KV_SPAN ? first - t : KV_SPAN) : 0;
    *hi = last > t ? (last - t < KV_SPAN ? last - t : KV_SPAN) : 0;
}

INLINE void ISA(some_scores)(const float *const q[4], uint32_t count, const struct ISA(span) * span,
                             bool half, uint32_t head_dim, lanes s[4][4])
{
    switch (count) { /* constants, so that the sums stay in registers */
    case 4: ISA(scores)(q, 4, span, half, head_dim, s); break;
    case 3: ISA(scores)(q, 3, span, half, head_dim, s); break;
    case 2: ISA(scores)(q, 2, span, half, head_dim, s); break;
    default: ISA(scores)(q, 1, span, half, head_dim, s); break;
    }
}

INLINE void ISA(some_values)(const float *p, uint32_t count, uint32_t lo, uint32_t hi,
                             const struct ISA(span) * span, bool half, uint32_t dim_padded,
                             float *acc)
{
    switch (count) {
    case 4: ISA(add_values)(p, 4, lo, hi, span, half, dim_padded, acc); break;
    case 3: ISA(add_values)(p, 3, lo, hi, span, half, dim_padded, acc); break;
    case 2: ISA(add_values)(p, 2, lo, hi, span, half, dim_padded, acc); break;
    default: ISA(add_values)(p, 1, lo, hi, span, half, dim_padded, acc); break;
    }
}

INLINE void ISA(attend_span)(const struct attend_tile *tile, uint32_t t, uint32_t end,
                             const struct ISA(span) * span, bool half, struct attend_state *state)
{
    uint32_t queries = tile->rows * tile->heads, count, same;

    for (uint32_t first = 0; first < queries; first += count) {
        const float *q[4];
        uint32_t lo[4], hi[4], any = 0;
        float p[4 * KV_SPAN] __attribute__((aligned(64)));
        lanes s[4][4];
        count = queries - first < 4 ? queries - first : 4;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t r = (first + i) / tile->heads, g = (first + i) % tile->heads;
            q[i] = tile->q + r * tile->q_stride + (uint64_t)g * tile->head_dim;
            ISA(seen)(tile, r, t, end, &lo[i], &hi[i]);
            any |= lo[i] < hi[i];
        }
        if (!any) continue;
        ISA(some_scores)(q, count, span, half, tile->head_dim, s);
        for (uint32_t i = 0; i < count; i++)
            if (lo[i] < hi[i]) ISA(fold)
        (tile, s[0][i], s[1][i], s[2][i], s[3][i], lo[i], hi[i], p + i * KV_SPAN, state, first + i);
        for (uint32_t i = 0; i < count; i += same) {
            for (same = 1; i + same < count && lo[i + same] == lo[i] && hi[i + same] == hi[i];)
                same++;
            if (lo[i] < hi[i]) ISA(some_values)
            (p + i * KV_SPAN, same, lo[i], hi[i], span, half, tile->dim_padded,
             state->acc + (uint64_t)(first + i) * tile->dim_padded);
        }
    }
}

static void ISA(attend)(const struct attend_tile *tile, uint32_t begin, uint32_t end,
                        struct attend_state *state)
{
    uint32_t queries = tile->rows * tile->heads;
    uint32_t first =
        tile->window && tile->first_pos + 1 > tile->window ? tile->first_pos + 1 - tile->window : 0;

    for (uint32_t i = 0; i < queries; i++)
        state->max[i] = -INFINITY;
    memset(state->sum, 0, (uint64_t)queries * LANES * sizeof(float));
    memset(state->acc, 0, (uint64_t)queries * tile->dim_padded * sizeof(float));
    if (first > begin) begin = first / KV_SPAN * KV_SPAN;
    for (uint32_t t = begin; t < end; t += KV_SPAN) {
        struct ISA(span) span;
        ISA(find_span)(tile, t, first, end, &span);
        if (tile->half && queries > 4) {
            ISA(widen_span)(tile, end - t < KV_SPAN ? end - t : KV_SPAN, &span);
            ISA(attend_span)(tile, t, end, &span, false, state);
        } else if (tile->half) {
            ISA(attend_span)(tile, t, end, &span, true, state);
        } else {
            ISA(attend_span)(tile, t, end, &span, false, state);
        }
    }
}

static void ISA(attend_join)(struct attend_state *total, const struct attend_state *part,
                             uint32_t queries, uint32_t dim_padded)
{
    for (uint32_t i = 0; i < queries; i++) {
        float *a = total->acc + (uint64_t)i * dim_padded;
        const float *b = part->acc + (uint64_t)i * dim_padded;
        float *sum = total->sum + (uint64_t)i * LANES;
        float top = total->max[i] > part->max[i] ? total->max[i] : part->max[i];
        if (part->max[i] == -INFINITY) continue; /* sees nothing of this split */
        float ca = ISA(exp)(ISA(splat)(total->max[i] - top))[0];
        float cb = ISA(exp)(ISA(splat)(part->max[i] - top))[0];
        total->max[i] = top;
        ISA(store)(sum, ISA(load)(sum) * ca + ISA(load)(part->sum + (uint64_t)i * LANES) * cb);
        for (uint32_t d = 0; d < dim_padded; d += LANES)
            ISA(store)(a + d, ISA(load)(a + d) * ca + ISA(load)(b + d) * cb);
    }
}

static void ISA(attend_finish)(const struct attend_state *total, uint32_t at, uint32_t head_dim,
                               uint32_t dim_padded, float *out)
{
    const float *acc = total->acc + (uint64_t)at * dim_padded;
    float inverse = 1 / ISA(sum_of)(ISA(load)(total->sum + (uint64_t)at * LANES));

    for (uint32_t d = 0; d < head_dim; d++)
        out[d] = acc[d] * inverse;
}

static const struct cpu_kernels ISA(kernels) = {
    .max_finite = ISA(max_finite),
    .find = ISA(find),
    .gather = ISA(gather),
    .sum = ISA(sum),
    .exp_store = ISA(exp_store),
    .norm = ISA(norm),
    .act_mul = ISA(act_mul),
    .kv_store = ISA(kv_store),
    .attend = ISA(attend),
    .attend_join = ISA(attend_join),
    .attend_finish = ISA(attend_finish),
};
