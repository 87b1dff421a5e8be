/* linear.c - picks the kernel for a weight, and packs, prepares and runs through it. */
#include "device/cpu/linear_kernel.h"

#include <assert.h>
#include <stdlib.h>

#include "device/dummy_weights.h"

static linear_run_fn *float_run(enum dtype dtype, enum cpu_isa isa)
{
    linear_run_fn *run = NULL;
    if (isa >= CPU_ISA_AVX512) run = linear_avx512_float(dtype);
    if (!run && isa >= CPU_ISA_AVX2) run = linear_avx2_float(dtype);
    return run ? run : linear_generic_float(dtype);
}

/* AVX-512 without VNNI has no byte product that beats AVX2's, so it takes AVX2's kernels. */
static linear_run_fn *quant_run(enum dtype dtype, enum cpu_isa isa)
{
    linear_run_fn *run = NULL;
    if (isa >= CPU_ISA_AMX) run = linear_amx_quant(dtype);
    if (!run && isa >= CPU_ISA_AVX512_VNNI) run = linear_vnni_quant(dtype);
    if (!run && isa >= CPU_ISA_AVX2) run = linear_avx2_quant(dtype);
    return run ? run : linear_generic_quant(dtype);
}

static linear_run_fn *exact_run(enum cpu_isa isa)
{
    if (isa >= CPU_ISA_AVX512) return linear_avx512_exact;
    return isa >= CPU_ISA_AVX2 ? linear_avx2_exact : linear_generic_exact;
}

/* How a weight is run: as float tiles; as quantised tiles with int8 activations, or decoded to float32; or decoded from the
 * rows as they are stored (formats that have no tiles). */
enum form { FORM_FLOAT, FORM_QUANT, FORM_DECODED, FORM_ROWS };

static enum form weight_form(const struct plan_weight *weight, enum cpu_numerics numerics)
{
    if (dtype_info(weight->dtype)->is_float) return FORM_FLOAT;
    if (!quant_layout(weight->dtype)) return FORM_ROWS;
    return numerics == CPU_FAST ? FORM_QUANT : FORM_DECODED;
}

static uint64_t tile_bytes(const struct plan_weight *weight, enum cpu_numerics numerics)
{
    switch (weight_form(weight, numerics)) {
    case FORM_FLOAT: return (uint64_t)weight->cols * LANES * dtype_info(weight->dtype)->block_bytes;
    case FORM_QUANT:
    case FORM_DECODED: return quant_tile_bytes(quant_layout(weight->dtype), weight->cols / QBLOCK);
    default: return 0;
    }
}

static uint32_t tile_count(const struct plan_weight *weight)
{
    return (weight->rows + LANES - 1) / LANES;
}

/* Made-up weights (data NULL) that would be used in place need room to be in. */
static uint64_t made_bytes(const struct plan_weight *weight)
{
    return weight->data ? 0 : dtype_row_bytes(weight->dtype, weight->cols) * weight->rows;
}

uint64_t linear_packed_bytes(const struct plan_weight *weight, enum cpu_numerics numerics,
                             enum cpu_isa isa)
{
    (void)isa; /* every instruction set reads the same layout */
    if (weight_form(weight, numerics) == FORM_ROWS) return round_up_64(made_bytes(weight));
    return round_up_64(tile_bytes(weight, numerics) * tile_count(weight));
}

void linear_init(struct linear *out, const struct plan_weight *weight, enum cpu_numerics numerics,
                 enum cpu_isa isa, void *packed)
{
    const enum form form = weight_form(weight, numerics);
    const bool in_place = form == FORM_ROWS && weight->data;

    assert(isa < CPU_ISA_COUNT && isa <= cpu_isa_best());
    assert(form != FORM_ROWS || dtype_info(weight->dtype)->has_values);
    assert(in_place || packed);
    *out = (struct linear){
        .weight = *weight,
        .numerics = numerics,
        .isa = isa,
        .packed = in_place ? weight->data : packed,
        .row_bytes = in_place ? weight->row_stride : dtype_row_bytes(weight->dtype, weight->cols),
        .tiles = tile_count(weight),
        .tile_rows = LANES,
        .input = form == FORM_QUANT ? LINEAR_INPUT_Q8 : LINEAR_INPUT_F32,
        .in_rows = form == FORM_ROWS,
        .run = form == FORM_FLOAT   ? float_run(weight->dtype, isa)
               : form == FORM_QUANT ? quant_run(weight->dtype, isa)
                                    : exact_run(isa),
    };
}

