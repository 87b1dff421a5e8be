/* test_template.c - the interpreter renders as jinja2 does, marks what came from outside, and cannot be made to harm.
 *
 * Method: every row of tests/golden/templates (jinja2 3.1.6 in transformers' setting) is rendered; each must give the
 * same text, or fail where jinja2 fails (raise_exception with the same message). Sandbox rows must end within 2
 * seconds and the default limits. For the marks, what users and tools bring is written in Cyrillic and nothing else
 * is: after any operation the marked bytes must be exactly the Cyrillic ones. */
#include "test.h"

#include <time.h>

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>

#include "text/template.h"

/* CPU time of this thread: what a render took does not depend on what else the machine does. */
static int64_t cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

#ifdef INFERD_SANITIZED /* a sanitizer's code takes many times as long */
static const double seconds_max = 60;
#else
static const double seconds_max = 2;
#endif

enum { GOLDEN_NOW = 1741529107 }; /* 2025-03-09 14:05:07 UTC, as the manifest says */

struct outcome {
    enum template_fault fault;
    struct error err;
    struct buf text;
    struct template_marks marks;
};

static void outcome_fini(struct outcome *o)
{
    buf_fini(&o->text);
    template_marks_fini(&o->marks);
}

static struct outcome render_limited(struct slice source, const json_t *context,
                                     const struct template_limits *limits)
{
    struct outcome o = {0};
    struct template *t = NULL;

    buf_init(&o.text, 0);
    o.fault = template_compile(source, &t, &o.err);
    if (!o.fault)
        o.fault = template_render(t, context, GOLDEN_NOW, limits, &o.text, &o.marks, &o.err);
    template_free(t);
    return o;
}

static struct outcome render(const char *source, const json_t *context)
{
    return render_limited(slice_str(source), context, &template_limits_default);
}

static void expect_text(const char *source, const json_t *context, const char *want)
{
    struct outcome o = render(source, context);

    if (o.fault || strcmp(buf_cstr(&o.text), want) != 0)
        fail_msg("%s\n  gave  %s %s\n  not   %s", source, template_fault_name(o.fault),
                 o.fault ? o.err.message : buf_cstr(&o.text), want);
    outcome_fini(&o);
}

static void expect_fault(const char *source, const json_t *context, enum template_fault want)
{
    struct outcome o = render(source, context);

    if (o.fault != want)
        fail_msg("%s\n  gave %s (%s), not %s", source, template_fault_name(o.fault), o.err.message,
                 template_fault_name(want));
    EXPECT_TRUE(o.err.message[0] != 0);
    outcome_fini(&o);
}

/* --- golden rows --- */
static json_t *load_text_file(const char *relative)
{
    const char *path = test_golden(relative);
    FILE *f = path ? fopen(path, "rb") : NULL;
    static char text[1 << 20];
    size_t len;

    if (!f) fail_msg("%s is missing", relative);
    len = fread(text, 1, sizeof text, f);
    fclose(f);
    return json_stringn(text, len);
}

static json_t *row_template(const json_t *row)
{
    const char *file = json_string_value(json_object_get(row, "template_file"));
    char path[256];

    if (!file) return json_incref(json_object_get(row, "template"));
    snprintf(path, sizeof path, "templates/%s", file);
    return load_text_file(path);
}

static bool same_text(const struct outcome *o, const json_t *want)
{
    return !o->fault && json_is_string(want) && o->text.len == json_string_length(want) &&
           (!o->text.len || memcmp(o->text.ptr, json_string_value(want), o->text.len) == 0);
}

/* Whether the outcome is what the row expects, or accepts as well. The kind of a fault is advice (README-text.md). */
static bool row_holds(const json_t *row, const struct outcome *o)
{
    const json_t *expected = json_object_get(row, "expected"), *one;
    const json_t *kind = json_object_get(row, "expected_error"), *message;
    size_t i;

    if (expected) return same_text(o, expected);
    json_array_foreach(json_object_get(row, "accept"), i,
                       one) if (json_is_object(one) &&
                                same_text(o, json_object_get(one, "text"))) return true;
    if (!o->fault) return false;
    if (strcmp(json_string_value(kind), "raise") != 0) return o->fault != TEMPLATE_RAISE;
    message = json_object_get(row, "message");
    return o->fault == TEMPLATE_RAISE && o->text.len == json_string_length(message) &&
           memcmp(o->text.ptr, json_string_value(message), o->text.len) == 0;
}

