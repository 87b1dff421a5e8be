"""Time on a machine that does other things as well: what may be waited for, and what may be bounded.

A test that waits does it for something that it can see, and as long as it takes: until(). A claim that something is quick is
held by the best of a few attempts, since another process may hold up any of them but a slow daemon is slow in all: quickly()."""
import resource
import time

PATIENCE_S = 60


def until(condition, what="", seconds=PATIENCE_S):
    """Polls until the condition is true and gives its value; fails with what was waited for, and its last value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what} ({value!r})"
        time.sleep(0.01)


def quickly(limit, act, attempts=8, clock=time.monotonic):
    """act's last value. It is called until one call takes less than `limit` seconds, and one of so many must; what it asserts
    holds for each."""
    took = []
    for _ in range(attempts):
        begin = clock()
        value = act()
        took.append(clock() - begin)
        if took[-1] < limit:
            return value
    raise AssertionError(f"never under {limit} s: " + ", ".join(f"{t:.2f}" for t in took))


def children_cpu():
    """A clock for quickly(): the seconds of processor time that programs which were run and have ended took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def at_best(attempt, attempts=5):
    """One of a few attempts must pass, for claims on pace that another process can only spoil: the last one's failure is told."""
    for left in reversed(range(attempts)):
        try:
            return attempt()
        except AssertionError:
            if not left:
                raise
