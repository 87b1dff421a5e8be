#include "model/weight_table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

enum { NAME_MAX_BYTES = 128 };

enum status weight_table_init(struct weight_table *table, const struct weights *weights,
                              const struct model_config *config, struct arena *arena,
                              struct error *err)
{
    *table = (struct weight_table){.weights = weights, .config = config, .arena = arena};
    table->taken = arena_alloc(arena, (size_t)weights_count(weights) + 1);
    return table->taken ? STATUS_OK
                        : error_set(err, STATUS_NOMEM, "no memory for the weight table");
}

static bool name_of(const struct weight_table *t, enum tensor_id id, uint32_t layer,
                    char name[NAME_MAX_BYTES])
{
    const struct arch *arch = t->config->arch;
    const char *format = (t->config->gguf ? arch->gguf_names : arch->hf_names)[id];

    if (!format) return false;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* the formats are arch.c's own tables */
    snprintf(name, NAME_MAX_BYTES, format, layer);
#pragma GCC diagnostic pop
    return true;
}

static const struct weight_view *find(const struct weight_table *t, enum tensor_id id,
                                      uint32_t layer)
{
    char name[NAME_MAX_BYTES];

    if (t->dummy || !name_of(t, id, layer, name)) return NULL;
    return weights_find(t->weights, name);
}

bool weight_table_has(const struct weight_table *table, enum tensor_id id, uint32_t layer)
{
    return find(table, id, layer) != NULL;
}

/* weights_at gives views of one array in order, so a view's index is its distance from the first. */
static void mark(struct weight_table *t, const struct weight_view *view)
{
    t->taken[view - weights_at(t->weights, 0)] = 1;
}

void weight_table_skip(struct weight_table *table, enum tensor_id id, uint32_t layer)
{
    const struct weight_view *view = find(table, id, layer);

    if (view) mark(table, view);
}

uint64_t weight_table_rows(const struct weight_table *table, enum tensor_id id)
{
    char name[NAME_MAX_BYTES];
    const struct weight_view *view =
        name_of(table, id, 0, name) ? weights_find(table->weights, name) : NULL;

    return view && view->dim_count == 2 ? view->dims[0] : 0;
}

static const char *shape_text(const struct weight_view *view, char *out, size_t size)
{
    size_t at = 0;

    for (uint32_t i = 0; i < view->dim_count && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)view->dims[i]);
    return out;
}

static enum status check_view(const struct weight_table *t, const struct weight_view *view,
                              const struct weight_cut *cut, bool vector, struct error *err)
{
    const struct dtype_info *info = dtype_info(view->dtype);
    char shape[96];
    bool right =
        vector ? view->dim_count == 1 && view->dims[0] == cut->cols
               : view->dim_count == 2 && view->dims[0] == cut->rows && view->dims[1] == cut->cols;

    if (!right && vector)
        return weights_fault_tensor(t->weights, view->name, err, STATUS_CORRUPT,
                                    "its shape is [%s]; the config asks for [%u]",
                                    shape_text(view, shape, sizeof shape), cut->cols);
    if (!right)
        return weights_fault_tensor(t->weights, view->name, err, STATUS_CORRUPT,
                                    "its shape is [%s]; the config asks for [%u, %u]",
                                    shape_text(view, shape, sizeof shape), cut->rows, cut->cols);
    if (!info->has_values || view->dtype == DTYPE_F8_E4M3 || view->dtype == DTYPE_F8_E5M2)
        return weights_fault_tensor(t->weights, view->name, err, STATUS_UNSUPPORTED,
                                    "its type %s cannot be used for weights here", info->name);
    return STATUS_OK;
}

static uint64_t weight_seed(const struct weight_table *t, const char *name)
{
    return hash_bytes(name, strlen(name), t->dummy_seed);
}

