/* test_kv_pool.c - no block is ever lost, doubled or freed early.
 * Method: 100,000 random calls beside a plain array of counts; after each, both must agree and kv_pool_check() must hold. A
 * failure prints its seed; INFERD_TEST_SEED=<n> repeats it. */
#include "test.h"

#include <stdlib.h>

#include "kv/kv_pool.h"
#include "kv/kv_seq.h"

TEST(alloc_takes_all_or_nothing)
{
    struct kv_pool *pool;
    uint32_t got[6], more[3];

    EXPECT_OK(kv_pool_create(8, &pool));
    EXPECT_OK(kv_pool_alloc(pool, 6, got));
    EXPECT_EQ(kv_pool_alloc(pool, 3, more), STATUS_EXHAUSTED);
    EXPECT_EQ(kv_pool_free_count(pool), 2); /* the refused call took nothing */
    for (int i = 0; i < 6; i++)
        kv_pool_unref(pool, got[i]);
    kv_pool_destroy(pool); /* aborts on a leak */
}

TEST(create_refuses_no_blocks_and_too_many)
{
    struct kv_pool *pool;

    EXPECT_EQ(kv_pool_create(0, &pool), STATUS_INVALID);
    EXPECT_EQ(kv_pool_create(KV_POOL_BLOCKS_MAX + 1u, &pool), STATUS_INVALID);
}

TEST(promised_blocks_are_kept_from_alloc)
{
    struct kv_pool *pool;
    uint32_t got[4];

    EXPECT_OK(kv_pool_create(4, &pool));
    EXPECT_OK(kv_pool_promise(pool, 3));
    EXPECT_EQ(kv_pool_promise(pool, 2), STATUS_EXHAUSTED);
    EXPECT_EQ(kv_pool_alloc(pool, 2, got), STATUS_EXHAUSTED);
    EXPECT_OK(kv_pool_alloc(pool, 1, got));
    for (int i = 1; i < 4; i++)
        got[i] = kv_pool_take(pool);
    EXPECT_EQ(kv_pool_free_count(pool), 0);
    EXPECT_EQ(kv_pool_promised_count(pool), 0);
    for (int i = 0; i < 4; i++)
        kv_pool_unref(pool, got[i]);
    kv_pool_destroy(pool);
}

enum { BLOCKS = 37 };

struct model {
    uint32_t refs[BLOCKS], promised;
};

static uint32_t model_free(const struct model *m)
{
    uint32_t count = 0;

    for (int i = 0; i < BLOCKS; i++)
        count += m->refs[i] == 0;
    return count;
}

static void agree(const struct kv_pool *pool, const struct model *m)
{
    kv_pool_check(pool);
    for (uint32_t i = 0; i < BLOCKS; i++)
        EXPECT_EQ(kv_pool_refs(pool, i), m->refs[i]);
    EXPECT_EQ(kv_pool_free_count(pool), model_free(m));
    EXPECT_EQ(kv_pool_promised_count(pool), m->promised);
}

static void random_alloc(struct kv_pool *pool, struct model *m)
{
    uint32_t count = test_rand_below(6), got[6];
    bool fits = count + m->promised <= model_free(m);

    EXPECT_EQ(kv_pool_alloc(pool, count, got), fits ? STATUS_OK : STATUS_EXHAUSTED);
    for (uint32_t i = 0; fits && i < count; i++) {
        EXPECT_EQ(m->refs[got[i]], 0); /* it was nobody's */
        m->refs[got[i]] = 1;
    }
}

static void random_promise(struct kv_pool *pool, struct model *m)
{
    uint32_t count = test_rand_below(6);
    bool fits = count + m->promised <= model_free(m);

    EXPECT_EQ(kv_pool_promise(pool, count), fits ? STATUS_OK : STATUS_EXHAUSTED);
    if (fits) m->promised += count;
}

static void random_use(struct kv_pool *pool, struct model *m)
{
    uint32_t block = test_rand_below(BLOCKS), count;

    switch (test_rand_below(5)) {
    case 0:
        if (!m->refs[block]) return;
        kv_pool_ref(pool, block);
        m->refs[block]++;
        break;
    case 1:
    case 2:
        if (!m->refs[block]) return;
        kv_pool_unref(pool, block);
        m->refs[block]--;
        break;
    case 3:
        count = test_rand_below(m->promised + 1);
        kv_pool_unpromise(pool, count);
        m->promised -= count;
        break;
    default:
        if (!m->promised) return;
        block = kv_pool_take(pool);
        EXPECT_EQ(m->refs[block], 0);
        m->refs[block] = 1;
        m->promised--;
    }
}

