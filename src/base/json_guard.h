/* json_guard.h - JSON from outside, to jansson values, with every cost bounded.
 *
 * jansson's own reader recurses, gives a tree of 46 times the text (16 MiB of `[],` take 742 MiB), and
 * says little about what was wrong. This reader takes one pass without recursion, O(bytes), and refuses
 * by depth, number of values and memory before the tree is built past them.
 *
 * What it takes: one RFC 8259 value of any type (a caller who wants an object asks json_is_object), white
 * space around it, and a UTF-8 byte-order mark in front. Refused: trailing data and commas, comments,
 * leading zeros and plus signs, NaN, control bytes in strings, unknown escapes, lone surrogate escapes,
 * bytes that are not UTF-8 (overlong, surrogates, over U+10FFFF, cut short), numbers whose value is no
 * finite double (1e999), numbers of more than JSON_GUARD_NUMBER_CHARS characters.
 * What it gives: an integer literal that fits int64 is a json_integer; every other number, an integer
 * literal of 20 digits too, a json_real (underflow is zero). "\u0000" in a string is an ordinary
 * character (json_string_length counts it), in a name it is refused. Of equal names in an object, equal
 * after unescaping, the last one's value counts, unless `unique_names` refuses them.
 *
 * Errors: STATUS_INVALID (not JSON), STATUS_INCOMPLETE (the text ends too early), STATUS_LIMIT (over a
 * limit), STATUS_NOMEM. The sentence says at which byte and what would be right; it never shows more of
 * the text than one character. Thread: any. Numbers are read in the "C" locale: nobody calls
 * setlocale(LC_NUMERIC). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/slice.h"
#include "base/status.h"

enum {
    JSON_GUARD_DEPTH_MAX = 1024,   /* of depth_max: jansson frees and prints a tree by recursion */
    JSON_GUARD_NUMBER_CHARS = 1024 /* longer literals are refused: no double needs them */
};

struct json_limits {
    uint32_t depth_max;  /* containers inside each other, 1..JSON_GUARD_DEPTH_MAX */
    uint64_t values_max; /* values of all types and levels, names not counted; 0: no limit */
    uint64_t memory_max; /* bytes the tree may take on the heap, counted from above; 0: no limit */
    bool unique_names;   /* a name twice in an object is STATUS_INVALID */
};

/* Walks the text without building anything. It counts the memory that json_guard_parse would take, but
 * cannot see equal names. */
enum status json_guard_check(struct slice text, const struct json_limits *limits,
                             struct error *err);

/* Builds the tree. The caller owns *out (json_decref); it is written only on success. */
enum status json_guard_parse(struct slice text, const struct json_limits *limits, json_t **out,
                             struct error *err);