static enum status cut_weight(const char *name, const struct weight_cut *cut, struct plan_weight *w,
                              struct error *err)
{
    const struct dtype_info *info = dtype_info(w->dtype);
    struct shard_span rows = cut->rows_part, cols = cut->cols_part;

    if (!rows.count) rows = (struct shard_span){0, cut->rows};
    if (!cols.count) cols = (struct shard_span){0, cut->cols};
    assert((uint64_t)rows.first + rows.count <= cut->rows);
    assert((uint64_t)cols.first + cols.count <= cut->cols);
    if (cols.first % info->block_elements || cols.count % info->block_elements)
        return error_set(
            err, STATUS_UNSUPPORTED,
            "tensor \"%s\": this rank's columns %u to %u would cut a block of %u %s values", name,
            cols.first, cols.first + cols.count, info->block_elements, info->name);
    w->row_stride = dtype_row_bytes(w->dtype, cut->cols);
    w->rows = rows.count, w->cols = cols.count;
    if (w->data)
        w->data = (const char *)w->data + rows.first * w->row_stride +
                  cols.first / info->block_elements * info->block_bytes;
    else
        w->dummy_seed += ((uint64_t)rows.first << 32) + cols.first; /* ranks differ */
    return STATUS_OK;
}

static bool is_vector(enum tensor_id id)
{
    switch (id) {
    case TENSOR_EMBED:
    case TENSOR_HEAD:
    case TENSOR_Q:
    case TENSOR_K:
    case TENSOR_V:
    case TENSOR_O:
    case TENSOR_GATE:
    case TENSOR_UP:
    case TENSOR_DOWN: return false;
    default: return true;
    }
}

enum status weight_table_take(struct weight_table *table, enum tensor_id id, uint32_t layer,
                              const struct weight_cut *cut, struct plan_weight *out,
                              struct error *err)
{
    char name[NAME_MAX_BYTES];
    const struct weight_view *view = find(table, id, layer);
    bool named = name_of(table, id, layer, name);
    enum status st;

    assert(named);
    *out = (struct plan_weight){0};
    if (!view && !table->dummy)
        return error_set(err, STATUS_NOT_FOUND, "%s: tensor \"%s\" [%u, %u] is missing",
                         weights_path(table->weights), name, cut->rows, cut->cols);
    if (view) {
        st = check_view(table, view, cut, is_vector(id), err);
        if (st) return st;
        mark(table, view);
        out->data = view->data, out->dtype = view->dtype, out->name = view->name;
        out->mapped = true;
    } else {
        out->name = arena_strdup(table->arena, slice_str(name));
        if (!out->name) return error_set(err, STATUS_NOMEM, "no memory for names of weights");
        out->dtype = is_vector(id) ? DTYPE_F32 : table->dummy_dtype;
        if (cut->cols % dtype_info(out->dtype)->block_elements) out->dtype = DTYPE_F16;
        out->dummy_seed = weight_seed(table, name);
    }
    return cut_weight(name, cut, out, err);
}

/* Tables that a loader may compute for itself; old exporters wrote them. */
static bool is_harmless(const char *name)
{
    size_t len = strlen(name), tail = strlen("rotary_emb.inv_freq");

    return len >= tail && strcmp(name + len - tail, "rotary_emb.inv_freq") == 0;
}

enum status weight_table_finish(const struct weight_table *table, struct error *err)
{
    const char *first = NULL;
    uint32_t extra = 0;

    for (uint32_t i = 0; !table->dummy && i < weights_count(table->weights); i++) {
        const char *name = weights_at(table->weights, i)->name;
        if (table->taken[i] || is_harmless(name)) continue;
        if (!first) first = name;
        extra++;
    }
    if (!extra) return STATUS_OK;
    return weights_fault_tensor(table->weights, first, err, STATUS_UNSUPPORTED,
                                "no part of a %s model of %u layers uses it (%u such tensor%s)",
                                table->config->arch->name, table->config->layers, extra,
                                plural(extra));
}
