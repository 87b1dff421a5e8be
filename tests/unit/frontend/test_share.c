/* test_share.c - one holder never keeps the others from all of a limit, and nothing is lost or counted twice.
 * Method: chosen cases of the rule; a hoarder beside a newcomer, many hoarders in turn; random taking, giving and moving beside a
 * plain array of counts that applies the rule by itself. */
#include "test.h"

#include "frontend/share.h"

enum { LIMIT = 1 << 20 };

TEST(a_holder_may_have_what_it_leaves_free)
{
    struct share_pool *pool = share_create();

    EXPECT_EQ(share_take(pool, 1, LIMIT / 2 + 1, LIMIT), STATUS_LIMIT); /* even alone */
    EXPECT_OK(share_take(pool, 1, LIMIT / 2, LIMIT));
    EXPECT_EQ(share_take(pool, 1, 1, LIMIT), STATUS_LIMIT);
    EXPECT_OK(share_take(pool, 2, LIMIT / 4, LIMIT)); /* half of what is left */
    EXPECT_EQ(share_take(pool, 2, 1, LIMIT), STATUS_LIMIT);
    EXPECT_EQ(share_take(pool, 3, LIMIT / 4, LIMIT),
              STATUS_FULL); /* it holds nothing: the others do */
    EXPECT_OK(share_take(pool, 3, LIMIT / 8, LIMIT));
    share_give(pool, 1, LIMIT / 2);
    EXPECT_OK(share_take(pool, 2, 1, LIMIT)); /* what another has given back counts as free */
    EXPECT_EQ(share_held(pool), LIMIT / 4 + LIMIT / 8 + 1);
    EXPECT_OK(share_take(pool, 9, 0, 0)); /* nothing is always there */
    share_give(pool, 9, 0);
    EXPECT_EQ(share_take(pool, 9, 1, 0),
              STATUS_LIMIT); /* a limit that has shrunk under what is held */
    share_destroy(pool);
    share_destroy(NULL);
}

TEST(hoarders_leave_something_to_whoever_comes_last)
{
    struct share_pool *pool = share_create();

    for (uint64_t holder = 1; holder <= 10; holder++)
        for (uint64_t piece = LIMIT; piece; piece /= 2)
            while (share_take(pool, holder, piece, LIMIT) == STATUS_OK)
                continue;
    EXPECT_TRUE(share_held(pool) <=
                LIMIT - (LIMIT >> 10)); /* each has left half of what it found */
    EXPECT_OK(share_take(pool, 11, LIMIT >> 11, LIMIT));
    share_destroy(pool);
}

TEST(counts_are_exact)
{
    enum { HOLDERS = 200 };
    struct share_pool *pool = share_create();
    uint64_t own[HOLDERS] = {0}, all = 0;
    uint32_t counts[4] = {0};

    for (int i = 0; i < 100000; i++) {
        uint32_t a = (uint32_t)(test_rand() % HOLDERS), b = (uint32_t)(test_rand() % HOLDERS);
        uint64_t bytes = test_rand() % (LIMIT / 64), left = LIMIT - all;
        bool fits = bytes <= left && own[a] + bytes <= left - bytes;

        switch (test_rand() % 3) {
        case 0:
            EXPECT_EQ(share_take(pool, a, bytes, LIMIT), fits || !bytes ? STATUS_OK
                                                         : own[a]       ? STATUS_LIMIT
                                                                        : STATUS_FULL);
            counts[fits]++;
            if (!fits) continue;
            own[a] += bytes;
            all += bytes;
            break;
        case 1:
            if (bytes > own[a]) bytes = own[a];
            share_give(pool, a, bytes);
            own[a] -= bytes;
            all -= bytes;
            break;
        default:
            if (bytes > own[a]) bytes = own[a];
            EXPECT_TRUE(share_move(pool, a, b, bytes));
            own[a] -= bytes;
            own[b] += bytes;
        }
        EXPECT_EQ(share_held(pool), all);
    }
    EXPECT_TRUE(counts[0] > 1000 && counts[1] > 1000); /* both happened often */
    for (uint32_t a = 0; a < HOLDERS; a++)
        share_give(pool, a, own[a]);
    EXPECT_EQ(share_held(pool), 0);
    EXPECT_OK(share_take(pool, 1, LIMIT / 2, LIMIT)); /* all of it is there again */
    share_destroy(pool);
}
