#!/usr/bin/env python3
"""Runs a command on a machine whose time is uneven, so that what assumes time fails here and not on a slow machine elsewhere.

    chaos.py [--seed N] [--burners N] [--stops PER_S] [--starves PER_S] [--freezes PER_S] [--ms LOW..HIGH] [--cpus LIST] -- COMMAND...

Burners are busy processes of the command's own priority. A stop halts one process below the command (a daemon, a client, a worker
of pytest) with SIGSTOP, a starve gives one thread of one of them the processor only when nobody else wants it (SCHED_IDLE; a burner
always does): each for a random while. Eight times of ten it is a process that has done something lately. A freeze stops all of them at
once, as a machine that gives its time to another guest. --cpus pins everything.
Whom somebody else has stopped is left alone. Linux, as root or with a limit on nice that allows it. The exit status is the command's."""
import argparse
import contextlib
import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GONE = (ProcessLookupError, FileNotFoundError, PermissionError)
LOOK_S = 0.3


def burn():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        pass


def stat(pid):
    """State, parent and ticks of processor time; None where it has gone."""
    try:
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return fields[0], int(fields[1]), int(fields[11]) + int(fields[12])


class Family:
    """All processes below this one but the burners, and which of them have done something since the last look."""

    def __init__(self, burners):
        self.burners, self.pids, self.active, self.ticks, self.looked = burners, [], [], {}, 0

    def look(self):
        """True where it was time to."""
        if time.monotonic() - self.looked < LOOK_S:
            return False
        stats = {int(name): stat(name) for name in os.listdir("/proc") if name.isdigit()}
        found, more = set(), {os.getpid()}
        while more:
            found |= more
            more = {pid for pid, s in stats.items() if s and s[1] in more} - found
        self.pids = sorted(found - self.burners - {os.getpid()})
        now = {pid: stats[pid][2] for pid in self.pids}
        self.active = [pid for pid in self.pids if now[pid] > self.ticks.get(pid, 0)]
        self.ticks, self.looked = now, time.monotonic()
        return True

    def one(self, rng):
        """Somebody who runs or sleeps, or None."""
        some = self.active if self.active and rng.random() < 0.8 else self.pids
        pid = rng.choice(some) if some else None
        now = stat(pid) if pid else None
        return pid if now and now[0] not in "TtZX" else None

    def bury(self, command):
        """Orphans that have ended are ours to wait for."""
        for pid in self.pids:
            now = stat(pid) if pid != command else None
            if now and now[0] == "Z" and now[1] == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


class Stops:
    name = "stops"

    def do(self, rng, pid):
        os.kill(pid, signal.SIGSTOP)
        return pid

    def undo(self, pid):
        with contextlib.suppress(*GONE):
            os.kill(pid, signal.SIGCONT)

    def sweep(self, family):
        pass


class Freezes:
    name = "freezes"

    def __init__(self, family):
        self.family = family

    def do(self, rng, pid):
        stopped = [p for p in self.family.pids if (now := stat(p)) and now[0] not in "TtZX"]
        for p in stopped:
            with contextlib.suppress(*GONE):
                os.kill(p, signal.SIGSTOP)
        return stopped

    def undo(self, stopped):
        for p in stopped:
            with contextlib.suppress(*GONE):
                os.kill(p, signal.SIGCONT)

    def sweep(self, family):
        pass


class Starves:
    name = "starves"

    def __init__(self):
        self.now = set()

    def do(self, rng, pid):
        thread = int(rng.choice(os.listdir(f"/proc/{pid}/task")))
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
        self.now.add(thread)
        return thread

    def undo(self, thread):
        self.now.discard(thread)
        with contextlib.suppress(*GONE):
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))

    def sweep(self, family):
        """What was born of a starved thread is as starved, and nobody's."""
        for pid in family.pids:
            with contextlib.suppress(*GONE):
                for thread in map(int, os.listdir(f"/proc/{pid}/task")):
                    if thread not in self.now and os.sched_getscheduler(thread) == os.SCHED_IDLE:
                        self.undo(thread)


def disturb(command, family, kinds, rates, low, high, rng):
    """Until the command has ended. How many of each kind."""
    ends, counts = [], dict.fromkeys(rates, 0)
    due = {kind: time.monotonic() + 1 for kind in kinds if rates[kind.name]}
    try:
        while command.poll() is None:
            now = time.monotonic()
            for _, kind, who in [e for e in ends if e[0] <= now]:
                kind.undo(who)
            ends = [e for e in ends if e[0] > now]
            looked = family.look()
            for kind in due:
                if looked:
                    kind.sweep(family)
                if due[kind] > now:
                    continue
                due[kind] = now + rng.expovariate(rates[kind.name])
                pid = family.one(rng)
                if pid:
                    with contextlib.suppress(*GONE):
                        ends.append((now + rng.uniform(low, high) / 1000, kind, kind.do(rng, pid)))
                        counts[kind.name] += 1
            family.bury(command.pid)
            time.sleep(0.01)
    finally:
        for _, kind, who in ends:
            kind.undo(who)
    return counts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    p.add_argument("--burners", type=int, default=4)
    p.add_argument("--stops", type=float, default=0)
    p.add_argument("--starves", type=float, default=0)
    p.add_argument("--freezes", type=float, default=0)
    p.add_argument("--ms", default="20..400")
    p.add_argument("--cpus")
    p.add_argument("command", nargs="+")
    o = p.parse_args()
    print("chaos:", " ".join(sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else []), f"(seed {o.seed})", flush=True)
    if o.cpus:
        os.sched_setaffinity(0, set(map(int, o.cpus.split(","))))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(o.burners)]
    for b in burners:
        b.start()
    command = subprocess.Popen(o.command)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    low, high = map(float, o.ms.split(".."))
    try:
        family = Family({b.pid for b in burners})
        counts = disturb(command, family, [Stops(), Starves(), Freezes(family)], {"stops": o.stops, "starves": o.starves, "freezes": o.freezes},
                         low, high, random.Random(o.seed))
    finally:
        for b in burners:
            b.kill()
        if command.poll() is None:
            command.terminate()
    print(f"chaos: seed {o.seed} ended with {command.returncode}: {counts}", flush=True)
    sys.exit(command.returncode if command.returncode >= 0 else 128 - command.returncode)


if __name__ == "__main__":
    main()
