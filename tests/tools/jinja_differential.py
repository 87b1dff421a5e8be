#!/usr/bin/env python3
"""Renders random templates with jinja2 (set up as transformers does it) and with our interpreter; prints differences.

    pip install jinja2
    jinja_differential.py BUILD/tests/render_lines [COUNT] [SEED]

Method: statements and expressions are drawn from a grammar whose leaves are values of all types, so that most rows
combine features in ways nobody wrote down. Text must be equal; where jinja2 fails we must fail too (the kind of
fault is shown, not compared; a limit of ours on 64-bit integers is allowed). Exit status 1 on a difference.
"""
import datetime, json, random, signal, subprocess, sys, warnings

PINNED = datetime.datetime(2025, 3, 9, 14, 5, 7, tzinfo=datetime.timezone.utc)


def environment():
    import jinja2, jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        @jinja2.pass_eval_context
        def _body(self, context, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: PINNED.strftime(format)
    return env


CONTEXT = {
    "s": "Hello World", "u": "  héé 你好 😀 Straße\n", "e": "", "n": 7, "neg": -3, "f": 2.5, "z": 0, "t": True, "no": None,
    "l": [3, 1, 2, 2], "ls": ["b", "A", "a", "c d"], "mix": [1, "x", None, 2.5, [1, 2], {"k": "v"}], "el": [],
    "d": {"b": 2, "a": 1, "c": {"x": [1, 2.5, None, True]}}, "ed": {}, "lines": "one\ntwo\r\n\nthree\n", "csv": "a,b,,c",
    "html": "<a href=\"x\">b & 'c'</a>", "num": "42", "fl": "3.14",
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U1\n"}, {"role": "assistant", "content": None,
                 "tool_calls": [{"function": {"name": "f", "arguments": {"q": "ö\"", "n": 1}}}]}, {"role": "tool", "content": " r "},
                 {"role": "user", "content": [{"type": "text", "text": "part"}]}],
    "p": [{"n": "x", "v": 2, "ok": True}, {"n": "y", "v": 1, "ok": False}, {"n": "X", "v": 3, "o": {"i": 5}}],
}
NAMES = list(CONTEXT) + ["nope"]
STRINGS = ["''", "'a'", "'ab'", "' x '", "','", "'é'", "'😀z'", "'A-b c'", "'\\n'", "'%s'", "'{}'", "'a\\tb'", "'ß'", "'12'", "'1.50'", "\"it's\"",
           "'<'", "'a.b.c'", "'ΑΣ'", "'x\\\\y'"]
NUMBERS = ["0", "1", "2", "3", "-1", "10", "1.5", "0.1", "2.0", "1e3", "100000000000", "7", "-2.5", "1e-7", "123456.789"]


