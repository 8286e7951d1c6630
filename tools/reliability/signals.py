"""Commands that are interrupted, or whose folder is taken from them: exit codes as documented, no traceback, no damage.

cd tools && python -m reliability.signals --out ../results/reliability/signals.json

Each command runs in a process that is forked from one that has imported everything. It gets a signal at a random
moment, or finds the disk full, a folder that cannot be made, its folder removed under it, or another process at work
there. Then every folder that has a manifest must be readable and, but where another path is needed, the same command
ends with 0.
"""

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  (which the first optimiser of a process imports)

from fromp.lab import bench, report  # noqa: F401
from fromp.lab.cli import main as fromp
from fromp.lab.engine import jobs, tune  # noqa: F401
from fromp.learn import Learner  # noqa: F401
from reliability import writes
from reliability.kills import FORKED, unreadable
from reliability.report import keep, kept

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHORT = ["toy-less-data", "--tasks", "2", "--epochs", "2", "--set", "batch_size=100", "--quiet"]
SHORT += ["--checkpoint-seconds", "0"]
PATIENCE = 600.0  # seconds until a command must have ended
FULL = 4096  # bytes that a file may have where the disk is full

MONTH = ["--label", "churn", "--epochs", "2", "--hidden", "4", "--memory", "4", "--quiet"]

COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "run": lambda out: ["run", *SHORT, "--out", str(out)],
    "run --jobs 2": lambda out: ["run", *SHORT, "--seeds", "2", "--jobs", "2", "--out", str(out)],
    "compare": lambda out: ["compare", *SHORT, "--methods", "ewc,finetune", "--out", str(out)],
    "tune": lambda out: ["tune", *SHORT, "--method", "ewc", "--grid", "strength=1,10", "--out", str(out)],
    "learn": lambda out: ["learn", str(writes._month(0)), *MONTH, "--state", str(out)],
    "bench": lambda out: ["bench", "--quick", "--out", str(out)],
}  # fmt: skip
LONG = {"bench": 5.0}  # seconds of a command that is not waited for


class Process:
    """A command in a process of its own, and what it says."""

    def __init__(self, words: list[str], folder: Path, before: Callable[[], object] = lambda: None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.said = folder / "said"
        self._process: Any = FORKED.Process(target=self._run, args=(words, before))
        self._process.start()

    def _run(self, words: list[str], before: Callable[[], object]) -> None:
        file = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had them ignored
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        before()
        code = fromp(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def send(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self._process.pid, number)

    def running(self) -> bool:
        return bool(self._process.is_alive())

    def end(self) -> tuple[int, str]:
        """Its exit code, as a shell would say it, and what it has said."""
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            return -1, "it did not end"
        code = self._process.exitcode
        return 128 - code if code < 0 else code, self.said.read_text(errors="replace")


def wrong(code: int, said: str, allowed: Sequence[int]) -> list[str]:
    """What is wrong with how a command ended."""
    last = " ".join(said.split())[-300:]
    found = [f"ended with {code}, not {allowed}: {last}"] if code not in allowed else []
    found += [f"a traceback: {last}"] if "Traceback" in said else []
    return found + (
        [f"2 without a reason: {last}"] if code == 2 and not ("fromp: " in said or "failed: " in said) else []
    )


def interrupted(name: str, scratch: Path, seconds: float, *, number: int, share: float) -> tuple[int, list[str]]:
    """A command gets a signal after a share of the time that it takes, and is given again."""
    out = scratch / "out"
    process = Process(COMMANDS[name](out), scratch)
    start = time.monotonic()
    while process.running() and time.monotonic() - start < share * seconds:
        time.sleep(0.005)
    process.send(number)
    code, said = process.end()
    return code, wrong(code, said, [0, 128 + number]) + unreadable(scratch) + _again(name, out, scratch)


def _again(name: str, out: Path, scratch: Path) -> list[str]:
    """The same command once more, for those that are not too long; what is learned already is said."""
    if name in LONG:
        return []
    code, said = Process(COMMANDS[name](out), scratch / "again").end()
    learned = name == "learn" and "was learned before" in said
    return [] if learned else [f"given again: {each}" for each in wrong(code, said, [0])]


def disk_full(name: str, scratch: Path, seconds: float) -> tuple[int, list[str]]:
    """No file may grow beyond a few kilobytes."""
    out = scratch / "out"
    (scratch / "out").mkdir(parents=True)
    code, said = Process(
        COMMANDS[name](out), scratch, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))
    ).end()
    return code, wrong(code, said, [2]) + unreadable(scratch) + _again(name, out, scratch)


