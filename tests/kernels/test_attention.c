/* test_attention.c - the three attention kernels equal a float64 softmax over the same rounded q, k, v.
 * Method: random pages in a shuffled table; what lies past a row's position, every block that no table names, and what the table names in front of
 * the window, is NaN;
 * sweeps of lengths, groups, head sizes, windows and soft caps; outputs poisoned; a second run gives the same bytes;
 * a row alone gives the bytes it has in a batch, and a chunk the bytes it has in pieces. Both variants of prefill run. */
#include <math.h>
#include <stdlib.h>

#include "attention.h"
#include "gpu.h"
#include "kv_layout.h"

struct setup {
    uint32_t rows, heads, kv_heads, dim, window, slots, table_stride, blocks;
    float softcap;
    int32_t *positions, *row_slots, *tables;
    uint16_t *q, *kv;
    double *want; /* [rows, heads * dim] */
};

static double value(enum kernel_type type, const uint16_t *at)
{
    return type_value(type, *at);
}

static size_t k_at(const struct setup *s, uint32_t slot, uint32_t token, uint32_t g, uint32_t e)
{
    uint64_t record = (uint64_t)s->tables[slot * s->table_stride + token / 16] * s->kv_heads + g;
    return record * kv_record_elements(s->dim) + token % 16 * s->dim + e;
}

static size_t v_at(const struct setup *s, uint32_t slot, uint32_t token, uint32_t g, uint32_t e)
{
    uint64_t record = (uint64_t)s->tables[slot * s->table_stride + token / 16] * s->kv_heads + g;
    return record * kv_record_elements(s->dim) + 16 * s->dim + (token % 16 / 8 * s->dim + e) * 8 +
           token % 8;
}

static void attend(const struct setup *s, enum kernel_type type, uint32_t row, uint32_t head)
{
    int32_t pos = s->positions[row],
            lo = s->window && pos + 1 > (int32_t)s->window ? pos + 1 - (int32_t)s->window : 0;
    uint32_t g = head / (s->heads / s->kv_heads), D = s->dim, slot = (uint32_t)s->row_slots[row];
    double *score = malloc((size_t)(pos + 1) * sizeof *score), top = -INFINITY, sum = 0, q[512];
    double *out = &s->want[((size_t)row * s->heads + head) * D];

    for (uint32_t e = 0; e < D; e++)
        q[e] = value(type, &s->q[((size_t)row * s->heads + head) * D + e]), out[e] = 0;
    for (int32_t t = lo; t <= pos; t++) {
        double x = 0;
        for (uint32_t e = 0; e < D; e++)
            x += q[e] * value(type, &s->kv[k_at(s, slot, (uint32_t)t, g, e)]);
        x /= sqrt(D);
        if (s->softcap > 0) x = s->softcap * tanh(x / s->softcap);
        score[t] = x;
        if (x > top) top = x;
    }
    for (int32_t t = lo; t <= pos; t++)
        sum += score[t] = exp(score[t] - top);
    for (int32_t t = lo; t <= pos; t++)
        for (uint32_t e = 0; e < D; e++)
            out[e] += score[t] / sum * value(type, &s->kv[v_at(s, slot, (uint32_t)t, g, e)]);
    free(score);
}

/* A block that no row of its slot sees may be another's: the table names one of NaN. */
static void forget_unseen(struct setup *s, int32_t nan_block)
{
    for (uint32_t i = 0; i < s->slots && s->window; i++) {
        int32_t seen = INT32_MAX;

        for (uint32_t r = 0; r < s->rows; r++)
            if (s->row_slots[r] == (int32_t)i && s->positions[r] >= 0 && s->positions[r] < seen)
                seen = s->positions[r];
        for (int32_t b = 0; seen != INT32_MAX && b < (seen + 1 - (int32_t)s->window) / 16; b++)
            s->tables[i * s->table_stride + (uint32_t)b] = nan_block;
    }
}