static void check_golden(const char *name)
{
    char path[128];
    char *line = NULL;
    size_t room = 0;
    int rows = 0, bad = 0;
    FILE *f;

    snprintf(path, sizeof path, "templates/%s.jsonl", name);
    f = test_golden(path) ? fopen(test_golden(path), "rb") : NULL;
    if (!f) fail_msg("%s is missing", path);
    while (getline(&line, &room, f) >= 0) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL), *source = row_template(row);
        int64_t start = cpu_ns();
        struct outcome o =
            render_limited(slice_of(json_string_value(source), json_string_length(source)),
                           json_object_get(row, "context"), &template_limits_default);
        double seconds = (double)(cpu_ns() - start) * 1e-9;
        rows++;
        if (!row_holds(row, &o) || seconds > seconds_max) {
            bad++;
            fprintf(stderr, "%s (%.1f s): %s %s\n", json_string_value(json_object_get(row, "name")),
                    seconds, template_fault_name(o.fault),
                    o.fault ? o.err.message : buf_cstr(&o.text));
        }
        outcome_fini(&o);
        json_decref(source);
        json_decref(row);
    }
    free(line);
    fclose(f);
    if (bad || rows < 44) fail_msg("%s: %d of %d rows differ", name, bad, rows);
}

TEST(whole_templates_render_as_jinja2)
{
    static const char *const families[] = {
        "chatml",       "command_r", "deepseek_r1",  "deepseek_v3", "gemma_alternate",
        "hermes_tools", "llama3_1",  "llama3_tools", "mistral_v3",  "phi3",
        "qwen3",        "smollm2",   "think_switch"};

    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char name[64];
        snprintf(name, sizeof name, "family_%s", families[i]);
        check_golden(name);
    }
}

TEST(features_render_as_jinja2)
{
    check_golden("features");
}

TEST(hostile_templates_are_refused_or_limited)
{
    check_golden("sandbox");
}

/* known-faults kf-06 */
TEST(a_template_of_tools_turns_and_white_space_renders_to_the_letter)
{
    static const char first[] =
        "{%- if messages[0].role == 'system' %}\n    {{- '<|sys|>' + messages[0].content + "
        "'<|end|>\\n' }}\n"
        "    {%- set rest = messages[1:] %}\n{%- else %}\n    {%- set rest = messages %}\n{%- "
        "endif %}\n"
        "{%- if tools %}\n    {{- '<|tools|>' }}\n    {%- for t in tools %}\n        {{- t | "
        "tojson }}\n"
        "        {%- if not loop.last %}{{- '\\n' }}{%- endif %}\n    {%- endfor %}\n    {{- "
        "'<|end|>\\n' }}\n"
        "{%- endif %}\n{%- set ns = namespace(turn=0) %}\n{%- for m in rest %}\n    {%- if m.role "
        "== 'user' %}\n"
        "        {%- set ns.turn = ns.turn + 1 %}\n    {%- endif %}\n"
        "    {{- '<|' + m.role + '|>' + m.content | trim + '<|end|>\\n' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|assistant|' ~ ns.turn ~ '>' }}\n{%- endif "
        "%}\n";
    static const char second[] = "<a>\n{% for m in messages %}\n  {% if m.role == 'user' %}\nU:{{ "
                                 "m.content }}\n  {% endif %}\n"
                                 "{% endfor %}\n{{ 'x' }}\n\n";
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "system", "content",
                  "Be brief.", "role", "user", "content", "  hi\n", "role", "assistant", "content",
                  "yes", "role", "user", "content", "more & <b>");
    json_t *tools =
        json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"description\":"
                   "\"a < b & c's \\\"q\\\" é 日\",\"parameters\":{\"type\":\"object\","
                   "\"properties\":{\"k\":{\"type\":\"number\",\"default\":1.0}},"
                   "\"required\":[\"k\"]}}}]",
                   0, NULL);
    json_t *all = json_pack("{s:O,s:O,s:b}", "messages", messages, "tools", tools,
                            "add_generation_prompt", 1);
    json_t *one = json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content", "  hi\n",
                            "add_generation_prompt", 0);

    expect_text(
        first, all,
        "<|sys|>Be brief.<|end|>\n<|tools|>{\"type\": \"function\", \"function\": {\"name\": "
        "\"find\", \"description\": \"a < b & c's \\\"q\\\" é 日\", \"parameters\": {\"type\": "
        "\"object\", \"properties\": {\"k\": {\"type\": \"number\", \"default\": 1.0}}, "
        "\"required\": [\"k\"]}}}<|end|>\n<|user|>hi<|end|>\n<|assistant|>yes<|end|>\n"
        "<|user|>more & <b><|end|>\n<|assistant|2>");
    expect_text(first, one, "<|user|>hi<|end|>\n");
    expect_text(second, all, "<a>\nU:  hi\n\nU:more & <b>\nx\n");
    json_decref(all);
    json_decref(one);
    json_decref(messages);
    json_decref(tools);
}

