/* linear.c - the exact products: float32 activations, every stored format.
 *
 * A run of a weight row is decoded to float32 on the stack and multiplied by every row of x before the next run is decoded,
 * so a long prompt pays for decoding once per ROW_BLOCK rows. Order of sums: value k goes to lane k % 16; a lane adds in
 * order of k; the lanes are added in a tree at the end. It is the same for one row and for many, whatever the tile. */
#include "device/cpu/linear.h"

#include <assert.h>
#include <string.h>

#include "device/dummy_weights.h"

enum { LANES = 16, RUN = 512, TILE_ROWS = 16, ROW_BLOCK = 64 };

typedef float lanes __attribute__((vector_size(64)));
typedef float lanes_at __attribute__((vector_size(64), aligned(4), may_alias));

struct linear_kernel {
    const char *name;
    /* acc[4 of W][rows] += x[rows][0..n) * w[4][0..n), n in lanes; x_stride in floats */
    void (*run4)(const float *w, const float *x, uint64_t x_stride, uint32_t rows, uint32_t n,
                 lanes (*acc)[ROW_BLOCK]);
};

/* Two rows of x against four of W: eight running sums stay in registers. */
static inline __attribute__((always_inline)) void
run_rows(const float *w, const float *x, uint64_t x_stride, uint32_t rows, uint32_t n,
         lanes (*acc)[ROW_BLOCK])
{
    uint32_t r = 0;

    for (; r + 2 <= rows; r += 2) {
        const float *x0 = x + r * x_stride, *x1 = x0 + x_stride;
        lanes a00 = acc[0][r], a10 = acc[1][r], a20 = acc[2][r], a30 = acc[3][r];
        lanes a01 = acc[0][r + 1], a11 = acc[1][r + 1], a21 = acc[2][r + 1], a31 = acc[3][r + 1];
        for (uint32_t k = 0; k < n * LANES; k += LANES) {
            lanes p = *(const lanes_at *)(x0 + k), q = *(const lanes_at *)(x1 + k);
            lanes w0 = *(const lanes_at *)(w + k), w1 = *(const lanes_at *)(w + RUN + k);
            lanes w2 = *(const lanes_at *)(w + 2 * RUN + k);
            lanes w3 = *(const lanes_at *)(w + 3 * RUN + k);
            a00 += p * w0, a10 += p * w1, a20 += p * w2, a30 += p * w3;
            a01 += q * w0, a11 += q * w1, a21 += q * w2, a31 += q * w3;
        }
        acc[0][r] = a00, acc[1][r] = a10, acc[2][r] = a20, acc[3][r] = a30;
        acc[0][r + 1] = a01, acc[1][r + 1] = a11, acc[2][r + 1] = a21, acc[3][r + 1] = a31;
    }
    for (; r < rows; r++) {
        const float *x0 = x + r * x_stride;
        lanes a0 = acc[0][r], a1 = acc[1][r], a2 = acc[2][r], a3 = acc[3][r];
        for (uint32_t k = 0; k < n * LANES; k += LANES) {
            lanes p = *(const lanes_at *)(x0 + k);
            a0 += p * *(const lanes_at *)(w + k);
            a1 += p * *(const lanes_at *)(w + RUN + k);
            a2 += p * *(const lanes_at *)(w + 2 * RUN + k);
            a3 += p * *(const lanes_at *)(w + 3 * RUN + k);
        }
        acc[0][r] = a0, acc[1][r] = a1, acc[2][r] = a2, acc[3][r] = a3;
    }
}

static void run4_generic(const float *w, const float *x, uint64_t x_stride, uint32_t rows,
                         uint32_t n, lanes (*acc)[ROW_BLOCK])
{
    run_rows(w, x, x_stride, rows, n, acc);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) static void run4_avx2(const float *w, const float *x,
                                                      uint64_t x_stride, uint32_t rows, uint32_t n,
                                                      lanes (*acc)[ROW_BLOCK])
{
    run_rows(w, x, x_stride, rows, n, acc);
}
__attribute__((target("avx512f"))) static void run4_avx512(const float *w, const float *x,
                                                           uint64_t x_stride, uint32_t rows,
                                                           uint32_t n, lanes (*acc)[ROW_BLOCK])
{
    run_rows(w, x, x_stride, rows, n, acc);
}
#else
#define run4_avx2   run4_generic
#define run4_avx512 run4_generic
#endif
static const struct linear_kernel kernels[CPU_ISA_COUNT] = {
    [CPU_ISA_GENERIC] = {"generic", run4_generic}, [CPU_ISA_AVX2] = {"avx2", run4_avx2},
    [CPU_ISA_AVX512] = {"avx512", run4_avx512},    [CPU_ISA_AVX512_VNNI] = {"avx512", run4_avx512},
    [CPU_ISA_AMX] = {"avx512", run4_avx512},
};

enum cpu_isa cpu_isa_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512vnni") ? CPU_ISA_AVX512_VNNI : CPU_ISA_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return CPU_ISA_AVX2;
#endif
    return CPU_ISA_GENERIC;
}

const char *cpu_isa_name(enum cpu_isa isa)
{
    static const char *const names[CPU_ISA_COUNT] = {"generic", "avx2", "avx512", "avx512-vnni",
                                                     "amx"};
    assert(isa < CPU_ISA_COUNT);
    return names[isa];
}