class Gen:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.vars = []

    def pick(self, *items):
        return self.r.choice(items)

    def few(self, most, make):
        return [make() for _ in range(self.r.randint(0, most))]

    def atom(self):
        k = self.r.randint(0, 9)
        if k < 4:
            return self.r.choice(NAMES + self.vars)
        if k < 6:
            return self.r.choice(STRINGS)
        if k < 8:
            return self.r.choice(NUMBERS)
        return self.pick("true", "false", "none", "[]", "{}", "()", "range(4)", "d.c", "messages[1]", "messages", "p", "l", "s", "u")

    def filter(self, depth):
        e = lambda: self.expr(depth - 1)
        a = self.atom
        return self.pick(
            lambda: "upper", lambda: "lower", lambda: "title", lambda: "capitalize", lambda: "trim", lambda: "trim(%s)" % a(), lambda: "length",
            lambda: "first", lambda: "last", lambda: "list", lambda: "join", lambda: "join(%s)" % a(), lambda: "join(', ', attribute='n')",
            lambda: "replace(%s, %s)" % (a(), a()), lambda: "replace('a', 'bb', %s)" % self.pick("1", "0", "-1", "none"), lambda: "default(%s)" % a(),
            lambda: "default(%s, true)" % a(), lambda: "string", lambda: "int", lambda: "int(5)", lambda: "float", lambda: "abs", lambda: "round",
            lambda: "round(%s)" % self.pick("1", "2", "0", "-1"), lambda: "round(1, '%s')" % self.pick("ceil", "floor", "common"), lambda: "sum",
            lambda: "sum(attribute='v')", lambda: "min", lambda: "max", lambda: "sort", lambda: "sort(reverse=true)", lambda: "sort(attribute='n')",
            lambda: "sort(case_sensitive=true)", lambda: "unique | list", lambda: "reverse", lambda: "reverse | list", lambda: "map('upper') | list",
            lambda: "map(attribute='n') | list", lambda: "map(attribute='o.i', default=0) | list", lambda: "map('string') | join('/')", lambda: "select | list",
            lambda: "reject | list", lambda: "select('odd') | list", lambda: "select('string') | list", lambda: "reject('none') | list",
            lambda: "selectattr('ok') | list", lambda: "selectattr('role', 'equalto', 'user') | list", lambda: "rejectattr('v', 'gt', 1) | list",
            lambda: "items | list", lambda: "dictsort", lambda: "dictsort(by='value')", lambda: "dictsort(reverse=true)", lambda: "indent", lambda: "indent(2, true)",
            lambda: "indent(3, blank=true)", lambda: "tojson", lambda: "tojson(indent=2)", lambda: "tojson(ensure_ascii=true)", lambda: "tojson(sort_keys=true)",
            lambda: "tojson(separators=(',', ':'))", lambda: "escape", lambda: "e", lambda: "safe", lambda: "forceescape", lambda: "urlencode", lambda: "wordcount",
            lambda: "center(%s)" % self.pick("5", "20", "9"), lambda: "batch(2) | list", lambda: "batch(3, 'z') | list", lambda: "slice(2) | list",
            lambda: "slice(3, 0) | list", lambda: "groupby('n')", lambda: "groupby('v') | list", lambda: "truncate(5)", lambda: "truncate(7, true)",
            lambda: "truncate(6, false, '..', 0)", lambda: "format(%s)" % a(), lambda: "striptags", lambda: "attr('x')", lambda: "filesizeformat", lambda: "count",
            lambda: "d(1)", lambda: "map('length') | list", lambda: "map('default', 'x') | list", lambda: "wordwrap(6)", lambda: "map(attribute=0) | list",
            lambda: "xmlattr", lambda: "selectattr('o', 'defined') | map(attribute='o') | list", lambda: "select('in', %s) | list" % a(),
            lambda: "length > 1", lambda: "map('int') | sum", lambda: "items", lambda: "map('tojson') | join",
        )()

    def method(self):
        a = self.atom
        s = lambda: self.r.choice(STRINGS)
        n = lambda: self.pick("0", "1", "2", "-1", "5", "none")
        return self.pick(
            lambda: "upper()", lambda: "lower()", lambda: "strip()", lambda: "strip(%s)" % s(), lambda: "lstrip(%s)" % self.pick("", s()), lambda: "rstrip(%s)" % self.pick("", s()),
            lambda: "split()", lambda: "split(%s)" % s(), lambda: "split(%s, %s)" % (s(), self.pick("0", "1", "2", "-1")), lambda: "rsplit(%s, 1)" % s(), lambda: "rsplit(none, 1)",
            lambda: "split(none, 1)", lambda: "splitlines()", lambda: "splitlines(true)", lambda: "startswith(%s)" % s(), lambda: "endswith(%s)" % s(),
            lambda: "startswith((%s, %s))" % (s(), s()), lambda: "startswith(%s, %s)" % (s(), n()), lambda: "find(%s)" % s(), lambda: "find(%s, %s)" % (s(), n()),
            lambda: "find(%s, %s, %s)" % (s(), n(), n()), lambda: "rfind(%s)" % s(), lambda: "index(%s)" % s(), lambda: "count(%s)" % a(), lambda: "replace(%s, %s)" % (s(), s()),
            lambda: "replace(%s, %s, 1)" % (s(), s()), lambda: "join(%s)" % a(), lambda: "title()", lambda: "capitalize()", lambda: "swapcase()", lambda: "casefold()",
            lambda: "isdigit()", lambda: "isalpha()", lambda: "isalnum()", lambda: "isspace()", lambda: "isupper()", lambda: "islower()", lambda: "istitle()",
            lambda: "isnumeric()", lambda: "isidentifier()", lambda: "isprintable()", lambda: "ljust(6)", lambda: "rjust(6, '*')", lambda: "center(7, '.')", lambda: "center(8)",
            lambda: "zfill(5)", lambda: "partition(%s)" % s(), lambda: "rpartition(%s)" % s(), lambda: "removeprefix(%s)" % s(), lambda: "removesuffix(%s)" % s(),
            lambda: "expandtabs(4)", lambda: "format(%s, %s)" % (a(), a()), lambda: "keys()", lambda: "values() | list", lambda: "items()", lambda: "get(%s)" % s(),
            lambda: "get('a', %s)" % a(), lambda: "copy()", lambda: "index(2)", lambda: "append(1)", lambda: "pop()", lambda: "update({})", lambda: "nosuch()", lambda: "keys() | list",
        )()

    def expr(self, depth):
        if depth <= 0:
            return self.atom()
        e = lambda: self.expr(depth - 1)
        k = self.r.randint(0, 20)
        if k < 3:
            return self.atom()
        if k < 7:
            return "%s | %s" % (self.paren(depth), self.filter(depth))
        if k < 9:
            return "%s.%s" % (self.paren(depth), self.method())
        if k == 9:
            return "%s %s %s" % (e(), self.pick("+", "-", "*", "/", "//", "%", "~", "~", "**"), e())
        if k == 10:
            return "(%s %s %s)" % (e(), self.pick("==", "!=", "<", "<=", ">", ">=", "in", "not in"), e())
        if k == 11:
            return "(%s %s %s)" % (e(), self.pick("and", "or"), e())
        if k == 12:
            return self.pick("not %s", "-%s", "(not %s)") % e()
        if k == 13:
            return "(%s if %s else %s)" % (e(), e(), e()) if self.r.random() < .8 else "(%s if %s)" % (e(), e())
        if k == 14:
            return "%s[%s]" % (self.paren(depth), self.pick(e(), "0", "-1", "1", "'a'", "'role'", "'content'"))
        if k == 15:
            b = lambda: self.pick("", "1", "-1", "2", "0", "-3", "9")
            # of a name: jinja2 folds slices of constants in a way of its own
            return "%s[%s:%s%s]" % (self.r.choice(NAMES + self.vars), b(), b(), self.pick("", ":", ":-1", ":2"))
        if k == 16:
            return "%s.%s" % (self.paren(depth), self.pick("a", "c", "role", "content", "x", "n", "c.x", "0", "items"))
        if k == 17:
            test = self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "true", "false", "odd", "even",
                             "lower", "upper", "in %s" % self.pick("l", "s", "ls", "[1]"), "eq 1", "divisibleby 2", "sameas none", "callable", "gt 1", "equalto 'a'", "ge(2)", "escaped")
            return "(%s is %s%s)" % (self.paren(depth), self.pick("", "not "), test)
        if k == 18:
            return "[%s]" % ", ".join(self.few(3, e))
        if k == 19:
            return self.pick("{%s}" % ", ".join("%s: %s" % (self.r.choice(STRINGS), e()) for _ in range(self.r.randint(0, 3))), "(%s, %s)" % (e(), e()))
        return self.pick("dict(a=%s)" % e(), "range(%s)" % self.pick("3", "1, 4", "5, 0, -2", "0"), "namespace(x=%s).x" % e(),
                         "'%s|%%5s|%%-5s|%%r' %% (%s, %s, %s)" % (self.pick("%s", "%d", "%.2f", "%05d", "%x", "%+d", "%e", "%g"), e(), e(), e()),
                         "'{:%s}'.format(%s)" % (self.pick("", ">8", "<8", "^8", "*^9", "05d", ".2f", "+d", ",", "x", "#x", "b", "e", "g", ".3", "%", "s", "10.3f", "=+8d", "_"), e()),
                         "'{0} {1!r} {k}'.format(%s, %s, k=%s)" % (e(), e(), e()))

    def paren(self, depth):
        x = self.expr(depth - 1)
        return x if x.isalnum() and not x[0].isdigit() else "(%s)" % x

    def ws(self):
        return self.pick("", "", " ", "\n", "  \n  ", "\n\n", "x", "\t", " é ", "\n  ")

    def tag(self, text):
        return "{%%%s %s %s%%}" % (self.pick("", "", "-", "+"), text, self.pick("", "", "-", "+"))

    def out(self, depth):
        return "{{%s %s %s}}" % (self.pick("", "-"), self.expr(depth), self.pick("", "-"))

    def statement(self, depth):
        if depth <= 0:
            return self.out(2)
        body = lambda: self.body(depth - 1)
        k = self.r.randint(0, 15)
        if k < 5:
            return self.out(3)
        if k == 5:
            return self.tag("if " + self.expr(2)) + body() + self.pick("", self.tag("elif " + self.expr(1)) + body()) + self.pick("", self.tag("else") + body()) + self.tag("endif")
        if k in (6, 7):
            it = self.pick("l", "ls", "messages", "p", "range(3)", "d", "d.items()", "'abc'", "mix", "nope", self.expr(2))
            target = self.pick("x", "x", "a, b")
            if it == "d.items()":
                target = "a, b"
            self.vars += ["x"] if target == "x" else ["a", "b"]
            inner = body() + self.pick("", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.revindex0 }}{{ loop.length }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{{ loop.cycle('o', 'e') }}",
                                       "{{ loop.changed(x) }}", self.tag("if loop.index > 1") + self.tag(self.pick("break", "continue")) + self.tag("endif") + "t")
            for _ in (["x"] if target == "x" else ["a", "b"]):
                self.vars.pop()
            return self.tag("for %s in %s%s" % (target, it, self.pick("", "", " if " + self.expr(1)))) + inner + self.pick("", self.tag("else") + body()) + self.tag("endfor")
        if k in (8, 9):
            name = self.pick("v", "w", "x")
            value = self.expr(3)
            if name not in self.vars:
                self.vars.append(name)
            return self.tag("set %s = %s" % (name, value))
        if k == 10:
            return self.tag("set v" + self.pick("", " | upper", " | trim | length")) + body() + self.tag("endset") + "{{ v }}"
        if k == 11:
            return (self.tag("macro m(a, b=%s)" % self.expr(1)) + body() + self.pick("{{ a }}{{ b }}", "{{ varargs }}{{ kwargs }}", "{{ caller() if caller else '' }}") + self.tag("endmacro") +
                    self.pick("{{ m(%s) }}" % self.expr(1), "{{ m(1, b=%s) }}" % self.expr(1), "{{ m() }}", "{{ m(1, 2, 3) }}", self.tag("call m(1)") + body() + self.tag("endcall"), "{{ m(1) | upper }}"))
        if k == 12:
            return self.tag("filter " + self.pick("upper", "trim", "replace('a', 'b')", "indent(2)", "length", "title")) + body() + self.tag("endfilter")
        if k == 13:
            return self.tag("set ns = namespace(c=0)") + self.tag("for i in range(3)") + self.tag("set ns.c = ns.c + i") + body() + self.tag("endfor") + "{{ ns.c }}"
        if k == 14:
            return self.tag("with q = %s" % self.expr(2)) + "{{ q }}" + body() + self.tag("endwith")
        return self.pick("{# c #}", "{#- c -#}", "{% raw %} {{ x }} {% endraw %}", self.tag("generation") + body() + self.tag("endgeneration"), self.tag("raw") + "\n {% x %}\n" + self.tag("endraw"))

    def body(self, depth):
        return "".join(self.ws() + self.statement(depth) for _ in range(self.r.randint(1, 3))) + self.ws()


