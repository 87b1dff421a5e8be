/* test_step_record.c - a copy of the step records holds whole records only, oldest first, and of those still there all.
 * Method: records whose every field follows from their number; copies while a writer laps the ring many times, each record of them checked. */
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/step_record.h"

static struct step_record made(uint64_t n)
{
    return (struct step_record){.seq_no = n,
                                .planned_ns = (int64_t)(n * 3),
                                .started_ns = (int64_t)(n * 5),
                                .ended_ns = (int64_t)(n * 7),
                                .rows = (uint32_t)(n * 11),
                                .sequences = (uint32_t)(n * 13),
                                .prompts = (uint32_t)(n * 17),
                                .outputs = (uint32_t)(n * 19),
                                .kv_tokens = n * 23,
                                .pairs = n * 29};
}

static void expect_run(const struct step_record *got, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct step_record want = made(got[0].seq_no + i);

        if (memcmp(&got[i], &want, sizeof want) != 0)
            fail_msg("record %u of %u is not number %llu", i, count,
                     (unsigned long long)want.seq_no);
    }
}

TEST(the_last_ones_are_told_oldest_first)
{
    struct step_records *records = calloc(1, sizeof *records);
    struct step_record *out = calloc(STEP_RECORDS_MAX, sizeof *out), r;

    EXPECT_EQ(step_records_copy(records, out), 0);
    for (uint64_t n = 1; n <= 2 * STEP_RECORDS_MAX + 5; n++) {
        r = made(n);
        step_records_put(records, &r);
        if (n != 3 && n != STEP_RECORDS_MAX) continue;
        EXPECT_EQ(step_records_copy(records, out), n);
        EXPECT_EQ(out[0].seq_no, 1);
        expect_run(out, (uint32_t)n);
    }
    EXPECT_EQ(step_records_copy(records, out), STEP_RECORDS_MAX);
    EXPECT_EQ(out[0].seq_no, STEP_RECORDS_MAX + 6);
    expect_run(out, STEP_RECORDS_MAX);
    free(out);
    free(records);
}

struct writer {
    struct step_records *records;
    _Atomic int stop;
};

static void *write_on(void *arg)
{
    struct writer *w = arg;

    for (uint64_t n = 1; !atomic_load(&w->stop); n++) {
        struct step_record r = made(n);
        step_records_put(w->records, &r);
    }
    return NULL;
}

TEST(what_is_written_over_meanwhile_is_left_out)
{
    struct writer w = {.records = calloc(1, sizeof *w.records)};
    struct step_record *out = calloc(STEP_RECORDS_MAX, sizeof *out);
    pthread_t thread;

    EXPECT_EQ(pthread_create(&thread, NULL, write_on, &w), 0);
    while (!atomic_load(&w.records->done))
        sched_yield();
    for (int i = 0; i < 200; i++) {
        uint32_t count = step_records_copy(w.records, out);

        EXPECT_TRUE(count <= STEP_RECORDS_MAX);
        expect_run(out, count);
    }
    atomic_store(&w.stop, 1);
    pthread_join(thread, NULL);
    EXPECT_TRUE(step_records_copy(w.records, out) > 0);
    free(out);
    free(w.records);
}