/* --- marks --- */
static bool cyrillic(const char *text, size_t at)
{
    unsigned char c = (unsigned char)text[at];

    if ((c & 0xc0) == 0x80 && at > 0) c = (unsigned char)text[at - 1];
    return c == 0xd0 || c == 0xd1;
}

static void check_marks(const char *what, struct outcome *o)
{
    size_t range = 0, begin_before = 0;

    if (o->fault) fail_msg("%s: %s", what, o->err.message);
    for (size_t i = 0; i < o->marks.count; i++) {
        EXPECT_TRUE(o->marks.ranges[i].begin < o->marks.ranges[i].end);
        EXPECT_TRUE(i == 0 || begin_before < o->marks.ranges[i].begin);
        begin_before = o->marks.ranges[i].end;
    }
    for (size_t at = 0; at < o->text.len; at++) {
        while (range < o->marks.count && o->marks.ranges[range].end <= at)
            range++;
        bool marked = range < o->marks.count && o->marks.ranges[range].begin <= at;
        if (marked != cyrillic(o->text.ptr, at))
            fail_msg("%s: byte %zu of \"%s\" is %smarked", what, at, buf_cstr(&o->text),
                     marked ? "" : "not ");
    }
}

static json_t *coloured_context(void)
{
    return json_loads("{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                      "{\"role\":\"user\",\"content\":\"ПриветМир\",\"name\":\"Иван\"},"
                      "{\"role\":\"assistant\",\"content\":\"Fine\"},"
                      "{\"role\":\"user\",\"content\":\"ещёвопрос\"},"
                      "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
                      "\"abcdefgh1\",\"type\":\"function\","
                      "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":\"b\"}}}]},"
                      "{\"role\":\"tool\",\"content\":\"ответ\",\"tool_call_id\":\"абвгдежзи\"},"
                      "{\"role\":\"assistant\",\"content\":\"ok\"}],"
                      "\"list\":[{\"role\":\"user\",\"content\":\"elsewhere\"}],\"bos_token\":\"<s>"
                      "\",\"eos_token\":\"</s>\","
                      "\"tools\":null,\"add_generation_prompt\":true}",
                      0, NULL);
}

TEST(marks_follow_the_text_of_users_and_tools_through_every_operation)
{
    static const char *const sources[] = {
        "{{ u }}",
        "a{{ u }}b{{ u }}",
        "{{ u ~ 'x' ~ u }}",
        "{{ 'x' + u + 'y' }}",
        "{{ u * 3 }}",
        "{{ u[2:5] }}|{{ u[::-1] }}|{{ u[0] }}|{{ u[-1] }}",
        "{{ ('ab' ~ u ~ 'cd' ~ u)[1:14] }}",
        "{{ ('ab' ~ u ~ 'cd')[::-1] }}",
        "{{ u | upper }}{{ u | lower }}{{ u | title }}{{ u | capitalize }}",
        "{{ u.upper() }}{{ u.swapcase() }}{{ u.title() }}{{ u.casefold() }}",
        "{{ (' ' ~ u ~ ' x ') | trim }}{{ ('x' ~ u).lstrip('x') }}",
        "{{ u.replace('и', '-') }}",
        "{{ 'a-b'.replace('-', u) }}",
        "{{ u | replace('М', 'm' ~ u) }}",
        "{{ 'abc'.join([u, u, 'x']) }}",
        "{{ [u, 'x', u] | join(', ') }}",
        "{{ u | join('-') }}",
        "{{ u | list }}",
        "{{ [u, {'k': u}, (u,)] }}",
        "{{ {'k': u} | tojson }}",
        "{{ {'k': [u, 'x']} | tojson(indent=2) }}",
        "{{ '%s and %5s' | format(u, 'x') }}{{ '%-12s|' % u }}",
        "{{ '{} {:>14} {!r}'.format(u, u, u) }}",
        "{{ u.center(20, '*') }}{{ u.ljust(12) }}{{ u.zfill(14) }}",
        "{{ (u ~ '\\n' ~ u) | indent(2, true) }}",
        "{{ u.split('и') }}",
        "{{ (u ~ ' x ' ~ u).split() | join('/') }}",
        "{{ u.partition('М') }}",
        "{{ (u ~ ',x').split(',')[0] }}",
        "{{ ('x\\n' ~ u).splitlines()[1] }}",
        "{{ u | reverse }}",
        "{{ u | first }}{{ u | last }}",
        "{{ [u] | first }}",
        "{{ u | truncate(5, true, '..', 0) }}",
        "{{ (u ~ ' ' ~ u) | wordwrap(6) }}",
        "{{ ('<b>' ~ u ~ '</b>') | striptags }}",
        "{{ ('<' ~ u ~ '>') | escape }}",
        "{{ u | default('x') }}{{ u if u else 'x' }}{{ u or 'x' }}",
        "{% set v %}a{{ u }}b{% endset %}{{ v }}{{ v[1:4] }}",
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u) }}{{ m(u) | upper }}",
        "{% filter upper %}a{{ u }}b{% endfilter %}",
        "{% set ns = namespace(s='') %}{% for c in u %}{% set ns.s = ns.s ~ c ~ '.' %}{% endfor "
        "%}{{ ns.s }}",
        "{% for c in u %}{{ c }}-{% endfor %}",
        "{{ messages | map(attribute='content') | join('|') }}",
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
        "{% for k, v in messages[1].items() %}{{ k ~ '=' if k != 'content' and k != 'name' and k "
        "!= 'role' }}{{ v }};{% endfor %}",
        "{{ messages[1].role }}{{ messages[5].role }}{{ messages[5].tool_call_id }}{{ "
        "messages[1].name }}",
        "{{ list[0].content }}{{ messages[0].content }}{{ messages[2].content }}",
        "{{ u.removeprefix('П') }}{{ u.expandtabs() }}",
        "{{ [u, messages[3].content] | sort | join }}",
        "{{ [u, u] | unique | join }}",
        "{{ u | string | safe }}",
        "{{ u | forceescape }}{{ (u | safe) + '<' }}{{ ('<' | safe) + u }}",
        "{{ u.format() }}{{ ('{}' ~ u).format('x') }}",
        "{{ [{'k': u}] | groupby('k') }}",
        "{{ [u, u] | batch(1) | list }}",
        "{{ dict(a=u) }}{{ dict(a=u).values() | list }}",
        "{% macro n(y) %}{{ caller(y) }}{% endmacro %}{% call(x) n(u) %}{{ x }}!{% endcall %}"};
    json_t *context = coloured_context();

    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        char source[512];
        snprintf(source, sizeof source, "{%% set u = messages[1].content %%}%s", sources[i]);
        struct outcome o = render(source, context);
        check_marks(sources[i], &o);
        outcome_fini(&o);
    }
    json_decref(context);
}

