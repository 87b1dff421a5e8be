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
    float s[LANES];

    ISA(store)(s, v);
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
    return s[0];
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

static double ISA(exp_sum)(const float *x, uint32_t n, float max)
{
    return ISA(exp_store)(x, n, max, 1.0f, NULL);
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

/* Scores of up to four queries with the 16 tokens of a tile; even and odd dimensions are summed apart. */
INLINE void ISA(scores)(const float *const q[4], uint32_t count, const float *keys,
                        uint32_t head_dim, lanes s[4])
{
    lanes even[4], odd[4];

    for (uint32_t i = 0; i < count; i++)
        even[i] = odd[i] = ISA(splat)(0.0f);
    for (uint32_t d = 0; d < head_dim; d += 2) {
        lanes k0 = ISA(load)(keys + d * KV_TILE), k1 = ISA(load)(keys + (d + 1) * KV_TILE);
        for (uint32_t i = 0; i < count; i++) {
            even[i] = ISA(fma)(ISA(splat)(q[i][d]), k0, even[i]);
            odd[i] = ISA(fma)(ISA(splat)(q[i][d + 1]), k1, odd[i]);
        }
    }
    for (uint32_t i = 0; i < count; i++)
        s[i] = even[i] + odd[i];
}

/* acc[q] += sum over tokens lo..hi-1 of p[q][token] * values[token], for one or two queries of equal range. */
INLINE void ISA(add_values)(const float *p, uint32_t count, uint32_t lo, uint32_t hi,
                            const float *values, uint32_t dim_padded, float *const acc[2])
{
    uint32_t d = 0;

    for (; d + 4 * LANES <= dim_padded; d += 4 * LANES) {
        lanes a[2][4];
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < 4; j++)
                a[i][j] = ISA(load)(acc[i] + d + j * LANES);
        for (uint32_t t = lo; t < hi; t++) {
            const float *v = values + t * dim_padded + d;
            for (uint32_t j = 0; j < 4; j++) {
                lanes vj = ISA(load)(v + j * LANES);
                for (uint32_t i = 0; i < count; i++)
                    a[i][j] = ISA(fma)(ISA(splat)(p[i * KV_TILE + t]), vj, a[i][j]);
            }
        }
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < 4; j++)
                ISA(store)(acc[i] + d + j * LANES, a[i][j]);
    }
    for (; d < dim_padded; d += LANES)
        for (uint32_t i = 0; i < count; i++) {
            lanes a = ISA(load)(acc[i] + d);
            for (uint32_t t = lo; t < hi; t++)
                a = ISA(fma)(ISA(splat)(p[i * KV_TILE + t]), ISA(load)(values + t * dim_padded + d),
                             a);
            ISA(store)(acc[i] + d, a);
        }
}

/* Folds a tile's scores of query `at` into its state; p: the tile's weights [16]. */
INLINE void ISA(fold)(const struct attend_tile *tile, lanes s, uint32_t lo, uint32_t hi, float *p,
                      struct attend_state *state, uint32_t at)
{
    const lanes_i index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    lanes_i inside = (index >= (int32_t)lo) & (index < (int32_t)hi);
    float old = state->max[at], top;

    s *= tile->scale;
    if (tile->softcap > 0) { /* cap * tanh(s / cap) */
        lanes e = ISA(exp)(s * (2 / tile->softcap));
        s = (ISA(splat)(1.0f) - 2.0f / (e + 1.0f)) * tile->softcap;
    }
    s = ISA(select)(inside, s, ISA(splat)(-INFINITY));
    top = ISA(max_of)(s);
    if (top > old) {
        float *acc = state->acc + (uint64_t)at * tile->dim_padded;
        float shrink = ISA(exp)(ISA(splat)(old - top))[0];
        state->max[at] = top;
        state->sum[at] *= shrink;
        for (uint32_t d = 0; d < tile->dim_padded; d += LANES)
            ISA(store)(acc + d, ISA(load)(acc + d) * shrink);
    }
    s = ISA(exp)(s - state->max[at]);
    state->sum[at] += ISA(sum_of)(s);
    ISA(store)(p, s);
}

/* The float32 keys and values of the 16 tokens from t: in place, or converted. Values of tokens >= end are not touched. */
INLINE void ISA(fetch)(const struct attend_tile *tile, uint32_t t, uint32_t end, const float **keys,
                       const float **values)
{
    uint32_t in_block = t % tile->block_tokens;
    uint64_t tile_elements = (uint64_t)KV_TILE * (tile->head_dim + tile->dim_padded);
    const char *at = tile->pool + tile->table[t / tile->block_tokens] * tile->block_bytes +
                     tile->kv_at + in_block / KV_TILE * tile_elements * (tile->half ? 2 : 4);

    if (!tile->half) {
        *keys = (const float *)(const void *)at;
        *values = *keys + KV_TILE * tile->head_dim;
        return;
    }
    const uint16_t *half = (const uint16_t *)(const void *)at;
    uint32_t key_count = KV_TILE * tile->head_dim, tokens = end - t < KV_TILE ? end - t : KV_TILE;
    for (uint32_t i = 0; i < key_count; i += LANES)
        ISA(store)(tile->scratch + i, ISA(half_load)(half + i));
    for (uint32_t i = 0; i < tokens * tile->dim_padded; i += LANES)
        ISA(store)(tile->scratch + key_count + i, ISA(half_load)(half + key_count + i));
    *keys = tile->scratch;
    *values = tile->scratch + key_count;
}

