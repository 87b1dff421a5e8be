#include "text/spm.h"

#include <stdlib.h>
#include <string.h>

static const char SPACE_MARK[] = "\xe2\x96\x81"; /* U+2581 */

struct scored {
    float score;
    int32_t id;
};

static int better_first(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;

    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Calls bpe_add_pair for every way to cut the token in two tokens; with `add` false only counts
 * them. */
static uint64_t cuts_of(struct bpe *bpe, int32_t id, uint32_t rank, bool add)
{
    struct slice key = token_table_at(&bpe->keys, id);
    uint64_t count = 0;

    for (size_t cut = 1; cut < key.len; cut++) {
        if (((uint8_t)key.ptr[cut] & 0xc0) == 0x80) continue;
        int32_t left = bpe_find(bpe, slice_of(key.ptr, cut));
        int32_t right =
            left == BPE_NONE ? BPE_NONE : bpe_find(bpe, slice_of(key.ptr + cut, key.len - cut));
        if (right == BPE_NONE) continue;
        count++;
        if (add) bpe_add_pair(bpe, left, right, id, rank);
    }
    return count;
}

enum status spm_merges_of_scores(struct bpe *bpe, const float *scores)
{
    const uint32_t size = bpe->keys.count;
    struct scored *order = malloc((size + (size_t)1) * sizeof *order);
    uint32_t count = 0, rank = 0;
    uint64_t pairs = 0;
    enum status st;

    if (!order) return STATUS_NOMEM;
    for (uint32_t id = 0; id < size; id++)
        if (bpe_find(bpe, token_table_at(&bpe->keys, (int32_t)id)) == (int32_t)id)
            order[count++] = (struct scored){scores[id], (int32_t)id};
    qsort(order, count, sizeof *order, better_first);
    for (uint32_t i = 0; i < count; i++)
        pairs += cuts_of(bpe, order[i].id, 0, false);
    st = bpe_reserve_pairs(bpe, pairs);
    for (uint32_t i = 0; !st && i < count; i++) {
        if (i && order[i].score != order[i - 1].score)
            rank++; /* equal scores: the leftmost first */
        cuts_of(bpe, order[i].id, rank, true);
    }
    free(order);
    return st;
}

static bool joins_to_space(const struct bpe *bpe, int32_t merged)
{
    struct slice key = token_table_at(&bpe->keys, merged);

    for (size_t i = 1; i + 3 <= key.len; i++)
        if (memcmp(key.ptr + i, SPACE_MARK, 3) == 0 &&
            (i < 3 || memcmp(key.ptr + i - 3, SPACE_MARK, 3) != 0))
            return true;
    return false;
}

static bool any_piece_joins(const struct bpe *bpe)
{
    for (uint32_t i = 0; i < bpe->keys.count; i++)
        if (joins_to_space(bpe, (int32_t)i) &&
            bpe_find(bpe, token_table_at(&bpe->keys, (int32_t)i)) == (int32_t)i)
            return true;
    return false;
}

void spm_cut_at_spaces(struct tokenizer *tok)
{
    if (tok->pretok.kind != PRETOK_WHOLE || tok->byte_level) return;
    /* An unknown U+2581 could join the unknown character in front of it to one <unk>. */
    if (bpe_find(&tok->bpe, slice_str(SPACE_MARK)) == BPE_NONE) return;
    if (!(tok->unigram.scores ? any_piece_joins(&tok->bpe)
                              : bpe_any_merge(&tok->bpe, joins_to_space)))
        tok->pretok.kind = PRETOK_SPM_WORDS;
}