TEST(marks_are_right_in_whole_templates)
{
    static const char *const files[] = {
        "chatml",       "command_r",  "deepseek_r1", "deepseek_v3", "hermes_tools", "llama3_1",
        "llama3_tools", "mistral_v3", "phi3",        "qwen3",       "smollm2",      "think_switch"};
    json_t *context = coloured_context();
    int marked = 0;

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        snprintf(path, sizeof path, "templates/files/%s.jinja", files[i]);
        json_t *source = load_text_file(path);
        struct outcome o = render(json_string_value(source), context);
        if (!o.fault) { /* some refuse such a conversation */
            check_marks(files[i], &o);
            marked += o.marks.count > 0;
        }
        outcome_fini(&o);
        json_decref(source);
    }
    EXPECT_TRUE(marked >= 8);
    json_decref(context);
}

TEST(an_escape_of_marked_text_is_marked)
{
    json_t *context =
        json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "\"<\xd0\x90");
    struct outcome o = render("[{{ messages[0].content | tojson(ensure_ascii=true) }}]", context);

    EXPECT_STR(buf_cstr(&o.text), "[\"\\\"<\\u0410\"]");
    EXPECT_EQ(o.marks.count, 1);
    EXPECT_EQ(o.marks.ranges[0].begin, 2);
    EXPECT_EQ(o.marks.ranges[0].end, 11);
    outcome_fini(&o);
    o = render("{{ messages[0].content | escape }}{{ messages[0].content | urlencode }}", context);
    EXPECT_STR(buf_cstr(&o.text), "&#34;&lt;\xd0\x90%22%3C%D0%90");
    EXPECT_EQ(o.marks.count, 1);
    EXPECT_EQ(o.marks.ranges[0].end, o.text.len);
    outcome_fini(&o);
    json_decref(context);
}