/* Weights stay where they are; only made-up ones need room. */
uint64_t linear_packed_bytes(const struct plan_weight *weight, enum cpu_numerics numerics,
                             enum cpu_isa isa)
{
    (void)numerics, (void)isa;
    return weight->data ? 0 : dtype_row_bytes(weight->dtype, weight->cols) * weight->rows;
}

void linear_init(struct linear *out, const struct plan_weight *weight, enum cpu_numerics numerics,
                 enum cpu_isa isa, void *packed)
{
    assert(isa < CPU_ISA_COUNT && (weight->data || packed));
    *out = (struct linear){
        .weight = *weight,
        .numerics = numerics,
        .isa = isa,
        .packed = weight->data ? weight->data : packed,
        .tiles = (weight->rows + TILE_ROWS - 1) / TILE_ROWS,
        .tile_rows = TILE_ROWS,
        .kernel = &kernels[isa],
    };
    if (!weight->data) out->weight.row_stride = dtype_row_bytes(weight->dtype, weight->cols);
}

static uint32_t tile_end_row(const struct linear *linear, uint32_t tile_end)
{
    uint64_t row = (uint64_t)tile_end * linear->tile_rows;

    return row < linear->weight.rows ? (uint32_t)row : linear->weight.rows;
}

void linear_pack_tiles(struct linear *linear, void *packed, uint32_t tile_begin, uint32_t tile_end)
{
    if (linear->weight.data) return;
    for (uint32_t n = tile_begin * TILE_ROWS; n < tile_end_row(linear, tile_end); n++)
        dummy_weight_row(&linear->weight, n, (char *)packed + n * linear->weight.row_stride);
}

enum linear_input linear_input_kind(const struct linear *linear)
{
    (void)linear;
    return LINEAR_INPUT_F32;
}

uint64_t linear_input_row_bytes(enum linear_input kind, uint32_t cols)
{
    static const uint32_t per_col[LINEAR_INPUT_COUNT] = {4, 2, 2}; /* Q8: a byte, its scales */

    return ((uint64_t)cols * per_col[kind] + 63) / 64 * 64;
}

void linear_prepare(enum linear_input kind, enum cpu_isa isa, const float *x, uint64_t x_stride,
                    uint32_t cols, void *input, uint32_t row_begin, uint32_t row_end)
{
    uint64_t row_bytes = linear_input_row_bytes(kind, cols);

    assert(kind == LINEAR_INPUT_F32);
    (void)isa;
    for (uint32_t r = row_begin; r < row_end; r++) {
        char *row = (char *)input + r * row_bytes;
        memcpy(row, x + r * x_stride, (size_t)cols * 4);
        memset(row + (size_t)cols * 4, 0, row_bytes - (size_t)cols * 4);
    }
}

/* Columns [k, k + count) of weight rows n .. n + 3, zero behind the last column and the last row. */
static void decode_run(const struct linear *linear, uint32_t n, uint32_t n_end, uint32_t k,
                       uint32_t count, float w[4][RUN])
{
    const struct plan_weight *weight = &linear->weight;
    const struct dtype_info *info = dtype_info(weight->dtype);
    uint64_t offset = (uint64_t)k / info->block_elements * info->block_bytes;
    uint32_t padded = (count + LANES - 1) / LANES * LANES;

    for (uint32_t i = 0; i < 4; i++) {
        if (n + i < n_end)
            quant_row_to_f32(weight->dtype,
                             (const char *)linear->packed + (n + i) * weight->row_stride + offset,
                             count, w[i]);
        else
            memset(w[i], 0, count * sizeof(float));
        memset(w[i] + count, 0, (padded - count) * sizeof(float));
    }
}

static float lanes_sum(lanes v)
{
    float s[LANES];

    memcpy(s, &v, sizeof s);
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

static void run_block(const struct linear *linear, const float *x, uint64_t x_stride, uint32_t rows,
                      float *y, uint64_t y_stride, uint32_t n, uint32_t n_end)
{
    float w[4][RUN] __attribute__((aligned(64)));
    lanes acc[4][ROW_BLOCK];
    uint32_t cols = linear->weight.cols;

    for (uint32_t i = 0; i < 4; i++)
        memset(acc[i], 0, rows * sizeof acc[i][0]);
    for (uint32_t k = 0; k < cols; k += RUN) {
        uint32_t count = cols - k < RUN ? cols - k : RUN;
        decode_run(linear, n, n_end, k, count, w);
        linear->kernel->run4(w[0], x + k, x_stride, rows, (count + LANES - 1) / LANES, acc);
    }
    for (uint32_t i = 0; i < 4 && n + i < n_end; i++)
        for (uint32_t r = 0; r < rows; r++)
            y[r * y_stride + n + i] = lanes_sum(acc[i][r]);
}

void linear_run(const struct linear *linear, const void *input, uint32_t rows, float *y,
                uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    uint64_t x_stride = linear_input_row_bytes(LINEAR_INPUT_F32, linear->weight.cols) / 4;
    uint32_t n_end = tile_end_row(linear, tile_end);

    for (uint32_t n = tile_begin * TILE_ROWS; n < n_end; n += 4)
        for (uint32_t r = 0; r < rows; r += ROW_BLOCK)
            run_block(linear, (const float *)input + r * x_stride, x_stride,
                      rows - r < ROW_BLOCK ? rows - r : ROW_BLOCK, y + r * y_stride, y_stride, n,
                      n_end);
}