/* Which of the tokens t .. t + 15, below `end`, row r sees: [*lo, *hi). */
INLINE void ISA(seen)(const struct attend_tile *tile, uint32_t r, uint32_t t, uint32_t end,
                      uint32_t *lo, uint32_t *hi)
{
    uint32_t pos = tile->first_pos + r, last = pos + 1 < end ? pos + 1 : end;
    uint32_t first = tile->window && pos + 1 > tile->window ? pos + 1 - tile->window : 0;

    *lo = first > t ? (first - t < KV_TILE ? first - t : KV_TILE) : 0;
    *hi = last > t ? (last - t < KV_TILE ? last - t : KV_TILE) : 0;
}

INLINE void ISA(attend_16)(const struct attend_tile *tile, uint32_t t, uint32_t end,
                           const float *keys, const float *values, struct attend_state *state)
{
    uint32_t queries = tile->rows * tile->heads, count;

    for (uint32_t first = 0; first < queries; first += count) {
        const float *q[4];
        uint32_t lo[4], hi[4];
        float p[4 * KV_TILE] __attribute__((aligned(64)));
        lanes s[4];
        count = queries - first < 4 ? queries - first : 4;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t r = (first + i) / tile->heads, g = (first + i) % tile->heads;
            q[i] = tile->q + r * tile->q_stride + (uint64_t)g * tile->head_dim;
            ISA(seen)(tile, r, t, end, &lo[i], &hi[i]);
        }
        if (count == 4) /* constants, so that the sums stay in registers */
            ISA(scores)(q, 4, keys, tile->head_dim, s);
        else if (count == 3)
            ISA(scores)(q, 3, keys, tile->head_dim, s);
        else if (count == 2)
            ISA(scores)(q, 2, keys, tile->head_dim, s);
        else
            ISA(scores)(q, 1, keys, tile->head_dim, s);
        for (uint32_t i = 0; i < count; i++)
            if (lo[i] < hi[i])
                ISA(fold)(tile, s[i], lo[i], hi[i], p + i * KV_TILE, state, first + i);
        for (uint32_t i = 0; i < count; i++) {
            float *acc[2] = {state->acc + (uint64_t)(first + i) * tile->dim_padded, NULL};
            if (lo[i] >= hi[i]) continue;
            if (i + 1 < count && lo[i] == lo[i + 1] && hi[i] == hi[i + 1]) {
                acc[1] = acc[0] + tile->dim_padded;
                ISA(add_values)(p + i * KV_TILE, 2, lo[i], hi[i], values, tile->dim_padded, acc);
                i++;
            } else {
                ISA(add_values)(p + i * KV_TILE, 1, lo[i], hi[i], values, tile->dim_padded, acc);
            }
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
        state->max[i] = -INFINITY, state->sum[i] = 0;
    memset(state->acc, 0, (uint64_t)queries * tile->dim_padded * sizeof(float));
    if (first > begin) begin = first / KV_TILE * KV_TILE;
    for (uint32_t t = begin; t < end; t += KV_TILE) {
        const float *keys, *values;
        ISA(fetch)(tile, t, end, &keys, &values);
        ISA(attend_16)(tile, t, end, keys, values, state);
    }
}

static void ISA(attend_join)(struct attend_state *total, const struct attend_state *part,
                             uint32_t queries, uint32_t dim_padded)
{
    for (uint32_t i = 0; i < queries; i++) {
        float *a = total->acc + (uint64_t)i * dim_padded;
        const float *b = part->acc + (uint64_t)i * dim_padded;
        float top = total->max[i] > part->max[i] ? total->max[i] : part->max[i];
        if (part->max[i] == -INFINITY) continue; /* sees nothing of this split */
        float ca = ISA(exp)(ISA(splat)(total->max[i] - top))[0];
        float cb = ISA(exp)(ISA(splat)(part->max[i] - top))[0];
        total->max[i] = top;
        total->sum[i] = total->sum[i] * ca + part->sum[i] * cb;
        for (uint32_t d = 0; d < dim_padded; d += LANES)
            ISA(store)(a + d, ISA(load)(a + d) * ca + ISA(load)(b + d) * cb);
    }
}

static const struct cpu_kernels ISA(kernels) = {
    .max_finite = ISA(max_finite),
    .exp_sum = ISA(exp_sum),
    .exp_store = ISA(exp_store),
    .norm = ISA(norm),
    .act_mul = ISA(act_mul),
    .kv_store = ISA(kv_store),
    .attend = ISA(attend),
    .attend_join = ISA(attend_join),
};
