/* template_lex.c - a template's source to tokens, as jinja2's lexer with trim_blocks and lstrip_blocks.
 *
 * White space: `-` in a delimiter strips all of it on that side; `+` keeps what would go. Else a block or a comment
 * takes the newline right after it (trim) and the blanks before it when nothing else stands on the line (lstrip).
 * Inside brackets a closing delimiter is an operator: {{ {'a': {}} }}. */
#include "text/template_ast.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"

void lex_init(struct compiler *c, struct slice source)
{
    char *text = compile_alloc(c, source.len + 4);
    uint32_t len = 0;

    for (size_t i = 0; i < source.len; i++) {
        char ch = source.ptr[i];
        if (ch == '\r') {
            ch = '\n';
            if (i + 1 < source.len && source.ptr[i + 1] == '\n') i++;
        }
        text[len++] = ch;
    }
    if (len && text[len - 1] == '\n') len--; /* one newline at the very end is dropped */
    c->src = text;
    c->len = len;
    c->at = 0;
    c->line = 1;
    c->line_starting = true;
}

static bool looking_at(const struct compiler *c, uint32_t at, const char *text)
{
    size_t n = strlen(text);

    return c->len - at >= n && memcmp(c->src + at, text, n) == 0;
}

static void advance(struct compiler *c, uint32_t to)
{
    for (; c->at < to; c->at++)
        c->line += c->src[c->at] == '\n';
}

/* First offset at or after `at` that is no white space. */
static uint32_t skip_space(const struct compiler *c, uint32_t at)
{
    while (at < c->len) {
        uint32_t next = at;
        if (!char_space(str_next(c->src, &next))) break;
        at = next;
    }
    return at;
}

static uint32_t strip_right(const struct compiler *c, uint32_t begin, uint32_t end)
{
    while (end > begin) {
        uint32_t at = end - 1, next;
        while (at > begin && ((unsigned char)c->src[at] & 0xc0) == 0x80)
            at--;
        next = at;
        if (!char_space(str_next(c->src, &next))) break;
        end = at;
    }
    return end;
}

/* Where the data [begin, end) before a delimiter ends when its white space control has been applied. */
static uint32_t data_end(const struct compiler *c, uint32_t begin, uint32_t end, char sign,
                         bool variable)
{
    uint32_t line = end, at;

    if (sign == '-') return strip_right(c, begin, end);
    if (sign == '+' || variable) return end;
    while (line > begin && c->src[line - 1] != '\n')
        line--;
    if (line == begin && !c->line_starting) return end;
    at = skip_space(c, line);
    return at >= end ? line : end;
}

/* The end of a delimiter (len bytes at `at`) with what white space control takes behind it. */
static uint32_t closing_end(const struct compiler *c, uint32_t at, uint32_t len, bool minus,
                            bool trim)
{
    uint32_t end = at + len;

    if (minus) return skip_space(c, end);
    if (trim && end < c->len && c->src[end] == '\n') end++;
    return end;
}

static char sign_at(const struct compiler *c, uint32_t at)
{
    return at < c->len && (c->src[at] == '-' || c->src[at] == '+') ? c->src[at] : 0;
}

/* {% raw %} at `at`: the offset behind it, or 0. */
static uint32_t raw_begin(const struct compiler *c, uint32_t at)
{
    at += 2;
    if (sign_at(c, at)) at++;
    at = skip_space(c, at);
    if (!looking_at(c, at, "raw")) return 0;
    at = skip_space(c, at + 3);
    if (looking_at(c, at, "-%}")) return closing_end(c, at, 3, true, false);
    return looking_at(c, at, "%}") ? at + 2 : 0;
}

