#include "golden_read.h"

#include <stdlib.h>

#include "base/file_map.h"
#include "formats/weights.h"
#include "test.h"

static const char *find(const char *path)
{
    const char *found = test_golden(path);

    if (!found) fail_msg("golden file %s is not there", path);
    return found;
}

static struct weights *open_golden(const char *path)
{
    struct weights *w = NULL;
    struct error err;

    EXPECT_OK_ERR(weights_open(find(path), 0, &w, &err), &err);
    return w;
}

static uint64_t elements(const struct weight_view *view)
{
    uint64_t count = 1;

    for (uint32_t i = 0; i < view->dim_count; i++)
        count *= view->dims[i];
    return count;
}

/* The tensor `name` of an open file, or a failed test. */
static const struct weight_view *tensor(struct weights *w, const char *path, const char *name)
{
    const struct weight_view *view = weights_find(w, name);

    if (!view) fail_msg("golden file %s has no tensor %s", path, name);
    return view;
}

int golden_has(const char *path, const char *name)
{
    struct weights *w = open_golden(path);
    int found = weights_find(w, name) != NULL;

    weights_close(w);
    return found;
}

float *golden_tensor(const char *path, const char *name, size_t *count)
{
    struct weights *w = open_golden(path);
    const struct weight_view *view = tensor(w, path, name);
    float *values = malloc((elements(view) + 1) * sizeof *values);

    if (!dtype_info(view->dtype)->has_values)
        fail_msg("%s of %s is not of a float type", name, path);
    *count = elements(view);
    quant_row_to_f32(view->dtype, view->data, *count, values);
    weights_close(w);
    return values;
}

int64_t *golden_tensor_i64(const char *path, const char *name, size_t *count)
{
    struct weights *w = open_golden(path);
    const struct weight_view *view = tensor(w, path, name);
    const unsigned char *p = view->data;
    unsigned width = dtype_info(view->dtype)->block_bytes, unused = 64 - 8 * width;
    int64_t *values = malloc((elements(view) + 1) * sizeof *values);

    if (view->dtype < DTYPE_I8 || view->dtype > DTYPE_BOOL)
        fail_msg("%s of %s is not of an integer type", name, path);
    *count = elements(view);
    for (size_t i = 0; i < *count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, p + i * width, width);
        values[i] = view->dtype <= DTYPE_I64 ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    }
    weights_close(w);
    return values;
}

int32_t *golden_ids(const char *path, const char *name, size_t *count)
{
    int64_t *wide = golden_tensor_i64(path, name, count);
    int32_t *ids = malloc((*count + 1) * sizeof *ids);

    for (size_t i = 0; i < *count; i++)
        ids[i] = (int32_t)wide[i];
    free(wide);
    return ids;
}

/* --- .npy: magic, version, header length, a Python dict as text, data --- */

static void parse_header(const char *path, const char *header, struct npy *out)
{
    const char *descr = strstr(header, "'descr': '"), *shape = strstr(header, "'shape': (");
    char order;

    if (!descr || !shape || !strstr(header, "'fortran_order': False") ||
        sscanf(descr, "'descr': '%c%c%u'", &order, &out->kind, &out->item_bytes) != 3 ||
        (order != '<' && order != '|') || !strchr("fiub", out->kind))
        fail_msg("%s has a header that this reader does not know: %s", path, header);
    out->count = 1;
    for (shape += strlen("'shape': ("); *shape != ')' && out->dim_count < 8;) {
        char *end;
        out->dims[out->dim_count] = strtoull(shape, &end, 10);
        if (end == shape) fail_msg("%s has no sound shape: %s", path, header);
        out->count *= out->dims[out->dim_count++];
        shape = end + strspn(end, ", ");
    }
}

void npy_read(const char *path, struct npy *out)
{
    char *bytes, header[1024];
    uint64_t len, header_len, at;
    struct error err;

    *out = (struct npy){0};
    EXPECT_OK_ERR(file_read(find(path), 1 << 30, &bytes, &len, &err), &err);
    if (len < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0) fail_msg("%s is no .npy file", path);
    at = bytes[6] == 1 ? 10 : 12;
    header_len = (unsigned char)bytes[8] | (uint64_t)(unsigned char)bytes[9] << 8;
    if (header_len >= sizeof header || at + header_len > len) fail_msg("%s is cut short", path);
    memcpy(header, bytes + at, header_len);
    header[header_len] = '\0';
    parse_header(path, header, out);
    if (len - at - header_len != out->count * out->item_bytes) fail_msg("%s is cut short", path);
    out->data = malloc(out->count * out->item_bytes + 1);
    memcpy(out->data, bytes + at + header_len, out->count * out->item_bytes);
    free(bytes);
}

void npy_free(struct npy *npy)
{
    free(npy->data);
    *npy = (struct npy){0};
}
