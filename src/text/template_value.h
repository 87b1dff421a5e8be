/* template_value.h - the values of a running template, and the state of one render (private to template*.c).
 *
 * Values are 16 bytes; what they point to lives in the render's arena and is never changed once another
 * value can see it (namespaces, loops, cyclers and iterators are the exceptions that the language has). A fault ends
 * the render by longjmp to template_render: while a template runs nothing is held but arena memory.
 *
 * Marks: each string carries the sorted runs of its bytes that came from outside. Two cases are free: no
 * runs at all, and the whole string (its one run lies in the header). All other strings are built by a `sink`,
 * which keeps bytes and runs together, so that no operation can forget them.
 *
 * Thread: a render belongs to one thread. Constants of a compiled template are shared by all renders, so their
 * lazily known fields (chars, hash) are filled in when they are made. */
#pragma once

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "text/template.h"

enum value_type {
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR, /* sub 1: Markup, as `safe` and `escape` make it */
    V_LIST,
    V_TUPLE, /* sub 1: what groupby makes, with .grouper and .list */
    V_DICT,
    V_VIEW, /* sub: enum view_kind */
    V_RANGE,
    V_ITER, /* a generator: true, without length, used up by reading */
    V_NAMESPACE,
    V_MACRO,
    V_LOOP,
    V_BUILTIN, /* a global function */
    V_METHOD,  /* a function with its first argument */
    V_CYCLER,
    V_JOINER,
    V_ABSENT /* an argument that was not given, a variable not looked up yet: never seen by templates */
};
enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
enum { UNDEFINED_PLAIN, UNDEFINED_UNSAFE };

struct value {
    uint8_t type, sub;
    union {
        bool b;
        int64_t i;
        double f;
        struct str *s;
        struct list *l;
        struct dict *d;
        struct range *range;
        struct iter *iter;
        struct macro *macro;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
        struct method *method;
        const struct builtin *builtin;
        const char *hint; /* V_UNDEFINED: the sentence of the fault, may be NULL */
    };
};

struct run { /* marked bytes [begin, end) of a string */
    uint32_t begin, end;
};
/* Room behind a string that `+` and `~` made: the next concatenation to its end goes in place. */
struct str_room {
    char *ptr;
    uint32_t used, cap;
    struct run *runs;
    uint32_t run_used, run_cap;
};
enum { STR_UNKNOWN = UINT32_MAX, STR_BYTES_MAX = INT32_MAX };
struct str {
    const char *ptr; /* well-formed UTF-8, not NUL-terminated */
    uint32_t len;    /* bytes */
    uint32_t chars;  /* code points, or STR_UNKNOWN */
    uint32_t hash;   /* 0: not known yet */
    uint32_t run_count;
    struct run *runs; /* sorted, disjoint; may touch */
    struct run whole; /* where runs points when all is marked */
    struct str_room *room;
};
struct list {
    struct value *items;
    uint32_t count, cap;
};
struct entry {
    struct value key, value;
};
struct dict {
    struct entry *entries; /* in order of insertion */
    uint32_t count, cap;
    uint32_t *index; /* open addressing, entry + 1; NULL while the dict is small */
    uint32_t mask;
};
struct range {
    int64_t start, stop, step;
    uint32_t count;
};
struct iter {
    struct list *items;
    uint32_t at;
    const char *name;  /* "<generator object ...>" */
    const char *fault; /* reading it is a fault, with this sentence; NULL: it is not */
};
struct cycler {
    struct list *items;
    uint32_t at;
};
struct joiner {
    struct value separator;
    bool used;
};
struct method {
    const struct builtin *builtin;
    struct value self;
};
struct loop {
    struct list *items;
    uint32_t at, depth;
    const struct node *node; /* the `for`; called again by loop(...) where it is recursive */
    struct scope *scope;     /* around the outermost `for` */
    struct value changed;    /* V_ABSENT, or the tuple of the last call */
};
struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined */
    bool autoescape;
};
struct binding {
    uint32_t sym;
    struct value value;
};
struct scope {
    struct scope *parent;
    struct binding *items;
    uint32_t count, cap;
    bool kept; /* a macro refers to it */
};

/* Arguments of a call after evaluation. */
struct args {
    struct value *pos;
    uint32_t count;
    struct value *names; /* V_STR */
    struct value *named;
    uint32_t named_count;
};
struct render;
/* a: the bound parameters, V_ABSENT where missing; args: as given (without the filtered value or self). */
typedef struct value builtin_fn(struct render *r, struct value *a, const struct args *args);
enum { BUILTIN_PARAMS_MAX = 6 };
struct builtin {
    const char *name;
    builtin_fn *fn;
    const char *params; /* "value width first"; NULL: fn reads args itself, a[0] is value or self */
    uint8_t required;   /* how many of params must be given */
    uint8_t type;       /* methods: enum value_type of self */
};

/* Bytes and marks under construction, in the arena. */
struct sink {
    struct render *r;
    char *ptr;
    uint32_t len, cap;
    struct run *runs;
    uint32_t run_count, run_cap;
};