/* lengths[slot] tokens are written; everything else is NaN. */
static void make(struct setup *s, enum kernel_type type, const uint32_t *lengths)
{
    uint32_t used = 0, longest = 0;

    for (uint32_t i = 0; i < s->slots; i++) {
        used += (lengths[i] + 15) / 16;
        if (lengths[i] > longest) longest = lengths[i];
    }
    s->blocks = used + 7;
    s->table_stride = (longest + 15) / 16 + 3;
    s->tables = malloc((size_t)s->slots * s->table_stride * sizeof *s->tables);
    int32_t *ids = malloc(s->blocks * sizeof *ids);
    for (uint32_t i = 0; i < s->blocks; i++)
        ids[i] = (int32_t)i;
    for (uint32_t i = s->blocks - 1; i > 0; i--) {
        uint32_t j = test_rand_below(i + 1);
        int32_t kept = ids[i];
        ids[i] = ids[j], ids[j] = kept;
    }
    size_t elements = s->blocks * kv_block_elements(s->kv_heads, s->dim);
    s->kv = malloc(elements * 2);
    memset(s->kv, 0xff, elements * 2);
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->slots; i++) {
        for (uint32_t b = 0; b < s->table_stride;
             b++) /* entries past the end name a block of NaN */
            s->tables[i * s->table_stride + b] =
                b < (lengths[i] + 15) / 16 ? ids[next++] : ids[s->blocks - 1];
        for (uint32_t t = 0; t < lengths[i]; t++)
            for (uint32_t g = 0; g < s->kv_heads; g++)
                for (uint32_t e = 0; e < s->dim; e++) {
                    float k = (float)(test_rand_unit() * 2 - 1) * (t == 1 && e < 4 ? 12 : 1.5f);
                    s->kv[k_at(s, i, t, g, e)] = type_bits(type, k);
                    s->kv[v_at(s, i, t, g, e)] = type_bits(type, (float)(test_rand_unit() * 2 - 1));
                }
    }
    s->q = random_values(type, (size_t)s->rows * s->heads * s->dim, 1);
    s->want = calloc((size_t)s->rows * s->heads * s->dim, sizeof *s->want);
    for (uint32_t r = 0; r < s->rows; r++)
        for (uint32_t h = 0; h < s->heads && s->positions[r] >= 0; h++)
            attend(s, type, r, h);
    forget_unseen(s, ids[s->blocks - 1]);
    free(ids);
}

static void drop(struct setup *s)
{
    free(s->tables), free(s->kv), free(s->q), free(s->want);
}

static struct attention_args upload(const struct setup *s)
{
    return (struct attention_args){
        .rows = s->rows,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->dim,
        .window = s->window,
        .scale = 1 / sqrtf((float)s->dim),
        .softcap = s->softcap,
        .q = gpu_upload(s->q, (size_t)s->rows * s->heads * s->dim * 2),
        .q_stride = s->heads * s->dim,
        .out = gpu_poisoned((size_t)s->rows * s->heads * s->dim * 2),
        .out_stride = s->heads * s->dim,
        .kv = gpu_upload(s->kv, s->blocks * kv_block_elements(s->kv_heads, s->dim) * 2),
        .positions = gpu_upload(s->positions, s->rows * 4),
        .slots = gpu_upload(s->row_slots, s->rows * 4),
        .tables = gpu_upload(s->tables, (size_t)s->slots * s->table_stride * 4),
        .table_stride = s->table_stride,
    };
}

static void check(const struct setup *s, struct kernel_context *ctx, const void *out,
                  const char *what)
{
    size_t row_values = (size_t)s->heads * s->dim, n = s->rows * row_values;
    uint16_t *bits = malloc(n * 2);
    float *got = malloc(row_values * sizeof *got);

    gpu_download(ctx, out, bits, n * 2);
    for (uint32_t r = 0; r < s->rows; r++) {
        if (s->positions[r] < 0) {
            for (size_t i = 0; i < row_values; i++)
                if (bits[r * row_values + i] != 0xffff)
                    fail_msg("%s: padding row %u was written", what, r);
            continue;
        }
        for (size_t i = 0; i < row_values; i++)
            got[i] = type_value(ctx->type, bits[r * row_values + i]);
        double e = relative_error(s->want + r * row_values, got, row_values);
        if (!(e < (ctx->type == KERNEL_BF16 ? 6e-3 : 1.5e-3)))
            fail_msg("%s: D %u heads %u/%u window %u cap %g row %u at %d: relative error %.2e",
                     what, s->dim, s->heads, s->kv_heads, s->window, (double)s->softcap, r,
                     s->positions[r], e);
    }
    free(bits), free(got);
}