FRAGMENTS = ["{%", "%}", "{{", "}}", "{#", "#}", "-%}", "{%-", "+%}", "{%+", "-}}", "{{-", "-#}", "{#-", "+#}", "{{+", " ", "  ", "\n", "\r\n", "\r", "\t", "\u00a0", "\u2003",
             "x", "é", "{", "}", "%", "{% raw %}", "{% endraw %}", "{%- raw -%}", "{%- endraw -%}", "{% endraw +%}", "{% if n %}", "{% endif %}", "{%- if n -%}", "{%+ if n +%}",
             "{%- endif -%}", "{%+ endif +%}", "{{ n }}", "{{- n -}}", "{{ s }}", "{# c #}", "{#- c -#}", "{#+ c +#}", "{% set q = 1 %}", "{% for i in l %}", "{% endfor %}", "{{ '}}' }}",
             "{{ {'a': {}} }}", "{% set q = '%}' %}", "\v", "\x1c", "\u2028", "'", '"', "raw", "{% else %}", "{%\n if n\n%}", "text", "\n\n", "  \n  "]
SPECS = ["", "s", "d", "f", "x", "X", "o", "b", "e", "E", "g", "G", "n", "%", "c", "r", ",", "_", ".2f", ".0f", ".10g", ".3", ".1%", ",.2f", "_x", "08d", "+.1f", " d", "-d", "#o", "#b", "#X",
         "<10", ">10", "^11", "=10", "*<9", "é^9", "0>5", "010", "+08.2f", "<05", "05", "020,", "09,d", "3", ".3s", "10.2", "z", "!", "=+9,d", "^+9d", "#.3g", "#x", "1_000", "0", "00", "5_"]
