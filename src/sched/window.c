#include "sched/window.h"

#include <math.h>

static const double memory_s = 1, first_token_part = 0.02, news = 1.0 / 32;

void window_init(struct window *window, int64_t wait_max_ns, double target_tokens_per_s)
{
    *window = (struct window){.wait_max_ns = wait_max_ns, .target = target_tokens_per_s};
}

static double faded(double rate, int64_t since_ns, int64_t now_ns)
{
    return now_ns > since_ns ? rate * exp(-(double)(now_ns - since_ns) / 1e9 / memory_s) : rate;
}

void window_arrival(struct window *w, int64_t now_ns)
{
    w->arrivals = faded(w->arrivals, w->arrival_ns, now_ns) + 1 / memory_s;
    w->arrival_ns = now_ns;
}

void window_computed(struct window *w, uint32_t prompt_tokens, int64_t now_ns)
{
    w->prompt_tokens = faded(w->prompt_tokens, w->computed_ns, now_ns) + prompt_tokens / memory_s;
    w->computed_ns = now_ns;
}

void window_first_token(struct window *w, int64_t took_ns)
{
    w->first_token_ns += (w->first_token_ns > 0 ? news : 1) * ((double)took_ns - w->first_token_ns);
}

double window_rate(const struct window *w, int64_t now_ns)
{
    return faded(w->arrivals, w->arrival_ns, now_ns);
}

int64_t window_length_ns(const struct window *w, uint32_t batch, int64_t now_ns)
{
    double rate = window_rate(w, now_ns), wait_s = (double)w->wait_max_ns / 1e9;
    double felt_s = w->first_token_ns * first_token_part / 1e9;

    if (w->fixed) return w->wait_max_ns;
    if (rate * wait_s < 1) return 0;
    if (felt_s > 0 && felt_s < wait_s) wait_s = felt_s;
    return (int64_t)((batch / rate < wait_s ? batch / rate : wait_s) * 1e9);
}

bool window_opens(struct window *w, bool idle, uint32_t waiting, uint32_t room, int64_t oldest_ns,
                  int64_t now_ns, int64_t step_ns)
{
    enum window_trigger trigger;

    if (waiting == 0 || room == 0) return false;
    w->length_ns = window_length_ns(w, room, now_ns);
    if (idle && !w->fixed)
        trigger = WINDOW_IDLE;
    else if (waiting >= room)
        trigger = WINDOW_SIZE;
    else if (now_ns + step_ns - oldest_ns >= w->length_ns)
        trigger = WINDOW_AGE;
    else if (!w->fixed && w->target > 0 &&
             faded(w->prompt_tokens, w->computed_ns, now_ns) < 0.8 * w->target)
        trigger = WINDOW_THROUGHPUT;
    else
        return false;
    w->fired[trigger]++;
    return true;
}
