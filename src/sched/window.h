/* window.h - how long a waiting prompt may be held back so that more can be admitted with it.
 *
 * With arrivals at rate r a window of W brings r * W more; it is worth nothing while that is less than one, and need be no longer than
 * fills the batch:  W = 0 where r * wait_max < 1, else min(wait_max, batch / r, first token / 50).  It opens on the first of
 *   IDLE        the step would be empty: a lone request starts at once
 *   SIZE        as many wait as there is room for
 *   AGE         the oldest would have waited for W and longer after the step that is being planned
 *   THROUGHPUT  prompts are computed at less than 80 % of the target rate, where one is set
 * Decoding sequences keep steps coming and a step carries prompts and decoding rows alike, so that holding back spares little: a ragged end.
 * W is therefore no more than a fiftieth of what first tokens have taken of late, so that it is never felt (P99 at most 1.02 times that of
 * none: tests/unit/sched/test_policy, docs/scheduling.md), and where steps are longer than W nobody is held back.
 * A fixed window (to compare with) holds everybody back for wait_max, or until the batch is full, idle or not.
 * r is an exponential average over about a second. Pure numbers; the time is an argument. Engine thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum window_trigger { WINDOW_IDLE, WINDOW_SIZE, WINDOW_AGE, WINDOW_THROUGHPUT, WINDOW_TRIGGERS };

struct window {
    int64_t wait_max_ns;   /* 0: never held back */
    bool fixed;            /* everybody is held back for wait_max_ns */
    double first_token_ns; /* what first tokens take, the mean of late; 0: not known */
    double target;         /* prompt tokens a second; 0: none */
    double arrivals;       /* a second, as of arrival_ns */
    double prompt_tokens;  /* computed a second, as of computed_ns */
    int64_t arrival_ns, computed_ns;
    int64_t length_ns; /* W as last decided */
    uint64_t fired[WINDOW_TRIGGERS];
};

void window_init(struct window *window, int64_t wait_max_ns, double target_tokens_per_s);
void window_arrival(struct window *window, int64_t now_ns);
void window_computed(struct window *window, uint32_t prompt_tokens, int64_t now_ns);
/* A first token is on its way, so long after its sequence came. */
void window_first_token(struct window *window, int64_t took_ns);
double window_rate(const struct window *window, int64_t now_ns);
/* W for a batch of that many. */
int64_t window_length_ns(const struct window *window, uint32_t batch, int64_t now_ns);
/* Whether waiting sequences are admitted now. `room`: sequences that could be admitted at most; `step_ns`: when the
 * next chance comes. */
bool window_opens(struct window *window, bool idle, uint32_t waiting, uint32_t room,
                  int64_t oldest_ns, int64_t now_ns, int64_t step_ns);