static void decode_case(enum kernel_type type, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                        uint32_t window, float softcap, bool general)
{
    int32_t positions[] = {0, 14, -1, 15, 16, 30, 31, 32, 62, 64, 127, 128, 511, 512, 1300};
    enum { ROWS = sizeof positions / sizeof *positions };
    int32_t row_slots[ROWS];
    uint32_t lengths[ROWS];
    NEED_GPU(type);

    for (int i = 0; i < ROWS; i++) {
        row_slots[i] = (i * 7 + 3) % ROWS;
        lengths[row_slots[i]] = positions[i] < 0 ? 1 : (uint32_t)positions[i] + 1;
    }
    struct setup s = {.rows = ROWS,
                      .heads = heads,
                      .kv_heads = kv_heads,
                      .dim = dim,
                      .window = window,
                      .slots = ROWS,
                      .softcap = softcap,
                      .positions = positions,
                      .row_slots = row_slots};
    make(&s, type, lengths);
    struct attention_args a = upload(&s);
    size_t bytes = (size_t)ROWS * heads * dim * 2;
    if (general) {
        EXPECT_CUDA(attention_general(&ctx, &a));
        check(&s, &ctx, a.out, "general");
        uint16_t *all = malloc(bytes), *alone = malloc(bytes);
        int32_t last = ROWS - 1;
        struct attention_args one = a;
        one.rows = 1, one.row_list = gpu_upload(&last, 4), one.out = gpu_poisoned(bytes);
        gpu_download(&ctx, a.out, all, bytes);
        EXPECT_CUDA(attention_general(&ctx, &one));
        gpu_download(&ctx, one.out, alone, bytes);
        size_t at = (size_t)last * heads * dim;
        EXPECT_TRUE(memcmp(all + at, alone + at, (size_t)heads * dim * 2) == 0);
        EXPECT_EQ(alone[0], 0xffff); /* no other row is written */
        free(all), free(alone);
    } else {
        for (uint32_t splits = 1; splits <= 16; splits += 5) {
            struct decode_scratch scratch = {gpu_scratch((size_t)ROWS * heads * splits * dim * 4),
                                             gpu_scratch((size_t)ROWS * heads * splits * 8),
                                             gpu_zeroed((size_t)ROWS * heads * 4), splits,
                                             splits != 6};
            uint16_t *first = malloc(bytes), *again = malloc(bytes);
            EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
            check(&s, &ctx, a.out, "decode");
            gpu_download(&ctx, a.out, first, bytes);
            EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
            gpu_download(&ctx, a.out, again, bytes);
            EXPECT_TRUE(memcmp(first, again, bytes) == 0);
            int32_t alone = ROWS - 1; /* the longest by itself: the same bytes */
            struct attention_args one = a;
            one.rows = 1, one.row_list = gpu_upload(&alone, 4), one.out = gpu_poisoned(bytes);
            EXPECT_CUDA(paged_decode(&ctx, &one, &scratch));
            gpu_download(&ctx, one.out, again, bytes);
            EXPECT_TRUE(memcmp(first + (size_t)alone * heads * dim,
                               again + (size_t)alone * heads * dim, (size_t)heads * dim * 2) == 0);
            free(first), free(again);
        }
    }
    drop(&s);
    gpu_end(&ctx);
}

TEST(paged_decode_equals_float64)
{
    static const uint32_t heads[][2] = {{9, 3}, {1, 1}, {8, 2}, {7, 1}, {16, 2}, {12, 1}, {71, 1}};
    static const uint32_t dims[] = {64, 80, 96, 128};

    for (size_t d = 0; d < 4; d++)
        for (size_t h = 0; h < (gpu_small() ? 1 : 7); h++)
            decode_case((h + d) % 3 ? KERNEL_BF16 : KERNEL_F16, heads[h][0], heads[h][1], dims[d],
                        0, 0, false);
    decode_case(KERNEL_BF16, 4, 2, 128, 100, 0, false);
    decode_case(KERNEL_BF16, 4, 2, 64, 17, 0, false);
    decode_case(KERNEL_F16, 4, 2, 96, 0, 5, false);
}

