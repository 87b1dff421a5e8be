"""A strict reader of the Prometheus text format 0.0.4, with the rules that section 6 adds."""
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"^({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})? (\S+)$")
KINDS = {"counter", "gauge", "histogram", "summary", "untyped"}


def number(text):
    if text in ("+Inf", "-Inf", "NaN"):
        return float(text.replace("Inf", "inf").replace("NaN", "nan"))
    assert re.match(r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$", text), f"value {text!r}"
    return float(text)


def family_of(name, kinds):
    for suffix in ("_bucket", "_sum", "_count"):
        base = name.removesuffix(suffix)
        if base != name and kinds.get(base) == "histogram":
            return base
    return name


class Metrics:
    """series[(name, frozenset of labels)] = value; kinds[family] = type."""

    def __init__(self, body):
        text = body.decode("utf-8", "strict")
        assert text.endswith("\n") and "\r" not in text
        self.series, self.kinds, self.helps = {}, {}, {}
        self._finished, self._family = set(), None
        for line in text[:-1].split("\n"):
            if line.startswith("#"):
                self._comment(line)
            elif line:
                self._sample(line)
        assert set(self.helps) == set(self.kinds), "each family has HELP and TYPE"
        for family, kind in self.kinds.items():
            if kind == "histogram":
                self._histogram(family)
            if kind == "counter":
                assert family.endswith("_total"), family

    def _enter(self, family):
        if family != self._family:
            assert family not in self._finished, f"{family}: not contiguous"
            self._finished.add(family)
            self._family = family

    def _comment(self, line):
        match = re.match(rf"^# (HELP|TYPE) ({NAME}) (.+)$", line)
        assert match, f"comment {line!r}"
        word, family, rest = match.groups()
        self._enter(family)
        table = self.helps if word == "HELP" else self.kinds
        assert family not in table, f"{family}: {word} twice"
        assert not any(family_of(n, self.kinds) == family for n, _ in self.series), f"{family}: {word} behind a sample"
        assert word == "HELP" or rest in KINDS, line
        table[family] = rest

    def _sample(self, line):
        match = SAMPLE.match(line)
        assert match, f"sample {line!r}"
        name, labels, value = match.groups()
        family = family_of(name, self.kinds)
        assert family in self.kinds and family in self.helps, f"{name}: no HELP and TYPE before it"
        self._enter(family)
        pairs = re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"', labels or "")
        assert len({n for n, _ in pairs}) == len(pairs), line
        key = (name, frozenset(pairs))
        assert key not in self.series, f"{line!r}: the series stands twice"
        self.series[key] = number(value)

    def _histogram(self, family):
        groups = {}
        for (name, labels), value in self.series.items():
            if name == family + "_bucket":
                bound = dict(labels)["le"]
                groups.setdefault(frozenset(p for p in labels if p[0] != "le"), []).append((number(bound), value))
        for labels, buckets in groups.items():
            counts = [v for _, v in sorted(buckets)]
            assert counts == sorted(counts), f"{family}: buckets are not cumulative"
            assert sorted(buckets)[-1][0] == float("inf"), f"{family}: no +Inf"
            assert counts[-1] == self.series[(family + "_count", labels)], f"{family}: +Inf is not _count"
            assert (family + "_sum", labels) in self.series, f"{family}: no _sum"
        assert groups, f"{family}: no buckets"

    def value(self, name, **labels):
        return self.series[(name, frozenset(labels.items()))]

    def total(self, name, **labels):
        """The sum over all series of a name that have these labels."""
        return sum(v for (n, have), v in self.series.items() if n == name and set(labels.items()) <= have)