PERCENTS = ["%s", "%d", "%5d", "%-5d|", "%05d", "%+d", "% d", "%x", "%#x", "%X", "%o", "%#o", "%f", "%.2f", "%8.3f", "%-8.1f|", "%e", "%.0e", "%g", "%.3g", "%G", "%i", "%u", "%c", "%r", "%a", "%%", "%.2s", "%10s", "%-10s|",
            "%5%", "%*d", "%.*f", "%(a)s", "%(b)d", "%ld", "%.3d", "%+.2e", "%08.2f", "%#.3g", "%5", "%", "%y", "%+s", "%05s", "%.0f", "%x", "%.1f"]
VALUES = ["0", "1", "-1", "42", "255", "1234567", "-98765", "0.5", "1.5", "2.5", "-0.0", "3.14159", "1e10", "1e16", "1e-5", "123456789.987", "'a'", "'héé'", "''", "true", "none", "[1]", "{'a': 1}", "(1, 2)",
          "'x', 1", "1, 2", "65", "1e100", "0.1", "1e22", "0.00001234", "nope", "'%'", "100", "99.995", "1e15", "9007199254740993", "-2.675", "2.675"]
LETTERS = list("abcXYZ 019_-.,'\"<>&/\t\n") + ["é", "ß", "ﬁ", "İ", "ı", "Σ", "σ", "ς", "ǅ", "ŉ", "ΐ", "你", "😀", "́", "\u00a0", "\u200b", "\u2028", "\x1c", "\x85", "²", "½", "٣", "Ⅷ", "ª", "ʰ", "ﬃ", "ᾳ", "ᾼ", "ႠႡ", "ა", "Ა",
          "ꭰ", "Ꭰ", "\u0345", "\xad", "𐐀", "𐐨", "ẞ", "Ω", "K"]