/* {%...endraw...%} at `at`: the offset behind it, or 0. */
static uint32_t raw_end(const struct compiler *c, uint32_t at)
{
    at += 2;
    if (sign_at(c, at)) at++;
    at = skip_space(c, at);
    if (!looking_at(c, at, "endraw")) return 0;
    at = skip_space(c, at + 6);
    if (looking_at(c, at, "-%}")) return closing_end(c, at, 3, true, true);
    if (looking_at(c, at, "+%}")) return at + 3;
    return looking_at(c, at, "%}") ? closing_end(c, at, 2, false, true) : 0;
}

static void finish_match(struct compiler *c, uint32_t to)
{
    advance(c, to);
    c->line_starting = to > 0 && c->src[to - 1] == '\n';
}

static void skip_comment(struct compiler *c, uint32_t open)
{
    uint32_t at = open;

    if (open == c->len) { /* nothing follows: jinja2 lets that pass */
        finish_match(c, open);
        return;
    }
    while (at < c->len) {
        if (looking_at(c, at, "+#}")) break;
        if (looking_at(c, at, "-#}")) break;
        if (looking_at(c, at, "#}")) break;
        at++;
    }
    if (at >= c->len) compile_fail(c, TEMPLATE_SYNTAX, c->line, "missing end of comment: #}");
    if (c->src[at] == '+')
        at += 3;
    else if (c->src[at] == '-')
        at = closing_end(c, at, 3, true, true);
    else
        at = closing_end(c, at, 2, false, true);
    finish_match(c, at);
}

static bool give_data(struct token *out, const struct compiler *c, uint32_t begin, uint32_t end)
{
    if (end == begin) return false;
    *out = (struct token){.type = T_DATA, .line = c->line, .text = {c->src + begin, end - begin}};
    return true;
}

/* Between tags. Returns true when *out is a piece of data; else a tag has been entered or the end is reached. */
static bool lex_raw(struct compiler *c, uint32_t behind, struct token *out)
{
    uint32_t begin = behind, at;
    bool data;

    finish_match(c, behind);
    if (behind == c->len) return false; /* nothing follows: jinja2 lets that pass */
    for (at = begin; at < c->len; at++) {
        uint32_t end = looking_at(c, at, "{%") ? raw_end(c, at) : 0;
        if (!end) continue;
        data = give_data(out, c, begin, data_end(c, begin, at, sign_at(c, at + 2), false));
        finish_match(c, end);
        return data;
    }
    compile_fail(c, TEMPLATE_SYNTAX, c->line, "missing end of raw block: {%% endraw %%}");
}

static bool lex_data(struct compiler *c, struct token *out)
{
    uint32_t begin = c->at, at = begin, raw;
    bool data;
    char sign;

    for (; at < c->len; at++) {
        const char *brace = memchr(c->src + at, '{', c->len - at);
        at = brace ? (uint32_t)(brace - c->src) : c->len;
        if (at + 1 < c->len && memchr("{%#", c->src[at + 1], 3)) break;
    }
    if (at >= c->len) {
        data = give_data(out, c, begin, c->len);
        advance(c, c->len);
        return data;
    }
    sign = sign_at(c, at + 2);
    data = give_data(out, c, begin, data_end(c, begin, at, sign, c->src[at + 1] == '{'));
    advance(c, at);
    if (c->src[at + 1] == '#') {
        skip_comment(c, at + 2 + (sign != 0));
        return data;
    }
    raw = c->src[at + 1] == '%' ? raw_begin(c, at) : 0;
    if (raw) {
        struct token inner;
        if (data) { /* the data before comes first: give it, and find the raw block again then */
            c->line_starting = false;
            return true;
        }
        if (!lex_raw(c, raw, &inner)) return false;
        *out = inner;
        return true;
    }
    c->in_tag = true;
    c->in_block = c->src[at + 1] == '%';
    c->pending = c->in_block ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN;
    finish_match(c, at + 2 + (sign != 0));
    return data;
}

static uint32_t digits(const struct compiler *c, uint32_t at, const char *set)
{
    uint32_t start = at;

    while (at < c->len) {
        uint32_t d = at;
        if (c->src[d] == '_' && d > start) d++;
        if (d >= c->len || !c->src[d] || !strchr(set, c->src[d])) break;
        at = d + 1;
    }
    return at;
}

