/* test_policy.c - what the order of service does to requests, measured in virtual time.
 * Method: the real scheduler under Poisson arrivals on a device whose step times are a formula (world.h); percentiles of what each
 * request felt, against the same arrivals under another setting or against a bound. */
#include "world.h"

#include <stdlib.h>

enum { VISITS_MAX = 20000 };

static struct visit *make_visits(void)
{
    return calloc(VISITS_MAX, sizeof(struct visit));
}

TEST(little_of_the_held_kv_is_empty)
{
    struct visit *visits = make_visits();
    struct world w;
    /* contexts of 600 tokens in the mean, a third of them behind a shared beginning */
    uint32_t count = world_poisson(visits, VISITS_MAX, 6, 0, 60, 250, 650, 100, 500, 1);

    for (uint32_t i = 0; i < count; i += 3)
        visits[i].text = 1, visits[i].alike = 200;
    world_init(&w);
    w.options.share_prefixes = true;
    w.check_every = 50;
    world_run(&w, visits, count);
    EXPECT_TRUE(w.waste > 0.001 && w.waste <= 0.032);
    free(visits);
}