/* --- limits and faults --- */
TEST(each_limit_ends_a_render)
{
    struct template_limits limits = template_limits_default;
    struct slice loop =
        SLICE("{% for i in range(1000) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}");
    struct outcome o;

    limits.steps_max = 10000;
    o = render_limited(loop, NULL, &limits);
    EXPECT_EQ(o.fault, TEMPLATE_LIMIT);
    EXPECT_EQ(o.text.len, 0);
    outcome_fini(&o);
    limits = template_limits_default;
    limits.output_max = 1000;
    o = render_limited(loop, NULL, &limits);
    EXPECT_EQ(o.fault, TEMPLATE_LIMIT);
    outcome_fini(&o);
    limits = template_limits_default;
    limits.memory_max = 1 << 20;
    o = render_limited(SLICE("{{ 'x' * 2000000 }}"), NULL, &limits);
    EXPECT_EQ(o.fault, TEMPLATE_LIMIT);
    outcome_fini(&o);
    limits = template_limits_default;
    limits.depth_max = 8;
    o = render_limited(SLICE("{% macro f(n) %}{{ f(n - 1) if n }}{% endmacro %}{{ f(20) }}"), NULL,
                       &limits);
    EXPECT_EQ(o.fault, TEMPLATE_LIMIT);
    outcome_fini(&o);
    o = render_limited(SLICE("{% macro f(n) %}{{ f(n - 1) if n }}{% endmacro %}{{ f(6) }}"), NULL,
                       &limits);
    EXPECT_EQ(o.fault, TEMPLATE_OK);
    outcome_fini(&o);
}

TEST(a_fault_has_a_kind_and_a_sentence)
{
    expect_fault("{{ raise_exception('no') }}", NULL, TEMPLATE_RAISE);
    expect_fault("{{ nope.x }}", NULL, TEMPLATE_UNDEFINED);
    expect_fault("{{ 1 + }}", NULL, TEMPLATE_SYNTAX);
    expect_fault("{{ 1 | nosuch }}", NULL, TEMPLATE_SYNTAX);
    expect_fault("{% include 'x' %}", NULL, TEMPLATE_SYNTAX);
    expect_fault("{{ [].append(1) }}", NULL, TEMPLATE_SECURITY);
    expect_fault("{{ ''.__class__ }}", NULL, TEMPLATE_SECURITY);
    expect_fault("{% for i in range(10000000) %}x{% endfor %}", NULL, TEMPLATE_LIMIT); /* kf-10 */
    expect_fault("{{ 1 + 'a' }}", NULL, TEMPLATE_RUNTIME);
    expect_fault("\xff{{ 1 }}", NULL, TEMPLATE_SYNTAX);
    expect_fault("{{ 99999999999999999999 }}", NULL, TEMPLATE_LIMIT);
    expect_fault("{{ 9223372036854775807 + 1 }}", NULL, TEMPLATE_LIMIT);
}

TEST(a_source_over_one_mebibyte_is_refused)
{
    char *source = malloc((1 << 20) + 1);
    struct template *t = NULL;
    struct error err;

    memset(source, 'x', (1 << 20) + 1);
    EXPECT_EQ(template_compile(slice_of(source, (1 << 20) + 1), &t, &err), TEMPLATE_LIMIT);
    EXPECT_EQ(template_compile(slice_of(source, 1 << 20), &t, &err), TEMPLATE_OK);
    template_free(t);
    free(source);
}

TEST(a_long_message_of_raise_exception_is_whole_in_the_output)
{
    struct outcome o = render("before {{ raise_exception('é' * 2000) }}", NULL);

    EXPECT_EQ(o.fault, TEMPLATE_RAISE);
    EXPECT_EQ(o.text.len, 4000);
    EXPECT_EQ((unsigned char)o.text.ptr[0], 0xc3);
    EXPECT_EQ(strlen(o.err.message) % 2, 0); /* cut between characters */
    outcome_fini(&o);
}