/* More parts than the device has places for blocks. A row's bytes are those it has alone. */
static void runs_case(enum kernel_type type, uint32_t heads, uint32_t kv_heads, uint32_t dim,
                      uint32_t window)
{
    enum { ROWS = 16, SPLITS = 24 };
    int32_t positions[ROWS], row_slots[ROWS];
    uint32_t lengths[ROWS];
    NEED_GPU(type);

    for (int32_t i = 0; i < ROWS; i++) {
        positions[i] = i == 5 ? -1 : i < 3 ? 40 * i : 1500 + (int32_t)test_rand_below(1600);
        row_slots[i] = ROWS - 1 - i;
        lengths[row_slots[i]] = positions[i] < 0 ? 1 : (uint32_t)positions[i] + 1;
    }
    struct setup s = {.rows = ROWS,
                      .heads = heads,
                      .kv_heads = kv_heads,
                      .dim = dim,
                      .window = window,
                      .slots = ROWS,
                      .positions = positions,
                      .row_slots = row_slots};
    make(&s, type, lengths);
    struct attention_args a = upload(&s);
    size_t bytes = (size_t)ROWS * heads * dim * 2, row = (size_t)heads * dim;
    struct decode_scratch scratch = {gpu_scratch((size_t)ROWS * heads * SPLITS * dim * 4),
                                     gpu_scratch((size_t)ROWS * heads * SPLITS * 8),
                                     gpu_zeroed((size_t)ROWS * heads * 4), SPLITS, true};
    uint16_t *all = malloc(bytes), *again = malloc(bytes), *alone = malloc(bytes);

    EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
    check(&s, &ctx, a.out, "decode of few rows");
    gpu_download(&ctx, a.out, all, bytes);
    EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
    gpu_download(&ctx, a.out, again, bytes);
    EXPECT_TRUE(memcmp(all, again, bytes) == 0);
    for (int32_t i = 0; i < ROWS; i += 3) {
        struct attention_args one = a;
        one.rows = 1, one.row_list = gpu_upload(&i, 4), one.out = gpu_poisoned(bytes);
        EXPECT_CUDA(paged_decode(&ctx, &one, &scratch));
        gpu_download(&ctx, one.out, alone, bytes);
        EXPECT_TRUE(positions[i] < 0 || memcmp(all + i * row, alone + i * row, row * 2) == 0);
    }
    free(all), free(again), free(alone);
    drop(&s);
    gpu_end(&ctx);
}

TEST(paged_decode_of_few_rows_gives_each_the_bytes_that_it_has_alone)
{
    runs_case(KERNEL_BF16, 32, 8, 128, 0);
    if (gpu_small()) return;
    runs_case(KERNEL_F16, 16, 16, 64, 0);
    runs_case(KERNEL_BF16, 20, 20, 80, 700);
    runs_case(KERNEL_F16, 33, 11, 96, 0);
    runs_case(KERNEL_BF16, 64, 4, 128, 1333);
}

/* Windows that begin and end with a page, with the 32 tokens of a warp, and between. */
TEST(paged_decode_sees_windows_of_every_length)
{
    static const uint32_t windows[] = {1, 15, 16, 31, 32, 33, 63, 64, 128, 129, 513};
    static const uint32_t dims[] = {64, 80, 96, 128};

    for (size_t i = 0; i < sizeof windows / sizeof *windows; i += gpu_small() ? 4 : 1)
        decode_case(i % 2 ? KERNEL_F16 : KERNEL_BF16, 5, 1, dims[i % 4], windows[i],
                    i % 3 ? 0 : 20.f, false);
}

TEST(general_attention_equals_float64_for_every_head_size)
{
    static const uint32_t dims[] = {16, 20, 48, 128, 256, 512};

    for (size_t d = 0; d < 6; d += gpu_small() ? 3 : 1)
        decode_case(d % 2 ? KERNEL_BF16 : KERNEL_F16, 6, 2, dims[d], d == 3 ? 33 : 0,
                    d == 4 ? 3 : 0, true);
}

