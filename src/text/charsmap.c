#include "text/charsmap.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/unicode_class.h"

enum {
    CLUSTER_BYTES = 6,       /* clusters of fewer bytes are looked up whole */
    SEQUENCE_BYTES_MAX = 128 /* far over the longest in use; a forged trie may run in a circle */
};

struct charsmap {
    uint32_t *units; /* owned */
    uint32_t count;
    char *texts; /* owned; a NUL byte behind each, and at the end */
    uint32_t texts_len;
    bool alone[128]; /* begins no sequence with an ASCII character behind it, and is none itself */
};

/* --- the trie --- */

static const uint32_t LEAF = 0x80000000u; /* a unit whose other bits are a value */

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

struct walk {
    uint32_t node;
    bool ends;      /* a sequence ends here */
    uint32_t value; /* then: where its replacement begins */
};

static struct walk walk_begin(const struct charsmap *map)
{
    return (struct walk){.node = offset_of(map->units[0])};
}

/* One byte on; false when no sequence goes on with it. NUL bytes are in none. */
static bool walk_on(const struct charsmap *map, struct walk *walk, uint8_t byte)
{
    const uint32_t at = walk->node ^ byte;

    if (!byte || at >= map->count || (map->units[at] & (LEAF | 0xff)) != byte) return false;
    walk->node = at ^ offset_of(map->units[at]);
    walk->ends = map->units[at] >> 8 & 1 && walk->node < map->count;
    if (walk->ends) walk->value = map->units[walk->node] & ~LEAF;
    return true;
}

static struct slice text_at(const struct charsmap *map, uint32_t value)
{
    return slice_str(map->texts + value);
}

/* The shortest or longest sequence that the bytes begin with; its length, or 0. */
static size_t find(const struct charsmap *map, const uint8_t *p, size_t len, bool longest,
                   struct slice *with)
{
    struct walk walk = walk_begin(map);
    size_t found = 0;

    for (size_t i = 0; i < len && (longest || !found) && walk_on(map, &walk, p[i]); i++) {
        if (!walk.ends) continue;
        found = i + 1;
        *with = text_at(map, walk.value);
    }
    return found;
}

/* --- opening --- */

static bool begins_text(const struct charsmap *map, uint32_t value)
{
    return value < map->texts_len && ((uint8_t)map->texts[value] & 0xc0) != 0x80;
}

/* Every value that a look-up can give must be the start of a replacement. */
static enum status check(const struct charsmap *map, struct error *err)
{
    for (uint32_t at = 0; at < map->count; at++) {
        const uint32_t unit = map->units[at], leaf = at ^ offset_of(unit);
        if (unit & LEAF || !(unit >> 8 & 1) || leaf >= map->count) continue;
        if (!begins_text(map, map->units[leaf] & ~LEAF))
            return error_set(err, STATUS_CORRUPT,
                             "the precompiled charsmap's unit %u has a replacement outside of it",
                             at);
    }
    if (!utf8_valid(slice_of(map->texts, map->texts_len)))
        return error_set(err, STATUS_CORRUPT,
                         "the precompiled charsmap's replacements must be UTF-8");
    return STATUS_OK;
}

static bool is_alone(const struct charsmap *map, uint8_t byte)
{
    struct walk first = walk_begin(map), second;

    if (!walk_on(map, &first, byte)) return true;
    if (first.ends) return false;
    for (uint8_t next = 1; next < 128; next++) {
        second = first;
        if (walk_on(map, &second, next)) return false;
    }
    return true;
}

enum status charsmap_open(struct slice bytes, struct charsmap **out, struct error *err)
{
    struct charsmap *map;
    uint32_t size = 0;

