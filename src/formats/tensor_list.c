#include "formats/tensor_list.h"

#include <stdlib.h>

#include "base/log.h"

void tensor_list_fini(struct tensor_list *list)
{
    free(list->views);
    free(list->places);
    name_table_fini(&list->names);
    arena_fini(&list->name_bytes);
    *list = (struct tensor_list){0};
}

static enum status grow(struct tensor_list *list)
{
    uint32_t capacity = list->capacity ? list->capacity * 2 : 256;
    struct weight_view *views = realloc(list->views, capacity * sizeof *views);
    struct tensor_place *places;

    if (!views) return STATUS_NOMEM;
    list->views = views;
    places = realloc(list->places, capacity * sizeof *places);
    if (!places) return STATUS_NOMEM;
    list->places = places;
    list->capacity = capacity;
    return STATUS_OK;
}

static enum status name_taken(const struct tensor_list *list, uint32_t number,
                              struct tensor_place place, struct error *err)
{
    const struct tensor_place *other = &list->places[number];
    char quoted[160];

    return error_set(
        err, STATUS_CORRUPT,
        "%s: offset %llu: tensor %s is there a second time (first in %s at offset %llu)",
        place.file, (unsigned long long)place.entry_offset,
        log_quote(list->names.names[number], quoted, sizeof quoted), other->file,
        (unsigned long long)other->entry_offset);
}

enum status tensor_list_add(struct tensor_list *list, struct slice name,
                            const struct weight_view *view, struct tensor_place place,
                            struct error *err)
{
    enum status st = list->count == list->capacity ? grow(list) : STATUS_OK;
    char *copy = st ? NULL : arena_strdup(&list->name_bytes, name);
    uint32_t number;

    if (!copy) return error_set(err, STATUS_NOMEM, "no memory for the tensors of %s", place.file);
    if (list->count == TENSOR_COUNT_MAX)
        return error_set(err, STATUS_LIMIT, "%s: a model of more than %d tensors", place.file,
                         TENSOR_COUNT_MAX);
    st = name_table_add(&list->names, slice_of(copy, name.len), &number);
    if (st == STATUS_INVALID) return name_taken(list, number, place, err);
    if (st) return error_set(err, st, "no memory for the tensors of %s", place.file);
    list->views[number] = *view;
    list->views[number].name = copy;
    list->places[number] = place;
    list->bytes += view->bytes;
    list->count++;
    return STATUS_OK;
}

static int compare_data(const void *a, const void *b, void *views)
{
    const struct weight_view *x = (const struct weight_view *)views + *(const uint32_t *)a,
                             *y = (const struct weight_view *)views + *(const uint32_t *)b;
    uintptr_t dx = (uintptr_t)x->data, dy = (uintptr_t)y->data;

    if (dx != dy) return dx < dy ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

enum status tensor_list_by_data(const struct tensor_list *list, uint32_t first, uint32_t **order)
{
    uint32_t count = list->count - first;

    *order = malloc((count + 1) * sizeof **order);
    if (!*order) return STATUS_NOMEM;
    for (uint32_t i = 0; i < count; i++)
        (*order)[i] = first + i;
    if (count) qsort_r(*order, count, sizeof **order, compare_data, list->views);
    return STATUS_OK;
}

enum status tensor_list_find_overlap(const struct tensor_list *list, uint32_t first,
                                     uint32_t pair[2])
{
    uint32_t *order;
    enum status st = tensor_list_by_data(list, first, &order);

    if (st) return st;
    for (uint32_t i = 1; !st && i < list->count - first; i++) {
        const struct weight_view *before = &list->views[order[i - 1]],
                                 *view = &list->views[order[i]];
        if ((uintptr_t)view->data - (uintptr_t)before->data >= before->bytes) continue;
        pair[0] = order[i - 1];
        pair[1] = order[i];
        st = STATUS_CORRUPT;
    }
    free(order);
    return st;
}

enum status tensor_list_fail_overlap(const struct tensor_list *list, const uint32_t pair[2],
                                     struct error *err)
{
    uint32_t a = pair[0], b = pair[1];
    char first[160], second[160];

    return error_set(
        err, STATUS_CORRUPT,
        "%s: tensor %s (described at offset %llu) and tensor %s (at offset %llu) share bytes",
        list->places[a].file, log_quote(list->names.names[a], first, sizeof first),
        (unsigned long long)list->places[a].entry_offset,
        log_quote(list->names.names[b], second, sizeof second),
        (unsigned long long)list->places[b].entry_offset);
}

enum status tensor_size(struct weight_view *view, const char **why)
{
    uint64_t rows = 1, row_bytes = view->dims[view->dim_count - 1], cols = row_bytes;
    const struct dtype_info *info = dtype_info(view->dtype);
    bool wraps = false;

    for (uint32_t i = 0; i + 1 < view->dim_count; i++)
        wraps |= __builtin_mul_overflow(rows, view->dims[i], &rows);
    wraps |= __builtin_mul_overflow(cols / info->block_elements, (uint64_t)info->block_bytes,
                                    &row_bytes);
    wraps |= __builtin_mul_overflow(rows, row_bytes, &view->bytes);
    *why = wraps ? "its dimensions multiply to more bytes than 64 bits can count"
                 : "its rows are no whole number of blocks of its type";
    return wraps || cols % info->block_elements ? STATUS_CORRUPT : STATUS_OK;
}