/* The digits of src[begin, end) without underscores. */
static char *plain_number(struct compiler *c, uint32_t begin, uint32_t end)
{
    char *out = compile_alloc(c, end - begin + 1);
    uint32_t n = 0;

    for (uint32_t i = begin; i < end; i++)
        if (c->src[i] != '_') out[n++] = c->src[i];
    return out;
}

static void lex_integer(struct compiler *c, struct token *out, uint32_t end, int base, int skip)
{
    char *text = plain_number(c, c->at, end);

    out->type = T_INTEGER;
    errno = 0;
    out->value = v_int(strtoll(text + skip, NULL, base));
    if (errno)
        compile_fail(c, TEMPLATE_LIMIT, c->line, "the integer %.40s does not fit 64 bits", text);
}

static void lex_number(struct compiler *c, struct token *out)
{
    static const char decimal[] = "0123456789";
    uint32_t at = c->at, end = digits(c, at, decimal), mark = end;
    bool after_dot = at > 0 && c->src[at - 1] == '.', is_float = false;

    if (c->src[at] == '0' && at + 2 < c->len) {
        char kind = (char)(c->src[at + 1] | 0x20);
        const char *set = kind == 'x' ? "0123456789abcdefABCDEF" : kind == 'o' ? "01234567" : "01";
        uint32_t first = at + 2 + (c->src[at + 2] == '_');
        uint32_t stop = strchr("xob", kind) ? digits(c, first, set) : first;
        if (stop > first) {
            lex_integer(c, out, stop, kind == 'x' ? 16 : kind == 'o' ? 8 : 2, 2);
            advance(c, stop);
            return;
        }
    }
    if (!after_dot) {
        if (mark + 1 < c->len && c->src[mark] == '.' && isdigit((unsigned char)c->src[mark + 1])) {
            mark = digits(c, mark + 1, decimal);
            is_float = true;
        }
        if (mark < c->len && (c->src[mark] | 0x20) == 'e') {
            uint32_t exponent = mark + 1;
            if (exponent < c->len && memchr("+-", c->src[exponent], 2)) exponent++;
            if (exponent < c->len && isdigit((unsigned char)c->src[exponent])) {
                mark = digits(c, exponent, decimal);
                is_float = true;
            }
        }
    }
    if (is_float) {
        out->type = T_FLOAT;
        out->value = v_float(strtod(plain_number(c, at, mark), NULL));
        advance(c, mark);
        return;
    }
    if (c->src[at] == '0') end = digits(c, at, "0"); /* 012 is 0 and then 12, as in jinja2 */
    lex_integer(c, out, end, 10, 0);
    advance(c, end);
}

static bool name_start(uint32_t code)
{
    return code == '_' || char_alpha(code);
}

static void lex_name(struct compiler *c, struct token *out)
{
    uint32_t at = c->at;

    while (at < c->len) {
        uint32_t next = at, code = str_next(c->src, &next);
        if (code != '_' && !char_word(code)) break;
        at = next;
    }
    out->type = T_NAME;
    out->text = slice_of(c->src + c->at, at - c->at);
    advance(c, at);
}

/* The code of \xHH, \uHHHH, \UHHHHHHHH at `at` (behind the letter). */
static uint32_t hex_escape(struct compiler *c, uint32_t at, uint32_t end, unsigned count)
{
    uint32_t code = 0;

    for (unsigned i = 0; i < count; i++, at++) {
        int ch = at < end ? (unsigned char)c->src[at] : 0;
        if (!isxdigit(ch))
            compile_fail(c, TEMPLATE_SYNTAX, c->line,
                         "truncated \\x, \\u or \\U escape in a string");
        code = code << 4 | (uint32_t)(isdigit(ch) ? ch - '0' : (ch | 0x20) - 'a' + 10);
    }
    if (code > 0x10ffff) compile_fail(c, TEMPLATE_SYNTAX, c->line, "illegal Unicode character");
    return code;
}

