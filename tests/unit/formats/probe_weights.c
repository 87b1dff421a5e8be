/* probe_weights.c - opens each path; prints keys and tensors, or the error. Status 0 when all opened.
 * Used by tests/cases (malformed files) and to compare with other readers by hand. */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/hash.h"
#include "formats/weights.h"

static void print_pair(void *ctx, const char *key, const char *value_text)
{
    (void)ctx;
    printf("%s = %s\n", key, value_text);
}

static void print_tensor(const struct weight_view *view)
{
    printf("%s %s", view->name, dtype_info(view->dtype)->name);
    for (uint32_t i = 0; i < view->dim_count; i++)
        printf("%c%" PRIu64, i ? 'x' : ' ', view->dims[i]);
    printf(" %" PRIu64 " bytes, hash %016" PRIx64 "\n", view->bytes,
           hash_bytes(view->data, view->bytes, 0));
}

static int probe(const char *path)
{
    int64_t start = clock_mono_ns();
    struct weights *w;
    struct error err;

    if (weights_open(path, 0, &w, &err)) {
        printf("error (%s): %s\n", status_name(err.status), err.message);
        return 1;
    }
    fprintf(stderr, "%s: %u tensors, %" PRIu64 " bytes, opened in %.3f ms\n", path,
            weights_count(w), weights_bytes(w), (double)(clock_mono_ns() - start) * 1e-6);
    weights_meta_each(w, print_pair, NULL);
    for (uint32_t i = 0; i < weights_count(w); i++)
        print_tensor(weights_at(w, i));
    weights_close(w);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 1; i < argc; i++)
        failed |= probe(argv[i]);
    return failed;
}
