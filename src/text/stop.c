/* stop.c - Aho-Corasick over bytes.
 *
 * A node is a prefix of some strings; the automaton stands at the longest one that the text ends
 * with. match[node]: the longest string that is a suffix of the node, so of matches that end here
 * the one that starts first. What is held is always the text of the node where the automaton
 * stands. */
#include "text/stop.h"

#include <assert.h>
#include <stdlib.h>

#include "base/hash.h"

struct stop_node {
    uint32_t fail;  /* the longest proper suffix that is a node */
    uint32_t depth; /* its length in bytes */
    int32_t match;  /* index of the string that ends here, or -1 */
    uint32_t match_len;
};

/* A transition to a longer node. Edges are in one hash table: a table of 256 per node would let a
 * request with the longest strings take 128 MiB. */
struct stop_edge {
    uint32_t key;   /* node << 8 | byte */
    uint32_t child; /* 0: free */
};

struct stop_set {
    uint32_t count, node_count;
    struct slice *strings;   /* owned, into text */
    char *text;              /* owned */
    struct stop_node *nodes; /* owned; [0] is the root */
    struct stop_edge *edges; /* owned */
    uint32_t edge_mask;
};

static_assert(((uint64_t)STOP_STRINGS_MAX * STOP_STRING_BYTES_MAX + 1) << 8 < UINT32_MAX,
              "an edge's key holds any node");

static struct stop_edge *edge_of(const struct stop_set *set, uint32_t node, uint8_t byte)
{
    const uint32_t key = node << 8 | byte;
    uint32_t at = (uint32_t)hash_mix64(key);

    while (set->edges[at & set->edge_mask].child && set->edges[at & set->edge_mask].key != key)
        at++;
    return &set->edges[at & set->edge_mask];
}

/* Where the automaton stands after one more byte: amortised O(1), since every step up was a step
 * down. */
static uint32_t step(const struct stop_set *set, uint32_t node, uint8_t byte)
{
    uint32_t child;

    while (!(child = edge_of(set, node, byte)->child) && node)
        node = set->nodes[node].fail;
    return child;
}

static size_t total_bytes(const struct slice *strings, uint32_t count)
{
    size_t total = 0;

    for (uint32_t i = 0; i < count; i++)
        total += strings[i].len;
    return total;
}

static void add_string(struct stop_set *set, uint32_t index)
{
    const uint8_t *bytes = (const uint8_t *)set->strings[index].ptr;
    uint32_t node = 0;

    for (size_t i = 0; i < set->strings[index].len; i++) {
        struct stop_edge *edge = edge_of(set, node, bytes[i]);
        if (!edge->child) {
            *edge = (struct stop_edge){node << 8 | bytes[i], set->node_count};
            set->nodes[set->node_count++] =
                (struct stop_node){.depth = set->nodes[node].depth + 1, .match = -1};
        }
        node = edge->child;
    }
    if (set->nodes[node].match >= 0) return; /* given twice */
    set->nodes[node].match = (int32_t)index;
    set->nodes[node].match_len = set->nodes[node].depth;
}

/* Links the node that `index` reaches with its first `depth` bytes. Every shorter node is linked.
 * */
static void link_node(struct stop_set *set, uint32_t node, uint32_t parent, uint8_t byte)
{
    struct stop_node *n = &set->nodes[node];

    n->fail = parent ? step(set, set->nodes[parent].fail, byte) : 0;
    if (n->match >= 0) return;
    n->match = set->nodes[n->fail].match;
    n->match_len = set->nodes[n->fail].match_len;
}

/* Links all nodes, in order of depth: all strings take their k-th byte together. at: [count],
 * zeroed. */
static void link_nodes(struct stop_set *set, uint32_t *at)
{
    for (size_t k = 0; k < STOP_STRING_BYTES_MAX; k++) {
        for (uint32_t i = 0; i < set->count; i++) {
            if (k >= set->strings[i].len) continue;
            uint8_t byte = (uint8_t)set->strings[i].ptr[k];
            uint32_t parent = at[i];
            at[i] = edge_of(set, parent, byte)->child;
            link_node(set, at[i], parent, byte);
        }
    }
}

