/* test_even_share.c - every unit is done once, and the pieces of a pair are where all look for them.
 * Method: the walk that the kernel makes (kernels/even_share.h), on the CPU, for random rows (empty ones, one long among short ones, more
 * blocks than units, where only as many take part): each unit counted; each unfinished piece put at (block, place) as the kernel does; then each pair read as its
 * last block reads it: from the owner of its first unit to the owner of its last, every place found, written by that pair. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "even_share.h"
#include "test.h"

enum { ROWS = 70, PAIRS = 9, BLOCKS = 300, UNITS = 700 };

struct place {
    uint32_t row, pair, begin, end;
    bool used;
};

static void check(const uint32_t *first, uint32_t rows, uint32_t pairs, uint32_t blocks)
{
    static uint8_t done[ROWS * PAIRS * UNITS];
    static struct place places[BLOCKS][2];
    static uint32_t arrived[ROWS][PAIRS];
    uint32_t all = pairs * first[rows], most = 0;

    blocks = all < blocks ? (all ? all : 1) : blocks;
    memset(done, 0, sizeof done), memset(places, 0, sizeof places);
    memset(arrived, 0, sizeof arrived);
    for (uint32_t c = 0; c < blocks; c++) {
        uint32_t end = even_begin(all, blocks, c + 1), begin = even_begin(all, blocks, c);
        most = end - begin > most ? end - begin : most;
        for (uint32_t at = begin; at < end;) {
            struct even_piece p = even_piece_at(first, rows, pairs, at, end);
            EXPECT_TRUE(p.row < rows && p.pair < pairs && p.end > p.begin && p.end <= p.units);
            EXPECT_EQ(p.unit0, pairs * first[p.row] + p.pair * p.units);
            for (uint32_t u = p.begin; u < p.end; u++) {
                EXPECT_EQ(even_owner(all, blocks, at + u - p.begin), c);
                EXPECT_EQ(done[p.unit0 + u]++, 0);
            }
            if (p.begin || p.end < p.units) {
                struct place *to = &places[c][p.begin == 0];
                EXPECT_TRUE(!to->used);
                *to = (struct place){p.row, p.pair, p.begin, p.end, true};
                arrived[p.row][p.pair]++;
            }
            at += p.end - p.begin;
        }
    }
    EXPECT_TRUE(!all || most <= all / blocks + 1);
    for (uint32_t u = 0; u < all; u++)
        EXPECT_EQ(done[u], 1);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t pair = 0; pair < pairs; pair++) {
            uint32_t units = first[r + 1] - first[r], unit0 = pairs * first[r] + pair * units;
            if (!arrived[r][pair]) continue;
            uint32_t from = even_owner(all, blocks, unit0),
                     to = even_owner(all, blocks, unit0 + units - 1), next = 0;
            EXPECT_EQ(to - from + 1, arrived[r][pair]);
            for (uint32_t c = from; c <= to; c++) {
                const struct place *is = &places[c][c == from];
                EXPECT_TRUE(is->used && is->row == r && is->pair == pair && is->begin == next);
                next = is->end;
            }
            EXPECT_EQ(next, units);
        }
}

TEST(every_unit_is_done_once_and_pieces_are_found)
{
    for (int round = 0; round < 3000; round++) {
        uint32_t first[ROWS + 1] = {0}, rows = 1 + test_rand() % ROWS;
        uint32_t pairs = 1 + test_rand() % PAIRS, blocks = 1 + test_rand() % BLOCKS;
        uint32_t longest = test_rand() % 4 ? 40 : 8;
        for (uint32_t r = 0; r < rows; r++)
            first[r + 1] =
                first[r] + (test_rand() % 5 == 0 ? 0 : (uint32_t)(test_rand() % longest));
        if (test_rand() % 3 == 0) /* one long row */
            for (uint32_t r = test_rand() % rows; r < rows; r++)
                first[r + 1] += UNITS - 60;
        check(first, rows, pairs, blocks);
    }
}

TEST(equal_rows_as_in_a_full_batch)
{
    uint32_t first[ROWS + 1];

    for (uint32_t groups = 1; groups <= 140; groups += 3) {
        for (uint32_t r = 0; r <= 64; r++)
            first[r] = r * groups;
        check(first, 64, 8, 264);
    }
}
