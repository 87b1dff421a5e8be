#include "text/bpe_chars.h"

#include <stdlib.h>

#include "text/big_table.h"
#include "text/bpe.h"
#include "text/unicode_class.h"

enum { CHARS = 65536, BORDERS = 65536 };

/* The two merges of three symbols; false when they do not end as one. */
static bool join_three(const struct bpe *bpe, const int32_t ids[3], struct bpe_char *out)
{
    uint32_t left_rank, right_rank, rank;
    int32_t left, right;
    bool has_left = bpe_pair(bpe, ids[0], ids[1], &left_rank, &left),
         has_right = bpe_pair(bpe, ids[1], ids[2], &right_rank, &right);

    if (!has_left && !has_right) return false;
    bool first = has_left && (!has_right || left_rank <= right_rank);
    if (!(first ? bpe_pair(bpe, left, ids[2], &rank, &out->id)
                : bpe_pair(bpe, ids[0], right, &rank, &out->id)))
        return false;
    if (first && left_rank > rank) rank = left_rank;
    if (!first && right_rank > rank) rank = right_rank;
    out->rank = rank;
    return true;
}

/* A token that is one character of two or three bytes. */
static void add_char(struct bpe_chars *chars, const struct bpe *bpe, struct slice key)
{
    const uint8_t *p = (const uint8_t *)key.ptr;
    struct bpe_char found;
    int32_t ids[3];
    unsigned len;

    if (key.len < 2 || key.len > 3 || p[0] < (key.len == 2 ? 0xc2 : 0xe0) ||
        p[0] > (key.len == 2 ? 0xdf : 0xef))
        return;
    for (size_t i = 0; i < key.len; i++) {
        if (i && (p[i] & 0xc0) != 0x80) return;
        ids[i] = bpe->byte_id[p[i]];
    }
    if (key.len == 2 ? bpe_pair(bpe, ids[0], ids[1], &found.rank, &found.id)
                     : join_three(bpe, ids, &found))
        chars->chars[utf8_read(p, &len)] = found;
}

static void lower_border(void *ctx, int32_t left, int32_t right, uint32_t rank)
{
    const struct bpe *bpe = ((void **)ctx)[0];
    uint32_t *border = ((void **)ctx)[1];
    struct slice a = token_table_at(&bpe->keys, left), b = token_table_at(&bpe->keys, right);

    if (!a.len || !b.len) return;
    uint32_t *at = &border[(uint8_t)a.ptr[a.len - 1] << 8 | (uint8_t)b.ptr[0]];
    if (rank < *at) *at = rank;
}

void bpe_chars_build(struct bpe_chars *chars, const struct bpe *bpe)
{
    chars->chars = big_table_alloc(CHARS * sizeof *chars->chars);
    chars->border = malloc(BORDERS * sizeof *chars->border);
    if (!chars->chars || !chars->border) {
        bpe_chars_fini(chars);
        return;
    }
    for (uint32_t i = 0; i < BORDERS; i++)
        chars->border[i] = UINT32_MAX;
    bpe_each_pair(bpe, lower_border, (void *[]){(void *)bpe, chars->border});
    for (uint32_t id = 0; id < bpe->keys.count; id++)
        add_char(chars, bpe, token_table_at(&bpe->keys, (int32_t)id));
}

void bpe_chars_fini(struct bpe_chars *chars)
{
    big_table_free(chars->chars, CHARS * sizeof *chars->chars);
    free(chars->border);
    *chars = (struct bpe_chars){0};
}

int32_t bpe_chars_at(const struct bpe_chars *chars, struct slice word, size_t at, unsigned *len)
{
    const uint8_t *p = (const uint8_t *)word.ptr + at, *end = (const uint8_t *)word.ptr + word.len;
    uint32_t c = utf8_read(p, len);

    if (c >= CHARS || p + *len > end) return BPE_NONE;
    const struct bpe_char *found = &chars->chars[c];
    if (!found->id && !found->rank) return BPE_NONE;
    if (at && chars->border[p[-1] << 8 | p[0]] <= found->rank) return BPE_NONE;
    p += *len;
    if (p < end && chars->border[p[-1] << 8 | p[0]] <= found->rank) return BPE_NONE;
    return found->id;
}
