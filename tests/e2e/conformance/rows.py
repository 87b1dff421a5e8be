"""Tables of cases: every row is tried, and the failure names all rows that went wrong, not just the first."""
import traceback


def each(rows, check):
    """check(*row) for each row."""
    wrong = []
    for row in rows:
        row = row if isinstance(row, tuple) else (row,)
        try:
            check(*row)
        except Exception as fault:  # noqa: BLE001 - a closed connection is a finding like any other
            frames = [f for f in traceback.extract_tb(fault.__traceback__) if "conformance" in f.filename]
            where = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
            wrong.append(f"{shorten(row)}\n      -> {type(fault).__name__} {where} {shorten(fault, 700)}")
    assert not wrong, f"{len(wrong)} of {len(rows)} rows:\n  " + "\n  ".join(wrong)


def shorten(thing, limit=400):
    text = str(thing)
    return text if len(text) <= limit else f"{text[:limit // 2]} ... {text[-limit // 2:]}"
