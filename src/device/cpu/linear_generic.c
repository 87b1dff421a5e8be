/* linear_generic.c - the plain C twin of every kernel: what runs on any processor, and what the order of sums means.
 * fmaf is an instruction where the processor has it (glibc picks it at load time) and exact emulation elsewhere. */
#include "device/cpu/linear_kernel.h"

#include <assert.h>
#include <math.h>

/* --- activations to int8, see q8_row() --- */

static uint32_t largest_magnitude_bits(const float *x)
{
    uint32_t largest = 0;
    for (int k = 0; k < QBLOCK; k++) {
        uint32_t bits;
        memcpy(&bits, &x[k], 4);
        bits &=
            0x7fffffffu; /* as integers NaN > infinity > numbers, so that bad values are not lost */
        if (bits > largest) largest = bits;
    }
    return largest;
}

/* dx = max|x| / 127; a block below 1e-30 is 0, one with NaN or infinity makes dx and sx NaN. */
void quantise_block_generic(const float *x, int8_t *q, struct q8_block *block)
{
    uint32_t bits = largest_magnitude_bits(x);
    float largest, scale = 0, dx = 0;
    int32_t sum[2] = {0, 0};

    memcpy(&largest, &bits, 4);
    if (bits >= 0x7f800000u) {
        dx = NAN;
    } else if (largest >= 1e-30f) {
        dx = largest / 127.0f;
        scale = 127.0f / largest;
    }
    for (int k = 0; k < QBLOCK; k++) {
        q[k] = scale > 0 ? (int8_t)lrintf(x[k] * scale) : 0;
        sum[k / 16] += q[k];
    }
    *block = (struct q8_block){dx, dx * (float)(sum[0] + sum[1]), -128 * (sum[0] + sum[1]),
                               -128 * sum[0]};
}

void quantise_row_generic(const float *x, uint32_t cols, void *row)
{
    int8_t *q = row;
    struct q8_block *block = (struct q8_block *)(void *)(q + cols);
    for (uint32_t b = 0; b < cols / QBLOCK; b++)
        quantise_block_generic(x + b * QBLOCK, q + b * QBLOCK, &block[b]);
}

/* --- quantised weights, int8 activations --- */

static int32_t part_dot(const struct quant_block *w, const int8_t *q, uint32_t lane, uint32_t part,
                        int32_t zero)
{
    uint32_t groups = 8 / w->parts;
    int32_t dot = 0;
    for (uint32_t g = part * groups; g < (part + 1) * groups; g++)
        for (uint32_t i = 0; i < 4; i++)
            dot += ((int32_t)w->u[g][lane][i] - zero) * q[4 * g + i];
    return dot;
}

/* sx of a part: of a half block it is made from the sum of the half. */
static float part_sx(const struct q8_block *x, uint32_t parts, uint32_t part)
{
    if (parts == 1) return x->sx;
    int32_t off = part == 0 ? x->off_low : x->off - x->off_low;
    return x->dx * (float)(off / -128);
}

static void block_add(const struct quant_layout *layout, const struct quant_block *w,
                      const int8_t *q, const struct q8_block *x, float acc[LANES])
{
    for (uint32_t part = 0; part < w->parts; part++) {
        float sx = part_sx(x, w->parts, part);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float dot = (float)part_dot(w, q, lane, part, layout->zero);
            acc[lane] = fmaf(dot, w->d[part][lane] * x->dx, acc[lane]);
            if (layout->has_min) acc[lane] = fmaf(w->m[part][lane], sx, acc[lane]);
        }
    }
}

static uint32_t tile_lanes(const struct linear *linear, uint32_t tile)
{
    uint32_t left = linear->weight.rows - tile * LANES;
    return left < LANES ? left : LANES;
}

enum { GENERIC_ROWS = 8 }; /* rows that share one decoding of a block */

static void quant_rows(const struct linear *linear, const void *input, uint32_t row, uint32_t count,
                       float *y, uint64_t y_stride, uint32_t tile)
{
    const struct quant_layout *layout = quant_layout(linear->weight.dtype);
    const uint32_t cols = linear->weight.cols, blocks = cols / QBLOCK;
    const uint8_t *packed =
        (const uint8_t *)linear->packed + tile * quant_tile_bytes(layout, blocks);
    float acc[GENERIC_ROWS][LANES] = {0};
    struct quant_block w;

    memset(&w, 0, sizeof w);
    for (uint32_t b = 0; b < blocks; b++) {
        quant_block_load(linear->weight.dtype, packed, b, blocks, &w);
        for (uint32_t r = 0; r < count; r++)
            block_add(layout, &w, q8_row_q(input, row + r, cols) + b * QBLOCK,
                      q8_row_blocks(input, row + r, cols) + b, acc[r]);
    }
    for (uint32_t r = 0; r < count; r++)
        memcpy(y + (row + r) * y_stride + tile * LANES, acc[r],
               tile_lanes(linear, tile) * sizeof(float));
}

static void run_quant(const struct linear *linear, const void *input, uint32_t rows, float *y,
                      uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        for (uint32_t row = 0; row < rows; row += GENERIC_ROWS)
            quant_rows(linear, input, row, rows - row < GENERIC_ROWS ? rows - row : GENERIC_ROWS, y,
                       y_stride, tile);
}

