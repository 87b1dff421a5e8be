/* test_output.c - the ring loses, doubles and reorders nothing; a bell that was rung is heard.
 * Method: a producer and a consumer thread over small rings, the consumer asleep on the bell's eventfd between takes: a lost bell
 * would hang it. */
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/notify.h"
#include "engine/output.h"
#include "engine/request.h"

TEST(a_ring_is_full_at_its_capacity_and_empty_at_none)
{
    struct output_ring *ring = output_ring_create(3, 2);
    struct output out = {.kind = OUTPUT_TOKEN, .top_count = 2, .tops = {{7, -1}, {8, -2}}};

    EXPECT_EQ(output_ring_capacity(ring), 4); /* rounded up */
    EXPECT_EQ(output_ring_pop(ring, &out), STATUS_EMPTY);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            out.token = i;
            EXPECT_OK(output_ring_push(ring, &out));
        }
        EXPECT_EQ(output_ring_push(ring, &out), STATUS_FULL);
        EXPECT_EQ(output_ring_free(ring), 0);
        for (int i = 0; i < 4; i++) {
            memset(&out, 0xff, sizeof out);
            EXPECT_OK(output_ring_pop(ring, &out));
            EXPECT_EQ(out.token, i);
            EXPECT_EQ(out.top_count, 2);
            EXPECT_EQ(out.tops[1].id, 8);
        }
    }
    output_ring_destroy(ring);
    EXPECT_TRUE(output_ring_create(0, 0) == NULL);
    EXPECT_TRUE(output_ring_create(4, 21) == NULL);
}

struct pipe {
    struct request *requests[4];
    struct output_bell bell;
    struct notify *wake;
    uint32_t count;
};

static void *produce(void *arg)
{
    struct pipe *p = arg;
    uint32_t sent[4] = {0}, done = 0;

    while (done < 4) {
        uint32_t seen = notify_count(p->wake), pushed = 0;
        done = 0;
        for (int i = 0; i < 4; i++) {
            struct output out = {.kind = OUTPUT_TOKEN, .index = sent[i]};
            if (sent[i] == p->count) {
                done++;
            } else if (output_ring_push(p->requests[i]->ring, &out) == STATUS_OK) {
                sent[i]++;
                pushed++;
                output_bell_list(&p->bell, p->requests[i]);
            } else {
                output_ring_want(p->requests[i]->ring);
                if (output_ring_free(p->requests[i]->ring)) pushed++;
            }
        }
        output_bell_ring(&p->bell);
        if (!pushed && done < 4) notify_wait(p->wake, seen, -1); /* a lost wake-up would hang */
    }
    return NULL;
}

TEST(threads_pass_outputs_without_loss_or_lost_wakeups)
{
    struct pipe p = {.count = test_long() ? 500000 : 20000};
    uint32_t got[4] = {0}, left = 4;
    pthread_t thread;

    EXPECT_OK(output_bell_init(&p.bell));
    p.wake = notify_create();
    for (int i = 0; i < 4; i++) {
        p.requests[i] = request_create(0);
        p.requests[i]->ring = output_ring_create(1u << i, 0);
        p.requests[i]->frontend = &got[i];
        output_ring_attach(p.requests[i]->ring, p.wake);
    }
    pthread_create(&thread, NULL, produce, &p);
    while (left > 0) {
        struct pollfd fd = {p.bell.event_fd, POLLIN, 0};
        uint64_t rings;
        struct request *next;

        EXPECT_EQ(poll(&fd, 1, 20000), 1);
        EXPECT_EQ(read(p.bell.event_fd, &rings, sizeof rings), (ssize_t)sizeof rings);
        for (struct request *r = output_bell_take(&p.bell); r; r = next) {
            struct output out;
            uint32_t *count = r->frontend;

            next = output_bell_next(r);
            while (output_ring_pop(r->ring, &out) == STATUS_OK) {
                EXPECT_EQ(out.index, *count);
                if (++*count == p.count) left--;
            }
            request_unref(r);
        }
    }
    pthread_join(thread, NULL);
    output_bell_fini(&p.bell);
    for (int i = 0; i < 4; i++)
        request_unref(p.requests[i]);
    notify_unref(p.wake);
}