/* made: room for one row of a weight that has no data. */
static const void *stored_row(const struct plan_weight *weight, uint32_t row, void *made)
{
    if (weight->data) return (const uint8_t *)weight->data + row * weight->row_stride;
    dummy_weight_row(weight, row, made);
    return made;
}

static void pack_tile(const struct linear *linear, uint32_t tile, uint8_t *packed, void *made)
{
    const struct plan_weight *weight = &linear->weight;
    const uint64_t bytes = tile_bytes(weight, linear->numerics);

    memset(packed, 0, bytes); /* lanes past the last output stay 0 */
    for (uint32_t lane = 0; lane < LANES && tile * LANES + lane < weight->rows; lane++) {
        const void *row = stored_row(weight, tile * LANES + lane, made);
        if (quant_layout(weight->dtype))
            quant_lane_pack(weight, row, lane, packed);
        else
            float_lane_pack(weight, row, lane, packed);
    }
}

static void make_rows(const struct linear *linear, uint32_t tile, uint8_t *packed)
{
    const struct plan_weight *weight = &linear->weight;
    for (uint32_t row = tile * LANES; row < (tile + 1) * LANES && row < weight->rows; row++)
        dummy_weight_row(weight, row, packed + row * linear->row_bytes);
}

void linear_pack_tiles(struct linear *linear, void *packed, uint32_t tile_begin, uint32_t tile_end)
{
    const struct plan_weight *weight = &linear->weight;
    const uint64_t bytes = tile_bytes(weight, linear->numerics);
    void *made = NULL;

    assert(tile_end <= linear->tiles);
    if (linear->packed == weight->data) return;
    assert(packed == linear->packed);
    if (!weight->data && !linear->in_rows) {
        made = malloc(dtype_row_bytes(weight->dtype, weight->cols));
        assert(made); /* one row, while a model is loaded */
    }
    for (uint32_t tile = tile_begin; tile < tile_end; tile++)
        if (linear->in_rows)
            make_rows(linear, tile, packed);
        else
            pack_tile(linear, tile, (uint8_t *)packed + tile * bytes, made);
    free(made);
}

enum linear_input linear_input_kind(const struct linear *linear)
{
    return linear->input;
}

uint64_t linear_input_row_bytes(enum linear_input kind, uint32_t cols)
{
    return kind == LINEAR_INPUT_Q8 ? q8_row_bytes(cols)
                                   : round_up_64((uint64_t)cols * sizeof(float));
}

static void prepare_row(enum linear_input kind, enum cpu_isa isa, const float *x, uint32_t cols,
                        void *row)
{
    if (kind == LINEAR_INPUT_F32)
        memcpy(row, x, cols * sizeof(float));
    else if (isa >= CPU_ISA_AVX512)
        quantise_row_avx512(x, cols, row);
    else if (isa >= CPU_ISA_AVX2)
        quantise_row_avx2(x, cols, row);
    else
        quantise_row_generic(x, cols, row);
}

void linear_prepare(enum linear_input kind, enum cpu_isa isa, const float *x, uint64_t x_stride,
                    uint32_t cols, void *input, uint32_t row_begin, uint32_t row_end)
{
    const uint64_t bytes = linear_input_row_bytes(kind, cols);
    for (uint32_t row = row_begin; row < row_end; row++)
        prepare_row(kind, isa, x + row * x_stride, cols, (uint8_t *)input + row * bytes);
}

void linear_residual(const float *x, uint32_t cols, const void *input, uint32_t row,
                     float *residual)
{
    const int8_t *q = q8_row_q(input, row, cols);
    const struct q8_block *blocks = q8_row_blocks(input, row, cols);

    for (uint32_t k = 0; k < cols; k++)
        residual[k] = x[k] - blocks[k / QBLOCK].dx * (float)q[k];
}

void linear_run(const struct linear *linear, const void *input, uint32_t rows, float *y,
                uint64_t y_stride, uint32_t tile_begin, uint32_t tile_end)
{
    assert(tile_begin <= tile_end && tile_end <= linear->tiles);
    if (tile_begin < tile_end) linear->run(linear, input, rows, y, y_stride, tile_begin, tile_end);
}
