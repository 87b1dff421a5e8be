#include "text/unigram.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode_class.h"

static const double UNK_PENALTY = 10.0;

/* The best way to the byte behind which it stands. */
struct unigram_node {
    double score;
    uint32_t start; /* of the last piece; UINT32_MAX: no way yet */
    int32_t id;     /* of the last piece */
};

/* --- the trie --- */

struct keyed {
    struct slice key;
    int32_t id;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    size_t len = x->key.len < y->key.len ? x->key.len : y->key.len;
    int order = memcmp(x->key.ptr, y->key.ptr, len);

    return order ? order : (x->key.len > y->key.len) - (x->key.len < y->key.len);
}

/* Bytes that the two begin with alike. */
static size_t common(struct slice a, struct slice b)
{
    size_t n = 0;

    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n])
        n++;
    return n;
}

/* The usable pieces in the order of their bytes; *nodes: how many nodes their trie has beside the root. NULL: no memory. */
static struct keyed *sorted_pieces(const struct bpe *bpe, size_t *count, uint64_t *nodes)
{
    struct keyed *pieces = malloc((bpe->keys.count + (size_t)1) * sizeof *pieces);

    *count = *nodes = 0;
    if (!pieces) return NULL;
    for (uint32_t id = 0; id < bpe->keys.count; id++) {
        struct slice key = token_table_at(&bpe->keys, (int32_t)id);
        if (bpe_find(bpe, key) == (int32_t)id)
            pieces[(*count)++] = (struct keyed){key, (int32_t)id};
    }
    qsort(pieces, *count, sizeof *pieces, by_key);
    for (size_t i = 0; i < *count; i++)
        *nodes += pieces[i].key.len - (i ? common(pieces[i - 1].key, pieces[i].key) : 0);
    return pieces;
}

static void add_piece(struct bpe *bpe, struct keyed piece, int32_t *next_node)
{
    int32_t node = 0, child;
    uint32_t rank;

    for (size_t i = 0; i < piece.key.len; i++, node = child) {
        const int32_t byte = (uint8_t)piece.key.ptr[i];
        bool known = bpe_pair(bpe, node, byte, &rank, &child);
        if (!known) child = (*next_node)++;
        if (i + 1 == piece.key.len)
            bpe_add_pair(bpe, node, byte, child, (uint32_t)piece.id);
        else if (!known)
            bpe_add_pair(bpe, node, byte, child, UNIGRAM_NO_PIECE);
    }
}

enum status unigram_build(struct unigram *unigram, struct bpe *bpe, double *scores, double low)
{
    size_t count;
    uint64_t nodes;
    int32_t next_node = 1;

    unigram->scores = scores;
    struct keyed *pieces = sorted_pieces(bpe, &count, &nodes);
    if (!pieces) return STATUS_NOMEM;
    enum status st = bpe_reserve_pairs(bpe, nodes);
    for (size_t i = 0; !st && i < count; i++)
        add_piece(bpe, pieces[i], &next_node);
    unigram->unk_score = low - UNK_PENALTY;
    free(pieces);
    return st;
}

void unigram_fini(struct unigram *unigram)
{
    free(unigram->scores);
    unigram->scores = NULL;
}

/* --- encoding --- */

static void offer(struct unigram_node *to, double score, size_t start, int32_t id)
{
    if (to->start != UINT32_MAX && score <= to->score) return;
    *to = (struct unigram_node){score, (uint32_t)start, id};
}

/* Every piece that begins at `at` offers its end a way. */
static void extend(const struct unigram *unigram, const struct bpe *bpe, struct slice word,
                   struct unigram_node *best, size_t at)
{
    const double score = best[at].score;
    int32_t node = 0, child;
    bool single = false; /* a piece is this one character */
    unsigned char_len;
    uint32_t id;

    utf8_read((const uint8_t *)word.ptr + at, &char_len);
    for (size_t i = at; i < word.len; i++, node = child) {
        if (!bpe_pair(bpe, node, (uint8_t)word.ptr[i], &id, &child)) break;
        if (id == UNIGRAM_NO_PIECE) continue;
        offer(&best[i + 1], score + unigram->scores[id], at, (int32_t)id);
        single = single || i + 1 - at == char_len;
    }
    if (!single) offer(&best[at + char_len], score + unigram->unk_score, at, bpe->unk);
}

/* The ids of a run of unknown characters, which together may be a piece after all. */
static enum status push_unknown(const struct bpe *bpe, struct slice text, struct token_list *out)
{
    int32_t id = bpe_find(bpe, text), *at = token_list_reserve(out, text.len + 1);
    size_t count = 0;

    if (!at) return STATUS_NOMEM;
    for (; id == BPE_NONE && bpe->byte_fallback && count < text.len; count++) {
        at[count] = bpe->fallback_id[(uint8_t)text.ptr[count]];
        if (at[count] == BPE_NONE) break;
    }
    if (!count || count < text.len) {
        at[0] = id == BPE_NONE ? bpe->unk : id;
        count = 1;
    }
    out->count += count;
    return STATUS_OK;
}

/* Turns the way to the end of the word, which is read backwards, into ids. */
static enum status push_way(const struct bpe *bpe, struct slice word, struct unigram_node *best,
                            struct token_list *out)
{
    enum status st = STATUS_OK;
    uint32_t end = (uint32_t)word.len, next = UINT32_MAX, start;

    /* Turn the links round: best[start].start becomes the end of the piece that begins there. */
    for (; end; end = start) {
        start = best[end].start;
        best[end].start = next;
        next = end;
        if (start) continue;
        best[0].start = next;
    }
    for (uint32_t at = 0; !st && at < word.len; at = end) {
        end = best[at].start;
        int32_t id = best[end].id;
        if (id != bpe->unk) {
            st = token_list_push(out, id);
            continue;
        }
        while (end < word.len && best[best[end].start].id == bpe->unk)
            end = best[end].start;
        st = push_unknown(bpe, slice_of(word.ptr + at, end - at), out);
    }
    return st;
}

enum status unigram_encode(const struct unigram *unigram, const struct bpe *bpe,
                           struct bpe_work *work, struct slice word, struct token_list *out)
{
    struct unigram_node *best = bpe_work_bytes(work, (word.len + 1) * sizeof *best);
    unsigned len;

    if (!best) return STATUS_NOMEM;
    for (size_t i = 0; i <= word.len; i++)
        best[i] = (struct unigram_node){0, UINT32_MAX, BPE_NONE};
    for (size_t at = 0; at < word.len; at += len) {
        utf8_read((const uint8_t *)word.ptr + at, &len);
        extend(unigram, bpe, word, best, at);
    }
    return push_way(bpe, word, best, out);
}