/* Rows that fill a graph's bucket up: nothing is written, and the next launch finds the counters as they were. */
TEST(padding_alone_leaves_everything_as_it_was)
{
    enum { ROWS = 20, HEADS = 6, SPLITS = 4, D = 64 };
    int32_t positions[ROWS], zeros[ROWS] = {0};
    uint32_t lengths[1] = {1}, counters[ROWS * HEADS];
    uint16_t out[ROWS * HEADS * D];
    NEED_GPU(KERNEL_BF16);

    memset(positions, 0xff, sizeof positions);
    struct setup s = {.rows = ROWS,
                      .heads = HEADS,
                      .kv_heads = 2,
                      .dim = D,
                      .slots = 1,
                      .positions = positions,
                      .row_slots = zeros};
    make(&s, KERNEL_BF16, lengths);
    struct attention_args a = upload(&s);
    for (int few = 0; few < 2; few++) {
        struct decode_scratch scratch = {gpu_scratch(ROWS * HEADS * SPLITS * D * 4),
                                         gpu_scratch(ROWS * HEADS * SPLITS * 8),
                                         gpu_zeroed(sizeof counters), SPLITS, few};
        EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
        EXPECT_CUDA(attention_general(&ctx, &a));
        gpu_download(&ctx, scratch.counters, counters, sizeof counters);
        gpu_download(&ctx, a.out, out, sizeof out);
        for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
            EXPECT_EQ(counters[i], 0);
        for (size_t i = 0; i < sizeof out / sizeof *out; i++)
            EXPECT_EQ(out[i], 0xffff);
    }
    drop(&s);
    gpu_end(&ctx);
}

/* --- more parts than a device runs at once --- */

static void many_case(enum kernel_type type, const uint32_t *heads, uint32_t dim, uint32_t window,
                      float softcap, uint32_t longest, uint32_t splits)
{
    enum { ROWS = 45 };
    int32_t positions[ROWS], row_slots[ROWS];
    uint32_t lengths[ROWS];
    NEED_GPU(type);

    for (int i = 0; i < ROWS; i++) {
        positions[i] = i % 9 == 4 ? -1 : (int32_t)test_rand_below(i % 5 ? 90 : 700);
        if (i == 32) positions[i] = (int32_t)longest;
        row_slots[i] = (i * 7 + 3) % ROWS;
        lengths[row_slots[i]] = positions[i] < 0 ? 1 : (uint32_t)positions[i] + 1;
    }
    struct setup s = {.rows = ROWS,
                      .heads = heads[0],
                      .kv_heads = heads[1],
                      .dim = dim,
                      .window = window,
                      .slots = ROWS,
                      .softcap = softcap,
                      .positions = positions,
                      .row_slots = row_slots};
    make(&s, type, lengths);
    struct attention_args a = upload(&s);
    size_t bytes = (size_t)ROWS * heads[0] * dim * 2;
    struct decode_scratch scratch = {gpu_scratch((size_t)ROWS * heads[0] * splits * dim * 4),
                                     gpu_scratch((size_t)ROWS * heads[0] * splits * 8),
                                     gpu_zeroed((size_t)ROWS * heads[0] * 4), splits, splits > 16};
    uint16_t *first = malloc(bytes), *again = malloc(bytes);

    EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
    check(&s, &ctx, a.out, "many rows");
    gpu_download(&ctx, a.out, first, bytes);
    for (int i = 0; i < 3; i++) {
        EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
        gpu_download(&ctx, a.out, again, bytes);
        EXPECT_TRUE(memcmp(first, again, bytes) == 0);
    }
    free(first), free(again);
    drop(&s);
    gpu_end(&ctx);
}