/* The contents [begin, end) of a string literal with its escapes resolved. */
static struct slice unescape(struct compiler *c, uint32_t begin, uint32_t end)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char *out;
    uint32_t len = 0;

    if (!memchr(c->src + begin, '\\', end - begin)) return slice_of(c->src + begin, end - begin);
    out = compile_alloc(c, end - begin);
    for (uint32_t at = begin; at < end; at++) {
        const char *simple;
        char ch = c->src[at], e;
        if (ch != '\\') {
            out[len++] = ch;
            continue;
        }
        e = c->src[++at]; /* the lexer saw that something follows */
        if (e == '\n') continue;
        if (e && (simple = strchr(from, e))) {
            out[len++] = to[simple - from];
        } else if (e == 'x' || e == 'u' || e == 'U') {
            unsigned count = e == 'x' ? 2 : e == 'u' ? 4 : 8;
            uint32_t code = hex_escape(c, at + 1, end, count), low;
            at += count;
            if (code >= 0xd800 && code < 0xdc00 && end - at > 6 && c->src[at + 1] == '\\' &&
                c->src[at + 2] == 'u') { /* the two halves of a character beyond U+FFFF */
                low = hex_escape(c, at + 3, end, 4);
                if (low >= 0xdc00 && low < 0xe000) {
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                    at += 6;
                }
            }
            len += utf8_encode(code >= 0xd800 && code < 0xe000 ? 0xfffd : code, out + len);
        } else if (e >= '0' && e <= '7') {
            uint32_t code = 0, n = 0;
            for (; n < 3 && at + n < end && c->src[at + n] >= '0' && c->src[at + n] <= '7'; n++)
                code = code * 8 + (uint32_t)(c->src[at + n] - '0');
            len += utf8_encode(code, out + len);
            at += n - 1;
        } else if (e == 'N') {
            compile_fail(c, TEMPLATE_SYNTAX, c->line, "\\N{...} is not supported; write \\uXXXX");
        } else {
            out[len++] = '\\';
            out[len++] = e;
        }
    }
    return slice_of(out, len);
}

static void lex_string(struct compiler *c, struct token *out)
{
    char quote = c->src[c->at];
    uint32_t at = c->at + 1;

    for (; at < c->len && c->src[at] != quote; at++)
        if (c->src[at] == '\\') at++;
    if (at >= c->len)
        compile_fail(c, TEMPLATE_SYNTAX, c->line, "unexpected char %s: the string has no end",
                     quote == '"' ? "'\"'" : "\"'\"");
    out->type = T_STRING;
    out->text = unescape(c, c->at + 1, at);
    advance(c, at + 1);
}

static const struct operator_text {
    char text[3];
    uint8_t op;
} operators[] = {
    {"//", OP_FLOORDIV}, {"**", OP_POW},   {"==", OP_EQ},      {"!=", OP_NE},      {">=", OP_GE},
    {"<=", OP_LE},       {"+", OP_ADD},    {"-", OP_SUB},      {"/", OP_DIV},      {"*", OP_MUL},
    {"%", OP_MOD},       {"~", OP_TILDE},  {"[", OP_LBRACKET}, {"]", OP_RBRACKET}, {"(", OP_LPAREN},
    {")", OP_RPAREN},    {"{", OP_LBRACE}, {"}", OP_RBRACE},   {">", OP_GT},       {"<", OP_LT},
    {"=", OP_ASSIGN},    {".", OP_DOT},    {":", OP_COLON},    {"|", OP_PIPE},     {",", OP_COMMA},
    {";", OP_SEMICOLON},
};

