#include "engine/step_record.h"

/* Two counts below 2^32 in one word. */
static uint64_t pair_of(uint32_t high, uint32_t low)
{
    return (uint64_t)high << 32 | low;
}

void step_records_put(struct step_records *records, const struct step_record *r)
{
    uint64_t at = atomic_load_explicit(&records->done, memory_order_relaxed);
    const uint64_t words[STEP_RECORD_WORDS] = {
        r->seq_no,
        (uint64_t)r->planned_ns,
        (uint64_t)r->started_ns,
        (uint64_t)r->ended_ns,
        pair_of(r->rows, r->sequences),
        pair_of(r->prompts, r->outputs),
        r->kv_tokens,
        r->pairs,
    };

    /* Whoever sees a word of it (acquire) sees this count too, and so that what stood there is gone. */
    atomic_store_explicit(&records->begun, at + 1, memory_order_relaxed);
    for (int i = 0; i < STEP_RECORD_WORDS; i++)
        atomic_store_explicit(&records->words[at % STEP_RECORDS_MAX][i], words[i],
                              memory_order_release);
    atomic_store_explicit(&records->done, at + 1, memory_order_release);
}

static void take(const struct step_records *records, uint64_t at, struct step_record *out)
{
    uint64_t w[STEP_RECORD_WORDS];

    for (int i = 0; i < STEP_RECORD_WORDS; i++)
        w[i] =
            atomic_load_explicit(&records->words[at % STEP_RECORDS_MAX][i], memory_order_acquire);
    *out = (struct step_record){
        .seq_no = w[0],
        .planned_ns = (int64_t)w[1],
        .started_ns = (int64_t)w[2],
        .ended_ns = (int64_t)w[3],
        .rows = (uint32_t)(w[4] >> 32),
        .sequences = (uint32_t)w[4],
        .prompts = (uint32_t)(w[5] >> 32),
        .outputs = (uint32_t)w[5],
        .kv_tokens = w[6],
        .pairs = w[7],
    };
}

uint32_t step_records_copy(const struct step_records *records, struct step_record *out)
{
    uint64_t end = atomic_load_explicit(&records->done, memory_order_acquire), begun;
    uint64_t first = end > STEP_RECORDS_MAX ? end - STEP_RECORDS_MAX : 0, whole;
    uint32_t taken = 0;

    for (uint64_t at = first; at < end; at++)
        take(records, at, &out[at - first]);
    begun = atomic_load_explicit(&records->begun, memory_order_relaxed);
    whole = begun > STEP_RECORDS_MAX ? begun - STEP_RECORDS_MAX : 0;
    for (uint64_t at = whole > first ? whole : first; at < end; at++)
        out[taken++] = out[at - first];
    return taken;
}