TEST(paged_decode_of_many_rows_equals_float64)
{
    static const uint32_t heads[][2] = {{4, 1}, {8, 2}, {9, 3}, {24, 2}};
    static const uint32_t dims[] = {128, 64, 80, 96};

    for (uint32_t d = 0; d < (gpu_small() ? 1 : 4); d++)
        for (uint32_t h = gpu_small() ? 2 : 0; h < 4; h++)
            many_case((h + d) % 3 ? KERNEL_BF16 : KERNEL_F16, heads[h], dims[d], 0, 0,
                      h == 0 ? 9000 : 1300,
                      h == 1   ? 1
                      : h == 2 ? 32
                               : 4);
    many_case(KERNEL_BF16, heads[1], 128, 100, 0, 1300, 4);
    many_case(KERNEL_BF16, heads[1], 64, 17, 0, 1300, 32);
    many_case(KERNEL_F16, heads[2], 96, 0, 5, 1300, 4);
    /* as many parts as there may be: 256 groups of 32 tokens, four to a part */
    many_case(KERNEL_BF16, heads[gpu_small() ? 0 : 1], 80, 0, 0, gpu_small() ? 4500 : 8191, 64);
}

/* --- chunks --- */

struct chunk {
    uint32_t past, rows;
};

enum { TILES_MAX = 2048 };

/* Tiles of all chunks; where cut > 0, each is split in pieces of about that many rows, as if they came in separate steps. */
static uint32_t make_tiles(const struct chunk *chunks, uint32_t count, uint32_t group, uint32_t cut,
                           struct prefill_tile *tile)
{
    uint32_t tiles = 0, first_row = 0;

    for (uint32_t i = 0; i < count; i++)
        for (uint32_t done = 0, n; done < chunks[i].rows; done += n, first_row += n) {
            n = chunks[i].rows - done;
            if (cut && n > cut) n = 1 + test_rand_below(cut);
            for (uint32_t p = 0; p < n * group; p += PREFILL_TILE_PAIRS) {
                assert_true(tiles < TILES_MAX);
                tile[tiles++] = (struct prefill_tile){(int32_t)first_row, (int32_t)n,
                                                      (int32_t)(chunks[i].past + done),
                                                      (int32_t)(count - 1 - i), (int32_t)p};
            }
        }
    return tiles;
}

struct shape {
    uint32_t heads, kv_heads, dim, window;
    float softcap;
};

/* Equal to float64; the same bytes again, and the same when the chunks come in other pieces. */
static void run_chunks(struct kernel_context *ctx, const struct setup *s,
                       const struct chunk *chunks, uint32_t count, const char *what)
{
    static struct prefill_tile tile[TILES_MAX];
    struct attention_args a = upload(s);
    size_t bytes = (size_t)s->rows * s->heads * s->dim * 2;
    uint16_t *first = malloc(bytes), *again = malloc(bytes);

    a.kv_blocks = s->blocks;
    for (uint32_t cut = 0; cut <= (gpu_small() ? 40 : 120); cut += 40) {
        uint32_t tiles = make_tiles(chunks, count, s->heads / s->kv_heads, cut, tile);
        a.out = gpu_poisoned(bytes);
        EXPECT_CUDA(prefill_attention(ctx, &a, gpu_upload(tile, tiles * sizeof *tile), tiles));
        gpu_download(ctx, a.out, cut ? again : first, bytes);
        if (!cut) check(s, ctx, a.out, what);
        if (cut && memcmp(first, again, bytes) != 0)
            fail_msg("%s: D %u heads %u/%u window %u: other bytes in pieces of up to %u rows", what,
                     s->dim, s->heads, s->kv_heads, s->window, cut);
    }
    free(first), free(again);
}