def cannot_be_made(name: str, scratch: Path, seconds: float) -> tuple[int, list[str]]:
    """A folder in a file system that takes none."""
    code, said = Process(COMMANDS[name](Path("/proc/fromp/out")), scratch).end()
    return code, wrong(code, said, [2])


def removed(name: str, scratch: Path, seconds: float) -> tuple[int, list[str]]:
    """Its folder is removed while it works."""
    out = scratch / "out"
    process = Process(COMMANDS[name](out), scratch)
    time.sleep(seconds / 2)
    for _ in range(20):
        with contextlib.suppress(OSError):
            shutil.rmtree(out)
    code, said = process.end()
    return code, wrong(code, said, [0, 2]) + unreadable(scratch) + _again(name, out, scratch)


def two_writers(name: str, scratch: Path, seconds: float) -> tuple[int, list[str]]:
    """Two processes are given the same command."""
    out = scratch / "out"
    both = [Process(COMMANDS[name](out), scratch / str(number)) for number in range(2)]
    ends = [process.end() for process in both]
    found = [each for code, said in ends for each in wrong(code, said, [0, 2])]
    found += [] if any(code == 0 for code, _ in ends) else ["neither has done it"]
    return max(code for code, _ in ends), found + unreadable(scratch) + _again(name, out, scratch)


FAULTS = {
    "disk full": disk_full, "cannot be made": cannot_be_made, "removed": removed, "two writers": two_writers
}  # fmt: skip


def of_command(name: str, rounds: int, counted: dict[str, dict[str, int]], results: Any) -> None:
    """Every case of a command that was not counted yet: what it was, the exit code, and what was wrong."""
    warnings.simplefilter("ignore")
    cases: list[tuple[str, Callable[[Path, float], tuple[int, list[str]]]]] = []
    for each in SIGNALS:
        left = range(sum(counted.get(each.name, {}).values()), rounds)
        cases += [(each.name, partial(interrupted, name, number=each, share=random.Random(n).random())) for n in left]
    if name not in LONG:
        cases += [(what, partial(case, name)) for what, case in FAULTS.items() if what not in counted]
    with tempfile.TemporaryDirectory() as scratch:
        seconds = LONG.get(name) or _seconds(name, Path(scratch) / "whole") if cases else 0.0
        for number, (what, case) in enumerate(cases):
            path = Path(scratch) / str(number)
            path.mkdir()
            results.put((name, what, *case(path, seconds)))
            shutil.rmtree(path)
    results.put((name, None, 0, []))


def campaign(
    rounds: int, names: Sequence[str] = tuple(COMMANDS), done: dict[str, Any] | None = None,
    after_case: Callable[[dict[str, Any], list[str]], Any] = lambda *_: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """So many moments of each signal, and every fault once, of all commands at once; how they ended, what was wrong."""
    found: dict[str, Any] = {name: {} for name in names} | dict((done or {}).get("commands", {}))
    findings = list((done or {}).get("findings", []))
    results = FORKED.Queue()
    processes = {name: FORKED.Process(target=of_command, args=(name, rounds, found[name], results)) for name in names}
    for process in processes.values():
        process.start()
    while processes:
        name, what, code, bad = results.get()
        if what is None:
            processes.pop(name).join()
            continue
        counts = Counter(found[name].get(what, {}))
        counts[str(code)] += 1
        found[name][what] = dict(counts)
        findings += [f"{name}, {what}: {each}"[:500] for each in bad]
        after_case({"commands": found}, findings)
        print(f"{name}: {found[name]}, {len(findings)} findings so far", flush=True)
    return {"commands": found}, findings


def _seconds(name: str, scratch: Path) -> float:
    """How long a command takes that nothing happens to."""
    start = time.monotonic()
    code, said = Process(COMMANDS[name](scratch / "out"), scratch).end()
    if code:
        raise RuntimeError(f"{name} ends with {code} by itself: {said}")
    return time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="moments of each signal")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = kept(options.out)
    before = done.get("seconds", 0)
    after_case = partial(keep, options.out, quiet=True, before=before)
    return keep(options.out, *campaign(options.rounds, options.commands, done, after_case), before=before)


if __name__ == "__main__":
    sys.exit(main())