TEST(random_calls_agree_with_a_plain_array)
{
    struct kv_pool *pool;
    struct model m = {{0}, 0};
    long calls = test_long() ? 1000000 : 100000;

    EXPECT_OK(kv_pool_create(BLOCKS, &pool));
    for (long i = 0; i < calls; i++) {
        switch (test_rand_below(6)) {
        case 0: random_alloc(pool, &m); break;
        case 1: random_promise(pool, &m); break;
        default: random_use(pool, &m);
        }
        agree(pool, &m);
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        for (; m.refs[i]; m.refs[i]--)
            kv_pool_unref(pool, i);
    kv_pool_unpromise(pool, m.promised);
    EXPECT_EQ(kv_pool_free_count(pool), BLOCKS);
    kv_pool_destroy(pool);
}

/* Sequences over two groups of different block sizes: what is promised is enough to grow to the end, and all comes back. */
TEST(sequences_grow_within_their_promise)
{
    enum { SEQS = 8, TABLE = 16 };
    struct kv_space space;
    struct kv_seq seqs[SEQS];
    uint32_t memory[SEQS][2][TABLE], promised[SEQS] = {0}, grown[SEQS] = {0};
    const struct kv_group groups[2] = {{.block_tokens = 16, .capacity = 40},
                                       {.block_tokens = 32, .capacity = 24}};

    EXPECT_OK(kv_space_init(&space, 2, groups, 0));
    EXPECT_TRUE(kv_space_fits(&space, 640) && !kv_space_fits(&space, 641));
    memset(seqs, 0, sizeof seqs);
    for (int i = 0; i < SEQS; i++)
        for (int g = 0; g < 2; g++)
            seqs[i].tables[g] = (struct kv_table){.blocks = memory[i][g], .capacity = TABLE};
    for (int n = 0; n < 20000; n++) {
        uint32_t i = test_rand_below(SEQS);

        if (!promised[i]) {
            uint32_t tokens = 1 + test_rand_below(256);
            if (kv_seq_promise(&seqs[i], &space, tokens) == STATUS_OK) promised[i] = tokens;
        } else if (test_rand_below(8) == 0) {
            kv_seq_drop(&seqs[i], &space);
            EXPECT_EQ(kv_seq_block_count(&seqs[i], &space), 0);
            promised[i] = grown[i] = 0;
        } else {
            uint32_t tokens = grown[i] + test_rand_below(promised[i] - grown[i] + 1);
            kv_seq_grow(&seqs[i], &space, tokens);
            grown[i] = tokens;
            EXPECT_EQ(seqs[i].tables[0].count, (tokens + 15) / 16);
            EXPECT_EQ(seqs[i].tables[1].count, (tokens + 31) / 32);
        }
        kv_space_check(&space);
    }
    for (int i = 0; i < SEQS; i++)
        kv_seq_drop(&seqs[i], &space);
    kv_space_fini(&space);
}

/* In a group with a window the promise is of what is held at once: it is enough all the same, since what is passed comes back to it. The plain
 * model is the number of tokens; a step computes up to 24 of them. */
TEST(what_a_sequence_passes_is_promised_to_it_again)
{
    enum { SEQS = 8, TABLE = 16, STEP = 24 };
    static const uint32_t windows[2] = {1, 40}, held_max[2] = {3, 5};
    struct kv_space space;
    struct kv_seq seqs[SEQS];
    uint32_t memory[SEQS][2][TABLE], promised[SEQS] = {0}, grown[SEQS] = {0};
    struct kv_group groups[2];
    uint64_t passed = 0;

    for (int g = 0; g < 2; g++)
        groups[g] = (struct kv_group){.block_tokens = 16,
                                      .capacity = 10 + 5 * (uint32_t)g,
                                      .window = windows[g],
                                      .held_max = held_max[g]};
    EXPECT_OK(kv_space_init(&space, 2, groups, 0));
    EXPECT_TRUE(kv_space_fits(&space, 100000)); /* whatever its length */
    memset(seqs, 0, sizeof seqs);
    for (int i = 0; i < SEQS; i++)
        for (int g = 0; g < 2; g++)
            seqs[i].tables[g] = (struct kv_table){.blocks = memory[i][g], .capacity = TABLE};
    for (int n = 0; n < 20000; n++) {
        uint32_t i = test_rand_below(SEQS), left = promised[i] - grown[i];

        if (!promised[i]) {
            uint32_t tokens = 1 + test_rand_below(256);
            if (kv_seq_promise(&seqs[i], &space, tokens) == STATUS_OK) promised[i] = tokens;
        } else if (test_rand_below(16) == 0) {
            kv_seq_drop(&seqs[i], &space);
            promised[i] = grown[i] = 0;
        } else {
            kv_seq_pass(&seqs[i], &space, grown[i]);
            for (int g = 0; g < 2; g++) {
                uint32_t seen = grown[i] + 1 > windows[g] ? grown[i] + 1 - windows[g] : 0;
                uint32_t first =
                    seen / 16 < (grown[i] + 15) / 16 ? seen / 16 : (grown[i] + 15) / 16;

                EXPECT_EQ(seqs[i].tables[g].first, first);
                passed += first > 0;
            }
            grown[i] += test_rand_below((left < STEP ? left : STEP) + 1);
            kv_seq_grow(&seqs[i], &space, grown[i]);
            for (int g = 0; g < 2; g++) {
                const struct kv_table *t = &seqs[i].tables[g];

                EXPECT_EQ(t->count, (grown[i] + 15) / 16);
                EXPECT_TRUE(t->count - t->first + t->promised <= held_max[g]);
            }
        }
        kv_space_check(&space);
    }
    EXPECT_TRUE(passed > 2000);
    for (int i = 0; i < SEQS; i++)
        kv_seq_drop(&seqs[i], &space);
    kv_space_fini(&space);
}