static void chunks_case(enum kernel_type type, const struct shape *shape,
                        const struct chunk *chunks, uint32_t count)
{
    uint32_t *lengths = calloc(count, sizeof *lengths), rows = 0;
    int32_t *positions, *row_slots;
    NEED_GPU(type);

    for (uint32_t i = 0; i < count; i++)
        rows += chunks[i].rows;
    positions = calloc(rows, sizeof *positions), row_slots = calloc(rows, sizeof *row_slots);
    rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        lengths[count - 1 - i] = chunks[i].past + chunks[i].rows;
        for (uint32_t r = 0; r < chunks[i].rows; r++, rows++) {
            positions[rows] = (int32_t)(chunks[i].past + r);
            row_slots[rows] = (int32_t)(count - 1 - i);
        }
    }
    struct setup s = {.rows = rows,
                      .heads = shape->heads,
                      .kv_heads = shape->kv_heads,
                      .dim = shape->dim,
                      .window = shape->window,
                      .slots = count,
                      .softcap = shape->softcap,
                      .positions = positions,
                      .row_slots = row_slots};
    make(&s, type, lengths);
    int capability = ctx.capability;
    if (prefill_attention_fits(&ctx, s.dim)) run_chunks(&ctx, &s, chunks, count, "prefill");
    ctx.capability = 80; /* the mma.sync kernel, on whatever device this is */
    if (capability != 80 && prefill_attention_fits(&ctx, s.dim))
        run_chunks(&ctx, &s, chunks, count, "prefill, sm_80 code");
    ctx.capability = capability;
    drop(&s);
    free(lengths), free(positions), free(row_slots);
    gpu_end(&ctx);
}

TEST(prefill_attention_equals_float64_and_does_not_depend_on_the_pieces)
{
    static const struct chunk chunks[] = {{0, 1},    {17, 3},    {0, 64},   {200, 65}, {63, 130},
                                          {64, 37},  {128, 128}, {0, 257},  {127, 1},  {385, 31},
                                          {1000, 9}, {255, 2},   {1536, 24}};
    static const struct shape shapes[] = {
        {8, 2, 128, 0, 0},  {7, 1, 128, 0, 0},  {3, 3, 64, 0, 0},   {9, 3, 64, 0, 0},
        {4, 2, 96, 0, 0},   {4, 2, 128, 50, 0}, {4, 1, 64, 3, 0},   {4, 2, 64, 0, 4},
        {4, 2, 80, 0, 0},   {4, 1, 256, 0, 0},  {2, 2, 256, 65, 0}, {4, 2, 128, 129, 30},
        {5, 1, 80, 128, 0}, {71, 1, 64, 16, 0}, {2, 1, 96, 1, 0}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += gpu_small() ? 5 : 1)
        chunks_case(i % 2 ? KERNEL_F16 : KERNEL_BF16, &shapes[i], chunks,
                    gpu_small() ? 6 : sizeof chunks / sizeof *chunks);
}

/* More tiles than a device runs at once: blocks that take several, one behind the other. */
TEST(prefill_attention_runs_many_short_chunks)
{
    enum { COUNT = 90 };
    static const struct shape shapes[] = {{9, 9, 64, 0, 0}, {8, 8, 128, 0, 0}, {8, 8, 256, 20, 0}};
    struct chunk chunks[COUNT];

    for (uint32_t i = 0; i < COUNT; i++)
        chunks[i] = (struct chunk){test_rand_below(i % 9 ? 40 : 400), 2 + test_rand_below(12)};
    for (size_t i = 0; i < (gpu_small() ? 1 : sizeof shapes / sizeof *shapes); i++)
        chunks_case(i % 2 ? KERNEL_F16 : KERNEL_BF16, &shapes[i], chunks, gpu_small() ? 20 : COUNT);
}

/* --- a pool of more bytes than 32 bits count --- */

/* The same pages behind `far` others, whose bytes nobody may want: as cudaMalloc gave them. */
static struct attention_args move_far(const struct setup *s, const struct attention_args *near)
{
    size_t block = kv_block_elements(s->kv_heads, s->dim) * 2,
           entries = (size_t)s->slots * s->table_stride;
    uint32_t far = (uint32_t)((5ull << 30) / block + 1);
    int32_t *tables = malloc(entries * sizeof *tables);
    struct attention_args a = *near;
    char *pool = gpu_scratch((far + s->blocks) * block);

    for (size_t i = 0; i < entries; i++)
        tables[i] = s->tables[i] + (int32_t)far;
    EXPECT_CUDA(cudaMemcpy(pool + far * block, s->kv, s->blocks * block, cudaMemcpyHostToDevice));
    a.kv = pool, a.kv_blocks = far + s->blocks;
    a.tables = gpu_upload(tables, entries * sizeof *tables);
    a.out = gpu_poisoned((size_t)s->rows * s->heads * s->dim * 2);
    free(tables);
    return a;
}