linear_run_fn *linear_generic_quant(enum dtype dtype)
{
    return quant_layout(dtype) ? run_quant : NULL;
}

/* --- floats --- */

static float load_float(enum dtype dtype, const uint8_t *p)
{
    uint32_t bits;
    uint16_t half;

    if (dtype == DTYPE_F32) {
        float v;
        memcpy(&v, p, 4);
        return v;
    }
    memcpy(&half, p, 2);
    if (dtype == DTYPE_F16) return f16_to_f32(half);
    bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static void tile_chunk_floats(const struct linear *linear, uint32_t tile, uint32_t col,
                              uint32_t count, float *out)
{
    const enum dtype dtype = linear->weight.dtype;
    const uint32_t size = dtype_info(dtype)->block_bytes;
    const uint8_t *from = (const uint8_t *)linear->packed +
                          ((uint64_t)tile * linear->weight.cols + col) * LANES * size;
    for (uint32_t i = 0; i < count * LANES; i++)
        out[i] = load_float(dtype, from + i * size);
}

/* y = y + sum over one chunk of w [count][16] x; y is 0 before the first. */
static void chunk_add(const float *w, const float *x, uint32_t count, uint32_t lanes, bool first,
                      float *y)
{
    for (uint32_t lane = 0; lane < lanes; lane++) {
        float a = 0;
        for (uint32_t k = 0; k < count; k++)
            a = fmaf(w[k * LANES + lane], x[k], a);
        y[lane] = (first ? 0.0f : y[lane]) + a;
    }
}

typedef void decode_fn(const struct linear *linear, uint32_t tile, uint32_t col, uint32_t count,
                       float *out);

static void run_chunks(const struct linear *linear, const void *input, uint32_t rows, float *y,
                       uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end, decode_fn *decode)
{
    const uint32_t cols = linear->weight.cols;
    const uint64_t x_stride = linear_input_row_bytes(LINEAR_INPUT_F32, cols) / sizeof(float);
    float w[CHUNK * LANES];

    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        for (uint32_t col = 0; col < cols; col += CHUNK) {
            uint32_t count = cols - col < CHUNK ? cols - col : CHUNK;
            decode(linear, tile, col, count, w);
            for (uint32_t r = 0; r < rows; r++)
                chunk_add(w, (const float *)input + r * x_stride + col, count,
                          tile_lanes(linear, tile), col == 0, y + r * y_stride + tile * LANES);
        }
}

static void run_float(const struct linear *linear, const void *input, uint32_t rows, float *y,
                      uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    run_chunks(linear, input, rows, y, y_stride, tile_begin, tile_end, tile_chunk_floats);
}

linear_run_fn *linear_generic_float(enum dtype dtype)
{
    return dtype_info(dtype)->is_float ? run_float : NULL;
}

/* --- quantised weights, float activations (`exact`) --- */

void decode_rows_chunk(const struct linear *linear, uint32_t tile, uint32_t col, uint32_t count,
                       float *out)
{
    const struct plan_weight *weight = &linear->weight;
    const struct dtype_info *info = dtype_info(weight->dtype);
    const uint64_t skip = (uint64_t)(col / info->block_elements) * info->block_bytes;
    float values[CHUNK];

    assert(count <= CHUNK && CHUNK % info->block_elements == 0);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t row = tile * LANES + lane;
        if (row < weight->rows)
            quant_row_to_f32(weight->dtype,
                             (const uint8_t *)linear->packed + row * linear->row_bytes + skip,
                             count, values);
        for (uint32_t k = 0; k < count; k++)
            out[k * LANES + lane] = row < weight->rows ? values[k] : 0.0f;
    }
}

static void decode_tile_chunk(const struct linear *linear, uint32_t tile, uint32_t col,
                              uint32_t count, float *out)
{
    const struct quant_layout *layout = quant_layout(linear->weight.dtype);
    const uint32_t blocks = linear->weight.cols / QBLOCK;
    const uint8_t *packed =
        (const uint8_t *)linear->packed + tile * quant_tile_bytes(layout, blocks);
    struct quant_block w;

    memset(&w, 0, sizeof w);
    for (uint32_t b = 0; b < count / QBLOCK; b++, out += QBLOCK * LANES) {
        quant_block_load(linear->weight.dtype, packed, col / QBLOCK + b, blocks, &w);
        for (uint32_t i = 0; i < QBLOCK * LANES; i++) {
            uint32_t k = i / LANES, lane = i % LANES, part = w.parts == 2 ? k / 16 : 0;
            float v = (float)((int32_t)w.u[k / 4][lane][k % 4] - layout->zero) * w.d[part][lane];
            out[i] = layout->has_min ? v + w.m[part][lane] : v;
        }
    }
}

void linear_generic_exact(const struct linear *linear, const void *input, uint32_t rows, float *y,
                          uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    run_chunks(linear, input, rows, y, y_stride, tile_begin, tile_end,
               linear->in_rows ? decode_rows_chunk : decode_tile_chunk);
}