static enum status make_tables(struct stop_set *set, uint32_t count, size_t total)
{
    uint32_t slots = 16;

    while (slots < 2 * total)
        slots *= 2;
    set->edge_mask = slots - 1;
    set->strings = calloc(count, sizeof *set->strings);
    set->text = malloc(total);
    set->nodes = malloc((total + 1) * sizeof *set->nodes);
    set->edges = calloc(slots, sizeof *set->edges);
    return set->strings && set->text && set->nodes && set->edges ? STATUS_OK : STATUS_NOMEM;
}

enum status stop_set_create(const struct slice *strings, uint32_t count, struct stop_set **out)
{
    uint32_t at[STOP_STRINGS_MAX] = {0};

    if (count == 0 || count > STOP_STRINGS_MAX) return STATUS_INVALID;
    for (uint32_t i = 0; i < count; i++)
        if (strings[i].len == 0 || strings[i].len > STOP_STRING_BYTES_MAX) return STATUS_INVALID;
    struct stop_set *set = calloc(1, sizeof *set);
    if (!set) return STATUS_NOMEM;
    if (make_tables(set, count, total_bytes(strings, count))) {
        stop_set_destroy(set);
        return STATUS_NOMEM;
    }
    set->nodes[0] = (struct stop_node){.match = -1};
    set->node_count = 1;
    for (char *text = set->text; set->count < count; text += strings[set->count++].len) {
        memcpy(text, strings[set->count].ptr, strings[set->count].len);
        set->strings[set->count] = slice_of(text, strings[set->count].len);
        add_string(set, set->count);
    }
    link_nodes(set, at);
    *out = set;
    return STATUS_OK;
}

void stop_set_destroy(struct stop_set *set)
{
    if (!set) return;
    free(set->strings);
    free(set->text);
    free(set->nodes);
    free(set->edges);
    free(set);
}

struct slice stop_set_string(const struct stop_set *set, uint32_t index)
{
    assert(index < set->count);
    return set->strings[index];
}

void stop_state_init(struct stop_state *state, const struct stop_set *set)
{
    state->set = set;
    state->node = 0;
    buf_init(&state->held, 0);
}

void stop_state_fini(struct stop_state *state)
{
    buf_fini(&state->held);
}

/* held + text is the stream from where `out` stopped. Gives out its first `release` bytes and holds
 * the rest of the first `seen`. */
static void release_and_hold(struct stop_state *state, const char *text, size_t release,
                             size_t seen, struct buf *out)
{
    size_t from_held = release < state->held.len ? release : state->held.len;
    const size_t had = state->held.len;

    buf_append(out, state->held.ptr, from_held);
    if (from_held) memmove(state->held.ptr, state->held.ptr + from_held, had - from_held);
    state->held.len = had - from_held;
    buf_append(out, text, release - from_held);
    if (seen > had) {
        size_t used = release - from_held;
        buf_append(&state->held, text + used, seen - had - used);
    }
}

int stop_push(struct stop_state *state, struct slice text, bool armed, bool include,
              struct buf *out)
{
    const struct stop_set *set = state->set;
    const size_t had = state->held.len;

    if (!text.len) return -1;
    if (!set) {
        buf_append_slice(out, text);
        return -1;
    }
    for (size_t i = 0; i < text.len; i++) {
        state->node = step(set, state->node, (uint8_t)text.ptr[i]);
        const struct stop_node *node = &set->nodes[state->node];
        if (node->match < 0 || !armed) continue;
        size_t end = had + i + 1, begin = end - node->match_len;
        int match = node->match;
        release_and_hold(state, text.ptr, include ? end : begin, end, out);
        state->held.len = 0; /* the match, and whatever follows, is dropped */
        state->set = NULL;
        return match;
    }
    size_t all = had + text.len, hold = set->nodes[state->node].depth;
    release_and_hold(state, text.ptr, all - hold, all, out);
    return -1;
}

void stop_flush(struct stop_state *state, struct buf *out)
{
    buf_append(out, state->held.ptr, state->held.len);
    state->held.len = 0;
}