TEST(pages_behind_four_gigabytes_give_the_same)
{
    enum { ROWS = 33, HEADS = 8, KV_HEADS = 2, D = 128, SPLITS = 4, PAST = 120 };
    int32_t positions[ROWS], row_slots[ROWS] = {0};
    uint32_t lengths[1] = {PAST + ROWS};
    struct prefill_tile tiles[2];
    NEED_GPU(KERNEL_BF16);

    if (gpu_small()) {
        gpu_end(&ctx);
        skip();
    }
    for (int32_t i = 0; i < ROWS; i++)
        positions[i] = PAST + i;
    struct setup s = {.rows = ROWS,
                      .heads = HEADS,
                      .kv_heads = KV_HEADS,
                      .dim = D,
                      .slots = 1,
                      .positions = positions,
                      .row_slots = row_slots};
    make(&s, KERNEL_BF16, lengths);
    struct attention_args near = upload(&s), a = move_far(&s, &near);
    struct decode_scratch scratch = {gpu_scratch(ROWS * HEADS * SPLITS * D * 4),
                                     gpu_scratch(ROWS * HEADS * SPLITS * 8),
                                     gpu_zeroed(ROWS * HEADS * 4), SPLITS, true};
    EXPECT_CUDA(paged_decode(&ctx, &a, &scratch));
    check(&s, &ctx, a.out, "decode far away");
    a.out = gpu_poisoned((size_t)ROWS * HEADS * D * 2);
    EXPECT_CUDA(attention_general(&ctx, &a));
    check(&s, &ctx, a.out, "general far away");
    for (int32_t i = 0; i < 2; i++)
        tiles[i] = (struct prefill_tile){0, ROWS, PAST, 0, i * PREFILL_TILE_PAIRS};
    const struct prefill_tile *dtiles = gpu_upload(tiles, sizeof tiles);
    for (int way = 0; way < 2; way++) {
        a.out = gpu_poisoned((size_t)ROWS * HEADS * D * 2);
        EXPECT_CUDA(prefill_attention(&ctx, &a, dtiles,
                                      (ROWS * 4 + PREFILL_TILE_PAIRS - 1) / PREFILL_TILE_PAIRS));
        check(&s, &ctx, a.out, way ? "prefill far away, sm_80 code" : "prefill far away");
        ctx.capability = 80;
    }
    drop(&s);
    gpu_end(&ctx);
}

/* More rows than a grid has in its second dimension. */
TEST(general_attention_runs_more_rows_than_a_grid_is_high)
{
    enum { ROWS = 65600, D = 8 };
    int32_t *positions = calloc(ROWS, sizeof *positions), table = 0;
    uint16_t *kv = malloc(kv_block_elements(1, D) * 2), *out = malloc((size_t)ROWS * D * 2);
    NEED_GPU(KERNEL_BF16);

    for (size_t i = 0; i < kv_block_elements(1, D); i++)
        kv[i] = type_bits(KERNEL_BF16, 0.5f);
    positions[ROWS - 2] = -1;
    struct attention_args a = {.rows = ROWS,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = D,
                               .scale = 1,
                               .q = gpu_zeroed((size_t)ROWS * D * 2),
                               .q_stride = D,
                               .out = gpu_poisoned((size_t)ROWS * D * 2),
                               .out_stride = D,
                               .kv = gpu_upload(kv, kv_block_elements(1, D) * 2),
                               .positions = gpu_upload(positions, ROWS * sizeof *positions),
                               .slots = gpu_zeroed(ROWS * 4),
                               .tables = gpu_upload(&table, sizeof table),
                               .table_stride = 1};
    EXPECT_CUDA(attention_general(&ctx, &a));
    gpu_download(&ctx, a.out, out, (size_t)ROWS * D * 2);
    for (size_t i = 0; i < (size_t)ROWS * D; i++)
        if (out[i] != (i / D == ROWS - 2 ? 0xffff : type_bits(KERNEL_BF16, 0.5f)))
            fail_msg("row %zu is wrong", i / D);
    free(positions), free(kv), free(out);
    gpu_end(&ctx);
}