struct render {
    struct arena arena;
    jmp_buf failed;
    enum template_fault fault;
    struct error *err;
    const struct template *t;
    struct template_limits limits;
    uint64_t steps; /* left */
    uint32_t depth, calls;
    struct sink *out;
    bool top; /* out is the render's output: output_max holds */
    struct scope *scope;
    struct dict *context;
    struct value *symbols; /* [symbol]: value of context or globals, V_ABSENT until asked for */
    int64_t now;
    bool autoescape;
    const struct str *raised; /* the message of raise_exception */
};

/* --- faults and limits (template.c) --- */
_Noreturn void template_fail(struct render *r, enum template_fault fault, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void *render_alloc(struct render *r, size_t size); /* zeroed; ends the render at the limit */
static inline void render_step(struct render *r, uint64_t count)
{
    if (r->steps < count) template_fail(r, TEMPLATE_LIMIT, "the template needs too many steps");
    r->steps -= count;
}
/* Every recursion of the evaluator or over values goes through these. */
enum { RECURSION_PER_DEPTH = 8 };
static inline void render_enter(struct render *r)
{
    if (++r->depth > r->limits.depth_max * RECURSION_PER_DEPTH)
        template_fail(r, TEMPLATE_LIMIT, "the template or its data is nested too deeply");
}
static inline void render_leave(struct render *r)
{
    r->depth--;
}

/* --- making values (template_value.c) --- */
static inline struct value v_none(void)
{
    return (struct value){.type = V_NONE};
}
static inline struct value v_absent(void)
{
    return (struct value){.type = V_ABSENT};
}
static inline struct value v_bool(bool b)
{
    return (struct value){.type = V_BOOL, .b = b};
}
static inline struct value v_int(int64_t i)
{
    return (struct value){.type = V_INT, .i = i};
}
static inline struct value v_float(double f)
{
    return (struct value){.type = V_FLOAT, .f = f};
}
static inline struct value v_list(struct list *l)
{
    return (struct value){.type = V_LIST, .l = l};
}
static inline struct value v_tuple(struct list *l)
{
    return (struct value){.type = V_TUPLE, .l = l};
}
static inline struct value v_dict(struct dict *d)
{
    return (struct value){.type = V_DICT, .d = d};
}
static inline struct value v_undefined(const char *hint)
{
    return (struct value){.type = V_UNDEFINED, .hint = hint};
}
struct value v_undefined_attr(struct render *r, struct value object, struct value name);
struct value v_unsafe_attr(struct render *r, struct value object, struct value name);
struct value v_iter(struct render *r, struct list *items, const char *name);
/* Bytes that outlive the render or lie in its arena; marked: all of them or none. */
struct value v_str(struct render *r, const char *ptr, size_t len, bool marked);
struct value v_text(struct render *r, const char *literal); /* static text, unmarked */
struct list *list_make(struct render *r, uint32_t cap);
void list_push(struct render *r, struct list *l, struct value v);
struct dict *dict_make(struct render *r, uint32_t cap);
/* The key must be hashable, else a fault. find gives NULL for a key that is not there. */
struct value *dict_find(struct render *r, const struct dict *d, struct value key);
void dict_set(struct render *r, struct dict *d, struct value key, struct value value);
struct value value_from_json(struct render *r, const json_t *json, bool marked, uint32_t depth);
/* The root object: marks what user and tool messages bring. */
struct dict *context_from_json(struct render *r, const json_t *context);

/* --- asking values --- */
static inline bool is_str(struct value v)
{
    return v.type == V_STR;
}
static inline bool is_number(struct value v)
{
    return v.type >= V_BOOL && v.type <= V_FLOAT;
}
static inline bool is_integer(struct value v) /* int or bool */
{
    return v.type == V_INT || v.type == V_BOOL;
}
static inline int64_t as_int(struct value v)
{
    return v.type == V_BOOL ? v.b : v.i;
}
double as_float(struct value v); /* of a number */
const char *type_name(struct value v);
bool value_true(struct value v);
bool value_equal(struct render *r, struct value a, struct value b);
/* <0, 0, >0 as Python's < orders them; NaN compares as none of them: *ordered false. Faults where < would. */
int value_compare(struct render *r, struct value a, struct value b, const char *op, bool *ordered);
bool value_contains(struct render *r, struct value container, struct value item);
/* Length as len(); a fault where there is none. */
uint32_t value_length(struct render *r, struct value v);
/* All elements that iterating gives (an iterator is used up); borrowed when it is a list or tuple. */
struct list *value_items(struct render *r, struct value v);
bool value_iterable(struct value v);
bool value_callable(struct value v);
_Noreturn void fail_undefined(struct render *r, struct value v);
/* A checked argument. */
int64_t arg_int(struct render *r, struct value v, int64_t absent, const char *what);
struct str *arg_str(struct render *r, struct value v, const char *what);

/* --- strings (template_text.c) --- */
uint32_t str_chars(const struct str *s); /* code points; remembers them */
static inline bool str_ascii(const struct str *s)
{
    return str_chars(s) == s->len;
}
uint32_t str_hash(struct str *s);
bool str_equal(const struct str *a, const struct str *b);
int str_compare(const struct str *a, const struct str *b);
bool str_is(const struct str *s, const char *text);
/* Byte offset of a code point index 0..chars. */
uint32_t str_offset(const struct str *s, uint32_t index);
uint32_t str_index(const struct str *s, uint32_t offset); /* the other way round */
/* Bytes [begin, end), sharing them. Keeps Markup-ness out: the caller sets sub. */
struct value str_sub(struct render *r, const struct str *s, uint32_t begin, uint32_t end);
struct value str_concat(struct render *r, struct value a, struct value b);
bool str_marked_at(const struct str *s, uint32_t offset,
                   uint32_t *hint); /* hint: run to start at */
/* First place of needle at or after from, or UINT32_MAX; and the last one. Bytes. */
uint32_t str_find(struct render *r, const struct str *s, const struct str *needle, uint32_t from);
uint32_t str_rfind(struct render *r, const struct str *s, const struct str *needle, uint32_t end);
/* Decodes the code point at *offset and moves on. */
uint32_t str_next(const char *ptr, uint32_t *offset);

void sink_init(struct sink *s, struct render *r);
void sink_put(struct sink *s, const char *ptr, size_t len, bool marked);
static inline void sink_text(struct sink *s, const char *text)
{
    sink_put(s, text, strlen(text), false);
}
void sink_code(struct sink *s, uint32_t code, bool marked);
void sink_fill(struct sink *s, const struct str *fill, uint64_t times);
void sink_str(struct sink *s, const struct str *text);
void sink_sub(struct sink *s, const struct str *text, uint32_t begin, uint32_t end);
void sink_printf(struct sink *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sink_float(struct sink *s, double f);                 /* repr(f) */
void sink_display(struct sink *s, struct value v);         /* str(v) */
void sink_repr(struct sink *s, struct value v);            /* repr(v) */
void sink_escaped(struct sink *s, const struct str *text); /* HTML */
struct value sink_value(struct sink *s);
struct value value_display(struct render *r,
                           struct value v); /* str(v) as a V_STR; strings pass through */
struct value value_escape(struct render *r, struct value v); /* Markup of it */
struct json_style {
    bool ascii, sort_keys, pretty;
    const struct str *indent, *item_separator, *key_separator;
};
void sink_json(struct sink *s, struct value v, const struct json_style *style, uint32_t level);

/* --- characters (template_unicode.c), as Python's str methods see them --- */
bool char_space(uint32_t code);
bool char_printable(uint32_t code);
bool char_alpha(uint32_t code);
bool char_decimal(uint32_t code);
bool char_digit(uint32_t code);
bool char_numeric(uint32_t code);
bool char_word(uint32_t code); /* \w of a regular expression */
bool char_cased(uint32_t code);
bool char_upper(uint32_t code);
bool char_lower(uint32_t code);
bool char_title(uint32_t code);
enum case_kind { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_FOLD };
/* The full mapping of one code point: 1..3 code points. Final sigma is the caller's. */
unsigned char_case(uint32_t code, enum case_kind kind, uint32_t out[3]);
/* The mapped string; lower case knows the final sigma. */
void sink_case(struct sink *s, const struct str *text, uint32_t begin, uint32_t end,
               enum case_kind kind);

/* --- attributes, calls, builtins --- */
struct value get_attr(struct render *r, struct value object, struct value name); /* object.name */
struct value get_item(struct render *r, struct value object, struct value key);  /* object[key] */
/* The attribute that Python's object itself has (methods, loop variables); false: none. */
bool find_attr(struct render *r, struct value object, struct value name, struct value *out);
struct value value_slice(struct render *r, struct value object, struct value start,
                         struct value stop, struct value step);
struct value binary_op(struct render *r, int op, struct value a, struct value b);
struct value value_add(struct render *r, struct value a, struct value b);
struct value format_percent(struct render *r, struct value format, struct value arg,
                            const struct dict *named);
struct value format_braces(struct render *r, struct value format, const struct args *args,
                           const struct dict *map);
/* item.a.b.0 for the path "a.b.0", an index or V_ABSENT; fallback (if given) stands for what is undefined. */
struct value value_path(struct render *r, struct value item, struct value path,
                        struct value fallback);
struct value str_replace(struct render *r, struct value self, struct str *old, struct str *new,
                         int64_t max); /* max < 0: all */
struct value call_value(struct render *r, struct value callee, const struct args *args);
struct value call_builtin(struct render *r, const struct builtin *b, struct value *first,
                          const struct args *args);
struct value call_macro(struct render *r, const struct macro *m, const struct args *args);
struct value call_loop(struct render *r, const struct loop *loop, struct value items);
const struct builtin *filter_find(struct slice name);
const struct builtin *test_find(struct slice name);
const struct builtin *global_find(struct slice name);
const struct builtin *method_find(uint8_t type, const struct str *name);
bool builtin_is(const struct builtin *b, const char *name);
extern const struct builtin template_list_filters[], template_text_filters[],
    template_web_filters[], template_tests[], template_globals[], template_str_methods[],
    template_other_methods[];
