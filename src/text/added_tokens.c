#include "text/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "text/unicode_class.h"

enum { NO_TOKEN = UINT32_MAX };

struct trie_node {
    uint32_t child, sibling; /* 0: none (the root is nobody's child) */
    uint32_t token;          /* that ends here, or NO_TOKEN */
    uint8_t byte;
};

static uint32_t node_child(const struct added_trie *trie, uint32_t node, uint8_t byte)
{
    uint32_t child = trie->nodes[node].child;

    while (child && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

/* Returns the new node, 0 when there is no memory. */
static uint32_t node_add(struct added_trie *trie, uint32_t parent, uint8_t byte)
{
    if (trie->node_count == trie->node_cap) {
        uint32_t cap = trie->node_cap ? 2 * trie->node_cap : 64;
        struct trie_node *nodes = realloc(trie->nodes, cap * sizeof *nodes);
        if (!nodes) return 0;
        trie->nodes = nodes;
        trie->node_cap = cap;
        if (!trie->node_count) nodes[trie->node_count++] = (struct trie_node){0, 0, NO_TOKEN, 0};
    }
    uint32_t made = trie->node_count++;
    trie->nodes[made] = (struct trie_node){0, trie->nodes[parent].child, NO_TOKEN, byte};
    trie->nodes[parent].child = made;
    return made;
}

enum status added_trie_add(struct added_trie *trie, struct slice text, uint32_t index)
{
    const uint8_t *bytes = (const uint8_t *)text.ptr;
    uint32_t node = 0;

    if (!text.len) return STATUS_OK;
    if (text.len > UINT32_MAX / 4 || trie->node_count > UINT32_MAX / 4) return STATUS_LIMIT;
    for (size_t i = 0; i < text.len; i++) {
        uint32_t next = trie->nodes ? node_child(trie, node, bytes[i]) : 0;
        if (!next) next = node_add(trie, node, bytes[i]);
        if (!next) return STATUS_NOMEM;
        node = next;
    }
    if (trie->nodes[node].token == NO_TOKEN) trie->nodes[node].token = index;
    trie->single_first = !trie->any || trie->single_first == bytes[0] ? bytes[0] : -1;
    trie->first[bytes[0]] = true;
    trie->any = true;
    return STATUS_OK;
}

void added_trie_fini(struct added_trie *trie)
{
    free(trie->nodes);
    *trie = (struct added_trie){0};
}

/* The longest token whose text starts at p and ends at or before end. *len: its bytes. */
static uint32_t longest_at(const struct added_trie *trie, const uint8_t *p, const uint8_t *end,
                           size_t *len)
{
    uint32_t node = 0, found = NO_TOKEN;

    for (const uint8_t *q = p; q < end && (node = node_child(trie, node, *q));) {
        q++;
        if (trie->nodes[node].token == NO_TOKEN) continue;
        found = trie->nodes[node].token;
        *len = (size_t)(q - p);
    }
    return found;
}

static bool stands_alone(struct slice text, size_t begin, size_t end)
{
    const uint8_t *p = (const uint8_t *)text.ptr;
    unsigned len;

    return (!begin || !(class_read(utf8_before(p + begin), &len) & CLASS_WORD)) &&
           (end == text.len || !(class_read(p + end, &len) & CLASS_WORD));
}

/* Takes the spaces beside the match that its flags ask for, but none that an earlier match has. */
static void strip(const struct added_search *s, struct added_match *match)
{
    const uint8_t *text = (const uint8_t *)s->text.ptr, *p = text + match->begin;
    unsigned len;

    if (match->token->lstrip)
        while (p > text + s->taken && (class_read(utf8_before(p), &len) & CLASS_SPACE))
            p = utf8_before(p);
    match->begin = (size_t)(p - text);
    if (!match->token->rstrip) return;
    while (match->end < s->text.len && (class_read(text + match->end, &len) & CLASS_SPACE))
        match->end += len;
}

/* Skips to the next byte that a token may start with, in [s->at, end). */
static size_t next_start(const struct added_search *s, size_t end)
{
    const char *text = s->text.ptr, *hit;
    size_t at = s->at;

    if (s->trie->single_first >= 0) {
        hit = at < end ? memchr(text + at, s->trie->single_first, end - at) : NULL;
        return hit ? (size_t)(hit - text) : end;
    }
    while (at < end && !s->trie->first[(uint8_t)text[at]])
        at++;
    return at;
}

/* The next match inside [s->at, end), which holds nothing untrusted. */
static bool next_in_window(struct added_search *s, size_t end, struct added_match *match)
{
    const uint8_t *text = (const uint8_t *)s->text.ptr;
    size_t len = 0;

    for (s->at = next_start(s, end); s->at < end; s->at = next_start(s, end)) {
        uint32_t index = longest_at(s->trie, text + s->at, text + end, &len);
        if (index == NO_TOKEN) {
            s->at++;
            continue;
        }
        *match = (struct added_match){&s->tokens[index], s->at, s->at + len};
        s->at += len; /* also when the match is refused: so the reference goes on */
        if (s->skip_special && match->token->special) continue;
        if (match->token->single_word && !stands_alone(s->text, match->begin, match->end)) continue;
        /* A token may begin in spaces that rstrip took: it counts, as in the reference. */
        strip(s, match);
        s->taken = match->end;
        return true;
    }
    return false;
}

bool added_next(struct added_search *s, struct added_match *match)
{
    if (!s->trie->any) return false;
    while (s->at < s->text.len) {
        struct range_view ahead = range_view_of(s->untrusted, s->at, s->text.len);
        size_t end = ahead.count ? ahead.at[0].begin : s->text.len;
        if (end > s->at && next_in_window(s, end, match)) return true;
        s->at = ahead.count ? ahead.at[0].end : s->text.len;
    }
    return false;
}