TEST(rendering_appends_and_a_fault_leaves_the_buffer_as_it_was)
{
    struct template *t = NULL;
    struct buf out;
    struct template_marks marks = {0};
    struct error err;
    json_t *context = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "abc");

    buf_init(&out, 0);
    buf_append_str(&out, "12");
    EXPECT_EQ(template_compile(SLICE("-{{ messages[0].content }}"), &t, &err), TEMPLATE_OK);
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(template_render(t, context, 0, &template_limits_default, &out, &marks, &err),
                  TEMPLATE_OK);
    EXPECT_STR(buf_cstr(&out), "12-abc-abc");
    EXPECT_EQ(marks.count, 1);
    EXPECT_EQ(marks.ranges[0].begin, 7);
    template_free(t);
    EXPECT_EQ(template_compile(SLICE("text {{ nope.x }}"), &t, &err), TEMPLATE_OK);
    EXPECT_EQ(template_render(t, context, 0, &template_limits_default, &out, &marks, &err),
              TEMPLATE_UNDEFINED);
    EXPECT_STR(buf_cstr(&out), "12-abc-abc");
    template_free(t);
    template_marks_fini(&marks);
    buf_fini(&out);
    json_decref(context);
}

TEST(every_prefix_of_a_template_compiles_or_is_refused)
{
    static const char *const files[] = {"llama3_tools", "think_switch", "command_r"};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[64];
        snprintf(path, sizeof path, "templates/files/%s.jinja", files[i]);
        json_t *source = load_text_file(path);
        size_t len = json_string_length(source);
        for (size_t n = 0; n <= len; n += test_long() ? 1 : 7) {
            unsigned char *copy = test_guarded_copy(json_string_value(source), n);
            struct template *t = NULL;
            struct error err = {0};
            enum template_fault fault = template_compile(slice_of(copy, n), &t, &err);
            EXPECT_TRUE(fault ? t == NULL && err.message[0] : t != NULL);
            template_free(t);
            test_guarded_free(copy, n);
        }
        json_decref(source);
    }
}

/* By the counts of steps and bytes, which no load of the machine changes. */
TEST(work_and_memory_grow_with_the_number_of_messages_and_no_faster)
{
    json_t *source = load_text_file("templates/files/qwen3.jinja");

    for (int count = 101; count <= 10001; count = count * 10 - 9) {
        json_t *messages = json_array();
        for (int i = 0; i < count; i++)
            json_array_append_new(messages,
                                  json_pack("{s:s,s:s}", "role", i % 2 ? "assistant" : "user",
                                            "content", "Some text of a message."));
        json_t *context = json_pack("{s:o,s:b}", "messages", messages, "add_generation_prompt", 1);
        struct template_limits limits = template_limits_default;
        limits.steps_max = (uint64_t)count * 150;
        limits.memory_max = (uint64_t)count * 3000;
        struct outcome o = render_limited(slice_str(json_string_value(source)), context, &limits);
        if (o.fault) fail_msg("%d messages: %s", count, o.err.message);
        outcome_fini(&o);
        json_decref(context);
    }
    json_decref(source);
}

/* Text that grows by its own end is not copied each time: a megabyte in small pieces fits the memory limit. */
TEST(text_gathered_in_a_namespace_grows_in_place)
{
    struct outcome o =
        render("{% set ns = namespace(s='') %}{% for i in range(50000) %}"
               "{% set ns.s = ns.s ~ 'twenty letters or so' %}{% endfor %}{{ ns.s | length }}",
               NULL);

    EXPECT_EQ(o.fault, TEMPLATE_OK);
    EXPECT_STR(buf_cstr(&o.text), "1000000");
    outcome_fini(&o);
}

struct shared {
    const struct template *t;
    const json_t *context;
    char *text;
};

static void *render_often(void *arg)
{
    struct shared *s = arg;
    struct error err;

    for (int i = 0; i < 200; i++) {
        struct buf out;
        buf_init(&out, 0);
        if (!template_render(s->t, s->context, 0, &template_limits_default, &out, NULL, &err) &&
            i == 0)
            s->text = strdup(buf_cstr(&out));
        buf_fini(&out);
    }
    return NULL;
}

TEST(one_template_serves_several_threads_at_once)
{
    json_t *source = load_text_file("templates/files/think_switch.jinja");
    struct shared shared[4];
    pthread_t threads[4];
    struct template *t = NULL;
    struct error err;

    EXPECT_EQ(template_compile(slice_str(json_string_value(source)), &t, &err), TEMPLATE_OK);
    for (int i = 0; i < 4; i++) {
        shared[i] = (struct shared){t, coloured_context(), NULL};
        pthread_create(&threads[i], NULL, render_often, &shared[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT_TRUE(shared[i].text != NULL);
        EXPECT_STR(shared[i].text, shared[0].text);
    }
    for (int i = 0; i < 4; i++) {
        free(shared[i].text);
        json_decref((json_t *)shared[i].context);
    }
    template_free(t);
    json_decref(source);
}
