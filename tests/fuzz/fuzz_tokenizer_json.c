/* fuzz_tokenizer_json.c - hostile tokenizer files are refused or loaded whole, and what loads
 * works.
 *
 * The input: tokenizer.json bytes, then (behind a byte 0x01) a text. The loader reads it through a
 * folder as always. When it loads, the text is encoded with all flags, with ranges from outside,
 * decoded and streamed: ids must lie in the vocabulary, and the streamed pieces joined must equal
 * the decoded text. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/weights.h"
#include "text/detok.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "fuzz-tokenizer-XXXXXX"; /* in the working folder */
static char path[64];

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
}

static void make_folder(void)
{
    if (path[0]) return;
    if (!mkdtemp(folder)) abort();
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    atexit(remove_folder);
}

static void use(const struct tokenizer *tok, struct slice text, unsigned flags)
{
    const struct text_range outside = {text.len / 3, text.len / 2};
    struct token_list ids = {0};
    struct buf whole, pieces;
    struct detok d;
    enum status st = tokenizer_encode(tok, text, flags, &outside, 1, &ids);

    assert(st == STATUS_OK || st == STATUS_LIMIT); /* a pattern's match limit */
    buf_init(&whole, 0);
    buf_init(&pieces, 0);
    detok_init(&d, tok, flags & 1);
    for (size_t i = 0; i < ids.count; i++) {
        assert(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < tokenizer_vocab_size(tok));
        detok_push(&d, ids.ids[i], &pieces);
    }
    detok_flush(&d, &pieces);
    st = tokenizer_decode(tok, ids.ids, ids.count, flags & 1, &whole);
    assert(st == STATUS_OK && slice_eq(buf_slice(&whole), buf_slice(&pieces)));
    buf_fini(&whole);
    buf_fini(&pieces);
    token_list_fini(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *border = memchr(data, 1, size);
    size_t json_len = border ? (size_t)(border - data) : size;
    struct weights *weights = NULL;
    struct tokenizer *tok = NULL;
    struct error err = {0};

    make_folder();
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, json_len, f) != json_len || fclose(f)) abort();
    enum status st = weights_open(folder, WEIGHTS_CONFIG_ONLY, &weights, &err);
    if (!st) st = tokenizer_open(weights, &tok, &err);
    weights_close(weights);
    if (st) assert(!tok && err.message[0]);
    for (unsigned flags = 0; tok && flags < 8; flags++)
        use(tok, border ? slice_of(border + 1, size - json_len - 1) : SLICE("<e> a<|e|>\xff b"),
            flags);
    tokenizer_close(tok);
    return 0;
}