static void balance(struct compiler *c, uint8_t op)
{
    char closing = op == OP_LPAREN ? ')' : op == OP_LBRACKET ? ']' : op == OP_LBRACE ? '}' : 0;
    char given = op == OP_RPAREN ? ')' : op == OP_RBRACKET ? ']' : op == OP_RBRACE ? '}' : 0;

    if (closing) {
        if (c->bracket_count == sizeof c->brackets)
            compile_fail(c, TEMPLATE_LIMIT, c->line, "brackets are nested too deeply");
        c->brackets[c->bracket_count++] = closing;
    } else if (given) {
        if (!c->bracket_count) compile_fail(c, TEMPLATE_SYNTAX, c->line, "unexpected '%c'", given);
        if (c->brackets[--c->bracket_count] != given)
            compile_fail(c, TEMPLATE_SYNTAX, c->line, "unexpected '%c', expected '%c'", given,
                         c->brackets[c->bracket_count]);
    }
}

static void lex_operator(struct compiler *c, struct token *out)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!looking_at(c, c->at, operators[i].text)) continue;
        out->type = T_OPERATOR;
        out->op = operators[i].op;
        out->text = slice_str(operators[i].text);
        balance(c, out->op);
        advance(c, c->at + (uint32_t)out->text.len);
        return;
    }
    compile_fail(c, TEMPLATE_SYNTAX, c->line, "unexpected char '%.1s' at %u",
                 (unsigned char)c->src[c->at] < 0x80 ? c->src + c->at : "?", c->at);
}

/* The closing delimiter of the tag at c->at: its end, or 0. */
static uint32_t tag_end(const struct compiler *c)
{
    const char *close = c->in_block ? "%}" : "}}";
    char sign = sign_at(c, c->at);

    if (c->bracket_count) return 0;
    if (looking_at(c, c->at, close)) return closing_end(c, c->at, 2, false, c->in_block);
    if (!sign || !looking_at(c, c->at + 1, close)) return 0;
    if (sign == '-') return closing_end(c, c->at, 3, true, false);
    return c->in_block ? c->at + 3 : 0;
}

static void lex_tag(struct compiler *c, struct token *out)
{
    uint32_t end = tag_end(c), next, code;

    if (!end) {
        advance(c, skip_space(c, c->at));
        end = tag_end(c);
    }
    *out = (struct token){.line = c->line};
    if (end) {
        out->type = c->in_block ? T_BLOCK_END : T_VARIABLE_END;
        c->in_tag = false;
        finish_match(c, end);
        return;
    }
    if (c->at >= c->len) {
        out->type = T_END;
        return;
    }
    next = c->at;
    code = str_next(c->src, &next);
    if (code >= '0' && code <= '9')
        lex_number(c, out);
    else if (name_start(code))
        lex_name(c, out);
    else if (code == '\'' || code == '"')
        lex_string(c, out);
    else
        lex_operator(c, out);
}

void lex_next(struct compiler *c, struct token *out)
{
    for (;;) {
        if (c->pending) {
            *out = (struct token){.type = c->pending, .line = c->line};
            c->pending = 0;
            return;
        }
        if (c->in_tag) {
            lex_tag(c, out);
            return;
        }
        if (c->at >= c->len) {
            *out = (struct token){.type = T_END, .line = c->line};
            return;
        }
        if (lex_data(c, out)) return;
    }
}

const char *token_name(const struct token *token, char *buf, size_t size)
{
    switch (token->type) {
    case T_END: return "end of template";
    case T_DATA: return "template data";
    case T_VARIABLE_BEGIN: return "begin of print statement";
    case T_VARIABLE_END: return "end of print statement";
    case T_BLOCK_BEGIN: return "begin of statement block";
    case T_BLOCK_END: return "end of statement block";
    case T_INTEGER: return "integer";
    case T_FLOAT: return "float";
    case T_STRING: return "string";
    default:
        snprintf(buf, size, "%.*s", (int)(token->text.len < 40 ? token->text.len : 40),
                 token->text.ptr);
        return buf;
    }
}