def lexing(g):
    return "".join(g.r.choice(FRAGMENTS) for _ in range(g.r.randint(1, 9)))


def formatting(g):
    if g.r.random() < .5:
        return "[{{ '%s'.format(%s) }}]" % ("".join(g.pick("{:%s}", "{:%s}", "{!r:%s}", "{0:%s}", "a{{%s}}", "{a:%s}", "{%s}") % g.r.choice(SPECS) for _ in range(g.r.randint(1, 2))),
                                            g.r.choice(VALUES) + g.pick("", ", " + g.r.choice(VALUES)) + g.pick("", ", a=" + g.r.choice(VALUES).split(",")[0]))
    return "[{{ '%s' %% %s }}]" % ("".join(g.r.choice(PERCENTS) for _ in range(g.r.randint(1, 3))), g.pick("(%s)", "(%s,)", "[%s]") % g.r.choice(VALUES))


def numbers(g):
    x = lambda: g.pick(g.r.choice([v for v in VALUES if v[-1].isdigit()]), repr(g.r.uniform(-1e3, 1e3)), repr(g.r.uniform(0, 1) * 10 ** g.r.randint(-20, 20)), str(g.r.randint(-50, 50)))
    return "[{{ %s }}]" % g.pick(lambda: x(), lambda: "(%s) %s (%s)" % (x(), g.pick("+", "-", "*", "/", "//", "%", "**", "<", "==", ">="), x()), lambda: "(%s) | round(%s%s)" % (x(), g.pick("0", "1", "2", "3", "-1", "-2"), g.pick("", ", 'ceil'", ", 'floor'")),
                                 lambda: "(%s) | int" % x(), lambda: "'%s' | %s" % (g.pick(x(), " %s " % x(), "0x1f", "1_000", "1e3", "inf", "nan", "-", "+5", "0b11", "٣", ".5", "5.", "1__0", "_1", "1_"), g.pick("int", "float", "int(7, 16)", "int(base=0)", "int(base=2)")),
                                 lambda: "(%s) | tojson" % x(), lambda: "(%s) | abs" % x(), lambda: "(%s) | filesizeformat%s" % (x(), g.pick("", "(true)")), lambda: "[%s, %s, %s] | %s" % (x(), x(), x(), g.pick("sum", "sort", "min", "max", "unique | list")))()


