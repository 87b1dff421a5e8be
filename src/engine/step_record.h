/* step_record.h - what each of the last steps that were computed was asked, and when it ran: for whoever fits a model of the device (bench/device_fit.h).
 *
 * A ring that the engine thread alone writes and never waits for; a reader takes copies and leaves out those that may have been written over
 * meanwhile. Memory: 1 MiB, touched as steps come. Thread: put on the engine thread; copy on any. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum { STEP_RECORDS_MAX = 16384, STEP_RECORD_WORDS = 8 };

struct step_record {
    uint64_t seq_no;
    int64_t planned_ns, started_ns,
        ended_ns;                      /* CLOCK_MONOTONIC; started and ended as the device says */
    uint32_t rows, sequences, prompts; /* prompts: of the sequences, with rows of their prompt */
    uint32_t outputs;                  /* rows with logits */
    uint64_t kv_tokens;                /* positions that attention reads, once for each sequence */
    uint64_t pairs;                    /* sched/cost_model.h */
};

struct step_records {
    _Atomic uint64_t begun, done; /* ever put */
    _Atomic uint64_t words[STEP_RECORDS_MAX][STEP_RECORD_WORDS];
};

void step_records_put(struct step_records *records, const struct step_record *record);
/* The last ones, oldest first; out: [STEP_RECORDS_MAX]. Returns how many. */
uint32_t step_records_copy(const struct step_records *records, struct step_record *out);
