/* test_kv_prefix.c - pins keep what nobody uses, for their time and within their bound; what is not pinned goes first.
 * Method: chains of one block each put into a small index by hand, and the pool drained. */
#include "test.h"

#include "kv/kv_seq.h"

enum { BLOCKS = 16, SPAN = 16 };
static const int64_t s_ns = 1000000000;

struct fixture {
    struct kv_space space;
    uint32_t blocks[BLOCKS];
};

static void start(struct fixture *f)
{
    const struct kv_group group = {.block_tokens = SPAN, .capacity = BLOCKS};

    EXPECT_OK(kv_space_init(&f->space, 1, &group, BLOCKS));
    kv_prefix_set_time(f->space.prefix, 100 * s_ns);
}

/* A text of one span, computed, pinned for so long, left. Returns whether it was pinned. */
static bool put_text(struct fixture *f, int32_t text, uint32_t pin_s)
{
    struct kv_seq seq = {.tables[0] = {.blocks = f->blocks, .capacity = BLOCKS}};
    struct kv_chain chain = kv_chain_start(0);
    int32_t tokens[SPAN] = {text};
    bool pinned = false;

    EXPECT_OK(kv_seq_extend(&seq, &f->space, SPAN));
    EXPECT_TRUE(kv_prefix_put(f->space.prefix, &chain, tokens, &seq, 0, 0));
    if (pin_s) pinned = kv_prefix_pin(f->space.prefix, f->blocks[0], pin_s, 0);
    kv_seq_drop(&seq, &f->space);
    kv_space_check(&f->space);
    return pinned;
}

static bool is_there(struct fixture *f, int32_t text)
{
    struct kv_chain chain = kv_chain_start(0);
    int32_t tokens[SPAN] = {text};

    return kv_prefix_find(f->space.prefix, &chain, tokens) != KV_PREFIX_NONE;
}

/* A text of three spans, computed and left. */
static void put_long_text(struct fixture *f, uint64_t salt, const int32_t tokens[3 * SPAN])
{
    struct kv_seq seq = {.tables[0] = {.blocks = f->blocks, .capacity = BLOCKS}};
    struct kv_chain chain = kv_chain_start(salt);

    EXPECT_OK(kv_seq_extend(&seq, &f->space, 3 * SPAN));
    for (uint32_t i = 0; i < 3; i++)
        EXPECT_TRUE(kv_prefix_put(f->space.prefix, &chain, tokens + (size_t)i * SPAN, &seq, i, 0));
    kv_seq_drop(&seq, &f->space);
}

/* Takes all blocks that are to be had, and gives them back. */
static uint32_t drain(struct fixture *f)
{
    struct kv_seq seq = {.tables[0] = {.blocks = f->blocks, .capacity = BLOCKS}};
    uint32_t count = 0;

    while (kv_seq_extend(&seq, &f->space, (count + 1) * SPAN) == STATUS_OK)
        count++;
    kv_space_check(&f->space);
    kv_seq_drop(&seq, &f->space);
    return count;
}

TEST(a_pinned_text_outlives_pressure_and_others_do_not)
{
    struct fixture f;

    start(&f);
    EXPECT_TRUE(put_text(&f, 1, 10));
    put_text(&f, 2, 0);
    EXPECT_EQ(kv_prefix_counts(f.space.prefix).pinned_idle, 1);
    EXPECT_EQ(drain(&f), BLOCKS - 1);
    EXPECT_TRUE(is_there(&f, 1) && !is_there(&f, 2));
    kv_prefix_set_time(f.space.prefix, 109 * s_ns);
    EXPECT_EQ(drain(&f), BLOCKS - 1);
    kv_prefix_set_time(f.space.prefix, 110 * s_ns);
    EXPECT_EQ(kv_prefix_counts(f.space.prefix).pinned, 0);
    EXPECT_TRUE(is_there(&f, 1)); /* kept as any other */
    EXPECT_EQ(drain(&f), BLOCKS);
    EXPECT_TRUE(!is_there(&f, 1));
    kv_space_fini(&f.space);
}

TEST(a_guess_sees_what_is_there_and_no_other_text)
{
    struct fixture f;
    int32_t tokens[3 * SPAN] = {1};
    const uint64_t salt = 7;

    start(&f);
    EXPECT_EQ(kv_prefix_guess(f.space.prefix, salt, tokens, 3), 0);
    put_long_text(&f, salt, tokens);
    EXPECT_EQ(kv_prefix_guess(f.space.prefix, salt, tokens, 3), 3);
    EXPECT_EQ(kv_prefix_guess(f.space.prefix, salt, tokens, 2), 2);
    EXPECT_EQ(kv_prefix_guess(f.space.prefix, salt + 1, tokens, 3), 0);
    tokens[SPAN + 3] = 5;
    EXPECT_EQ(kv_prefix_guess(f.space.prefix, salt, tokens, 3), 1);
    tokens[SPAN + 3] = 0;
    EXPECT_EQ(drain(&f), BLOCKS);
    EXPECT_EQ(kv_prefix_guess(f.space.prefix, salt, tokens, 3), 0);
    kv_space_fini(&f.space);
}

TEST(pins_are_bounded_and_end_where_nothing_else_goes)
{
    struct fixture f;

    start(&f);
    for (int32_t t = 0; t < 6; t++)
        EXPECT_EQ(put_text(&f, t, 1000), t < BLOCKS / 4);
    EXPECT_EQ(kv_prefix_counts(f.space.prefix).pinned_idle, BLOCKS / 4);
    EXPECT_TRUE(kv_prefix_unpin_idle(f.space.prefix, 1));
    EXPECT_EQ(drain(&f), BLOCKS - BLOCKS / 4 + 1);
    EXPECT_TRUE(!is_there(&f, 0) && is_there(&f, 1) && !is_there(&f, 5));
    EXPECT_TRUE(kv_prefix_unpin_idle(f.space.prefix, UINT32_MAX));
    EXPECT_TRUE(!kv_prefix_unpin_idle(f.space.prefix, UINT32_MAX));
    EXPECT_EQ(drain(&f), BLOCKS);
    kv_space_fini(&f.space);
}

TEST(a_pin_is_lengthened_and_never_shortened)
{
    struct fixture f;
    struct kv_chain chain = kv_chain_start(0);
    int32_t tokens[SPAN] = {1};

    start(&f);
    EXPECT_TRUE(put_text(&f, 1, 10));
    uint32_t e = kv_prefix_find(f.space.prefix, &chain, tokens);
    EXPECT_TRUE(kv_prefix_pin(f.space.prefix, e, 3, 0));
    kv_prefix_set_time(f.space.prefix, 105 * s_ns);
    EXPECT_EQ(kv_prefix_counts(f.space.prefix).pinned, 1);
    EXPECT_TRUE(kv_prefix_pin(f.space.prefix, e, UINT32_MAX, 0));
    kv_prefix_set_time(f.space.prefix, 1000000 * s_ns);
    EXPECT_EQ(kv_prefix_counts(f.space.prefix).pinned, 1);
    put_text(&f, 2, 0);
    chain = kv_chain_start(0);
    tokens[0] = 2;
    e = kv_prefix_find(f.space.prefix, &chain, tokens);
    EXPECT_TRUE(
        !kv_prefix_pin(f.space.prefix, e, 5, 0)); /* nobody uses it: it may be promised away */
    kv_space_fini(&f.space);
}
