/* template.h - a sandboxed interpreter for the Jinja templates that models bring.
 *
 * Renders as jinja2 does in the setting of transformers (ImmutableSandboxedEnvironment, trim_blocks,
 * lstrip_blocks, loop controls, `tojson`, `raise_exception`, `strftime_now`, `generation` tags): equal text on
 * tests/golden/templates. Every render is bounded in steps, depth, output and memory, so that a hostile template or
 * conversation ends in TEMPLATE_LIMIT and never in harm to the process.
 * Thread: a compiled template is immutable, any number of renders at once; a render or compile with the default limits
 * takes less than 256 KiB of stack. Memory: one arena per render, given back when it ends. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/slice.h"
#include "base/status.h"
#include "text/tokenizer.h"

enum template_fault {
    TEMPLATE_OK,
    TEMPLATE_RAISE,     /* the template called raise_exception; err->message is its message */
    TEMPLATE_UNDEFINED, /* an undefined value was used where it may not be */
    TEMPLATE_SYNTAX,
    TEMPLATE_SECURITY, /* a forbidden attribute or method */
    TEMPLATE_LIMIT,    /* steps, depth, output, memory */
    TEMPLATE_RUNTIME,  /* wrong types or values */
};
/* "raise", "undefined", ...: the names of the line protocol. */
const char *template_fault_name(enum template_fault fault);

struct template; /* opaque */

/* Compiles a source of at most 1 MiB. Errors: TEMPLATE_SYNTAX, TEMPLATE_LIMIT. */
enum template_fault template_compile(struct slice source, struct template **out, struct error *err);
void template_free(struct template *t); /* takes NULL */

struct template_limits {
    uint64_t steps_max;  /* evaluated nodes and loop turns */
    uint64_t memory_max; /* bytes of values alive or made during the render */
    uint64_t output_max; /* bytes */
    uint32_t depth_max;  /* nesting of calls, macros and expressions */
};
/* What a server uses: 10 million steps, 64 MiB, 16 MiB, 128. */
extern const struct template_limits template_limits_default;

struct
    template_marks { /* which bytes of the output came from outside; ends with template_marks_fini */
    struct text_range *ranges; /* owned, sorted, disjoint */
    size_t count, cap;
};
void template_marks_fini(struct template_marks *marks);

/* Renders with the members of the object `context` as variables (names keep their order) and `now`, the unix time
 * that strftime_now tells in UTC. marks (may be NULL): receives the byte ranges of *out that came from
 * string values inside context["documents"] or those elements of context["messages"] whose "role" is "user" or "tool",
 * through whatever operations on strings (slices, filters, joins, replace, tojson ...), and the names of members inside
 * them; bytes of any other origin are unmarked, and so is the text of "role" itself, which is one of two known words.
 * Renders append to *out only on success, but for TEMPLATE_RAISE: then the whole message is appended to it (err
 * holds what fits there). err->status is STATUS_LIMIT for TEMPLATE_LIMIT, else STATUS_INVALID. */
enum template_fault template_render(const struct template *t, const json_t *context, int64_t now,
                                    const struct template_limits *limits, struct buf *out,
                                    struct template_marks *marks, struct error *err);
