#include "sched/sequence.h"

#include <assert.h>

bool sequence_needs_all(const struct sequence *seq)
{
    return seq->score_prompt || seq->preemptions >= SEQ_PREEMPTIONS_MAX;
}

enum { FAST_MOST = 8, NORMAL_MOST = 64 };

enum seq_class sequence_class_of(uint32_t tokens)
{
    return tokens <= FAST_MOST ? CLASS_FAST : tokens <= NORMAL_MOST ? CLASS_NORMAL : CLASS_SLOW;
}

enum seq_class sequence_class(const struct sequence *seq)
{
    return sequence_class_of(seq->max_new - seq->sampled_planned);
}

uint32_t sequence_kv_tokens(const struct sequence *seq)
{
    return seq->max_new ? seq->prompt_count + seq->max_new - 1 : seq->prompt_count - 1;
}

int32_t sequence_token_at(const struct sequence *seq, uint32_t position)
{
    if (position < seq->prompt_count) return seq->prompt[position];
    uint32_t index = position - seq->prompt_count;
    if (index < seq->sampled_known) return seq->sampled[index];
    /* TOKEN_OF names the latest sampled token only */
    assert(index + 1 == seq->sampled_planned);
    return TOKEN_OF(seq->slot, 0);
}

void sequence_append(struct sequence *seq, int32_t token)
{
    assert(seq->sampled_known < seq->sampled_planned && seq->sampled_planned <= seq->max_new);
    seq->sampled[seq->sampled_known++] = token;
}

void sequence_trim(struct sequence *seq, uint32_t count)
{
    if (count < seq->sampled_known) seq->sampled_known = count;
}

static bool has_penalty(const struct step_open *open)
{
    return open->repetition_penalty != 1 || open->frequency_penalty != 0 ||
           open->presence_penalty != 0;
}

uint32_t sequence_open_ids(const struct sequence *seq)
{
    uint32_t ids = seq->open.banned_count;

    if (seq->open.repetition_penalty != 1) ids += seq->prompt_count;
    if (has_penalty(&seq->open)) ids += seq->sampled_known;
    return ids;
}

const char *seq_hold_name(enum seq_hold hold)
{
    static const char *const names[HOLDS] = {"none", "window", "slots", "blocks", "rows", "turn"};

    return names[hold];
}