    if (bytes.len >= sizeof size) memcpy(&size, bytes.ptr, sizeof size);
    if (bytes.len > UINT32_MAX / 2 || !size || size % sizeof *map->units ||
        size >= bytes.len - sizeof size)
        return error_set(err, STATUS_CORRUPT,
                         "the precompiled charsmap must be a length, so many bytes of units of 4 "
                         "bytes, and replacements");
    map = calloc(1, sizeof *map);
    if (map) {
        map->count = size / sizeof *map->units;
        map->texts_len = (uint32_t)(bytes.len - sizeof size - size);
        map->units = malloc(size);
        map->texts = calloc(map->texts_len + (size_t)1, 1);
    }
    if (!map || !map->units || !map->texts) {
        charsmap_close(map);
        return error_set(err, STATUS_NOMEM, "no memory for the precompiled charsmap");
    }
    memcpy(map->units, bytes.ptr + sizeof size, size);
    memcpy(map->texts, bytes.ptr + sizeof size + size, map->texts_len);
    enum status st = check(map, err);
    if (st) {
        charsmap_close(map);
        return st;
    }
    for (uint8_t byte = 0; byte < 128; byte++)
        map->alone[byte] = is_alone(map, byte);
    *out = map;
    return STATUS_OK;
}

static int base64_digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

enum status charsmap_open_base64(struct slice text, struct charsmap **out, struct error *err)
{
    uint8_t *bytes = malloc(text.len / 4 * 3 + 3);
    uint32_t bits = 0;
    size_t digits = 0, count = 0;
    bool good = true;

    if (!bytes) return error_set(err, STATUS_NOMEM, "no memory for the precompiled charsmap");
    while (text.len && text.ptr[text.len - 1] == '=')
        text.len--;
    for (; good && digits < text.len; digits++) {
        int digit = base64_digit(text.ptr[digits]);
        good = digit >= 0;
        bits = bits << 6 | ((uint32_t)digit & 63);
        if (digits % 4) bytes[count++] = (uint8_t)(bits >> (6 - 2 * (digits % 4)));
    }
    enum status st = good && text.len % 4 != 1
                         ? charsmap_open(slice_of(bytes, count), out, err)
                         : error_set(err, STATUS_CORRUPT, "the precompiled charsmap is not base64");
    free(bytes);
    return st;
}

void charsmap_close(struct charsmap *map)
{
    if (!map) return;
    free(map->units);
    free(map->texts);
    free(map);
}

/* --- reading --- */

/* Bytes of the grapheme cluster that begins at p. */
static size_t cluster_len(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *at = p;
    utf8proc_int32_t state = 0;
    unsigned len;
    uint32_t c = utf8_read(p, &len), next;

    for (at += len; at < end; at += len, c = next) {
        next = utf8_read(at, &len);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state))
            break;
    }
    return (size_t)(at - p);
}

static bool next_of_clusters(struct charsmap_reading *r, const uint8_t *p, size_t *len,
                             struct slice *with)
{
    unsigned bytes;

    if (p >= r->cluster_end) { /* a new cluster */
        *len = cluster_len(p, r->end);
        r->cluster_end = p + *len;
        if (*len < CLUSTER_BYTES && find(r->map, p, *len, false, with)) return true;
    }
    utf8_read(p, &bytes);
    *len = bytes;
    return find(r->map, p, bytes, false, with) != 0;
}

static bool next_longest(const struct charsmap_reading *r, const uint8_t *p, size_t *len,
                         struct slice *with)
{
    const size_t left = (size_t)(r->end - p);
    unsigned bytes;

    *len = find(r->map, p, left < SEQUENCE_BYTES_MAX ? left : SEQUENCE_BYTES_MAX, true, with);
    if (*len) return true;
    utf8_read(p, &bytes);
    *len = bytes;
    return false;
}

bool charsmap_next(struct charsmap_reading *r, const uint8_t *p, size_t *len, struct slice *with)
{
    const uint8_t *at = p;

    /* An ASCII character in front of another one is a cluster of its own. */
    while (at < r->end && *at < 0x80 && r->map->alone[*at] && (at + 1 == r->end || at[1] < 0x80) &&
           at >= r->cluster_end)
        at++;
    *len = (size_t)(at - p);
    if (at > p) return false;
    return r->by_clusters ? next_of_clusters(r, p, len, with) : next_longest(r, p, len, with);
}
