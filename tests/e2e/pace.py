"""Time on a machine that does other things as well: what may be waited for, and what may be bounded.

A test that waits does it for something that it can see, and as long as it takes: until(). A claim that something is quick is
held by the best of a few attempts, since another process may hold up any of them but a slow daemon is slow in all: quickly(). Figures
that every disturbance spoils are judged where there was none: judged()."""
import resource
import threading
import time

import pytest

PATIENCE_S = 120


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


class Witness:
    """Sleeps for moments while a figure is taken, and tells whether the machine let it wake in time."""

    def __enter__(self):
        self.late, self.worst, self.began, self.stop = 0.0, 0.0, time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def _watch(self):
        while not self.stop.is_set():
            began = time.monotonic()
            time.sleep(0.002)
            late = time.monotonic() - began - 0.002
            if late > 0.001:
                self.late, self.worst = self.late + late, max(self.worst, late)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.share = self.late / (time.monotonic() - self.began)

    @property
    def calm(self):
        return self.worst < 0.03 and self.share < 0.05


def judged(attempt, attempts=6):
    """As at_best, for figures that are right only if nobody was held up: attempts on a machine that did other things can pass but
    cannot fail, and where there were none but such the test is skipped and says so."""
    fault, seen = None, []
    for _ in range(attempts):
        try:
            with Witness() as witness:
                return attempt()
        except AssertionError as spoilt:
            seen.append(f"{witness.worst * 1e3:.0f} ms late, {witness.share:.0%} of the time")
            fault = spoilt if witness.calm else fault
    if fault:
        raise fault
    pytest.skip(f"this machine does too much else to be judged by: {'; '.join(seen)}")