def strings(g):
    s = lambda most: json.dumps("".join(g.r.choice(LETTERS) for _ in range(g.r.randint(0, most))), ensure_ascii=False)
    one = lambda: g.pick(s(8), s(8), s(3), s(20))
    n = lambda: g.pick("", "1", "-1", "2", "-3", "5")
    return "[{{ %s }}]" % g.pick(lambda: "%s.%s()" % (one(), g.pick("upper", "lower", "title", "capitalize", "swapcase", "casefold", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "isdigit", "isalpha", "isalnum",
                                 "isspace", "isupper", "islower", "istitle", "isnumeric", "isdecimal", "isidentifier", "isprintable", "isascii", "expandtabs")),
                                 lambda: "[%s]" % one(), lambda: "%s | %s" % (one(), g.pick("title", "wordcount", "tojson", "tojson(true)", "urlencode", "e", "striptags", "indent", "indent(2, true, true)", "trim", "capitalize", "length", "reverse", "list",
                                 "truncate(5)", "truncate(4, true)", "truncate(8, leeway=0)", "wordwrap(5)", "wordwrap(3)", "wordwrap(4, false)", "wordwrap(7, break_on_hyphens=false)", "center(15)", "upper", "lower")),
                                 lambda: "%s[%s:%s:%s]" % (one(), n(), n(), g.pick("", "1", "2", "-1")), lambda: "%s.%s(%s)" % (one(), g.pick("find", "rfind", "count", "startswith", "endswith", "split", "rsplit", "partition", "rpartition", "strip",
                                 "lstrip", "rstrip", "removeprefix", "removesuffix"), s(1)), lambda: "%s.%s(%s, %s, %s)" % (one(), g.pick("find", "rfind", "count", "startswith", "endswith"), s(1), n() or "none", n() or "none"),
                                 lambda: "%s.replace(%s, %s)" % (one(), s(1), s(2)), lambda: "%s %s %s" % (one(), g.pick("<", "==", "in", "~", "+"), one()), lambda: "%s.%s(%s)" % (one(), g.pick("split", "rsplit"), "none, %d" % g.r.randint(0, 3)),
                                 lambda: "%s | sort" % one(), lambda: "%s.%s(%d, %s)" % (one(), g.pick("center", "ljust", "rjust"), g.r.randint(0, 12), s(1)), lambda: "%s.zfill(%d)" % (one(), g.r.randint(0, 9)))()


def reference(env, template):
    import jinja2
    try:
        return {"text": env.from_string(template).render(**json.loads(json.dumps(CONTEXT)))}
    except TimeoutError:
        return None
    except Exception as e:
        return {"error": type(e).__name__, "message": str(e)[:100]}


def same(ours, theirs):
    if "text" in theirs:
        # what names an address or a class of Python's cannot be equal
        if any(w in theirs["text"].lower() for w in (" at 0x", "<bound method", "<built-in", "<function", "<class")):
            return True
        if ours.get("error") == "limit" and ("64 bits" in ours["message"] or "too large" in ours["message"]):
            return True
        return ours.get("text") == theirs["text"]
    return "error" in ours


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30)
    warnings.simplefilter("ignore")
    env = environment()
    ours = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    bad = texts = 0

    def late(*_):
        raise TimeoutError
    signal.signal(signal.SIGALRM, late)
    for i in range(count):
        g = Gen(seed * 1000003 + i)
        kind = i % 8
        template = (g.body(2) if kind < 2 else "[{{ %s }}]" % g.expr(3) if kind < 4 else
                    (lexing, formatting, numbers, strings)[kind - 4](g))
        signal.setitimer(signal.ITIMER_REAL, 2)
        theirs = reference(env, template)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if theirs is None:
            continue
        try:
            json.dumps(theirs.get("text", "")).encode().decode("ascii")
            theirs.get("text", "").encode()
        except UnicodeEncodeError:
            continue
        ours.stdin.write(json.dumps(dict(template=template, context=CONTEXT, now=int(PINNED.timestamp()))).encode() + b"\n")
        ours.stdin.flush()
        line = ours.stdout.readline()
        if not line:
            print("our side died on", repr(template))
            return 1
        got = json.loads(line)
        texts += "text" in theirs
        if not same(got, theirs):
            bad += 1
            print("--- row %d\n  template %r\n  jinja2   %r\n  ours     %r" % (i, template, theirs, got))
    print("seed %d: %d templates, %d with text, %d differ" % (seed, count, texts, bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
