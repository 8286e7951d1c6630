"""A fault at every single write of a save, of a month and of a run: the disk is full or faulty, or the process dies.

cd tools && python -m reliability.writes --out ../results/reliability/writes.json

A process counts its calls that create, write, sync, replace or remove a file, and at one of them dies as by `kill -9`,
after half of the bytes where it writes, or is told that the disk is full, read-only or faulty. Each call is tried in a
process of its own. Afterwards the folder must hold what was saved before or what was being saved, errors must be ours,
and doing the same again must end where it ends without any fault.
"""

import argparse
import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from fromp import FROMP, Categorical, FrompError
from fromp.foundation import storage
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.engine.run import Run
from fromp.lab.results import store
from fromp.lab.results.plan import Plan
from fromp.learn import Learner
from reliability.report import keep, kept

FAULTS = {"killed": None, "disk full": errno.ENOSPC, "read-only": errno.EROFS, "faulty disk": errno.EIO}
OURS, WRONG, DEAD = 0, 3, 9  # how a process ends: done or with our error; with another; killed


@dataclass(frozen=True)
class Work:
    """Something that writes: what is there before, what is done then, and what the folder says afterwards."""

    prepare: Callable[[Path], None]
    do: Callable[[Path], None]
    says: Callable[[Path], str]


class Torn:
    """A file of which only half reaches the disk, if the fault comes while it is written."""

    def __init__(self, stream: Any, count: Callable[[], bool], strike: Callable[[], None]) -> None:
        self._stream, self._count, self._strike = stream, count, strike

    def write(self, data: bytes) -> int:
        if self._count():
            self._stream.write(data[: len(data) // 2])
            self._stream.flush()
            self._strike()
        return self._stream.write(data)

    def __enter__(self) -> "Torn":
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def fault(at: int, number: int | None) -> Iterator[list[int]]:
    """At the call number `at` the process dies, or gets the error `number`; how many calls there were."""
    calls = [0]

    def strike() -> None:
        if number is None:
            os._exit(DEAD)
        raise OSError(number, os.strerror(number))

    def due() -> bool:
        calls[0] += 1
        return calls[0] - 1 == at

    def watched(call: Callable[..., Any], concerns: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            if concerns(*args) and due():
                strike()
            return call(*args, **kwargs)

        return instead

    def creates(path: Any, flags: int = 0, *_: Any) -> bool:
        return bool(flags & os.O_CREAT)

    fdopen = os.fdopen

    def opened(file: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        stream = fdopen(file, mode, *args, **kwargs)
        return Torn(stream, due, strike) if "w" in mode else stream

    with contextlib.ExitStack() as patches:
        for name in ("fsync", "replace", "unlink", "mkdir", "rename", "rmdir"):
            patches.enter_context(patch.object(os, name, watched(getattr(os, name))))
        patches.enter_context(patch.object(os, "open", watched(os.open, creates)))
        patches.enter_context(patch.object(os, "fdopen", opened))
        yield calls


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def _remember(tasks: int, folder: Path) -> None:
    reg = FROMP(network(), Categorical(), memory_size=6)
    for task in range(tasks):
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(task))
        reg.end_task((x, torch.arange(40) % 3))
    reg.save(folder)


def _of_memory(folder: Path) -> str:
    reg = FROMP.load(folder, network())
    stray = [path.name for path in folder.iterdir() if path.suffix == ".tmp"]
    return f"{len(reg.memories)} tasks, {reg.penalty().item():.3g}, {stray if len(stray) > 1 else ''}"


def _month(number: int) -> Path:
    path = Path(tempfile.gettempdir()) / f"fromp-{os.getuid()}-month-{number}.csv"
    draw = np.random.default_rng(number)
    rows = [f"{a:.1f},{i:.0f},{'yes' if a > 50 else 'no'}" for a, i in draw.uniform((18, 1e6), (80, 9e6), (60, 2))]
    path.write_text("\n".join(["age,income,churn", *rows]))
    return path


def _first_month(folder: Path) -> None:
    Learner(folder).learn(_month(0), "churn", epochs=1, hidden=[4], memory_size=4, room=1)


def _second_month(folder: Path) -> None:
    if len(Learner(folder).months) < 2:
        Learner(folder).learn(_month(1), tau=1.0)


def _of_months(folder: Path) -> str:
    learner = Learner(folder)
    return f"{[month.name for month in learner.months]}, {[row['score'] for row in learner.evaluate().rows]}"


PLAN = Plan.of("toy-less-data", "fromp", tasks=2, epochs=1, batch_size=200)


def _learn(folder: Path) -> None:
    run = Run(PLAN, BENCHMARKS[PLAN.benchmark], 0, folder / "seeds" / "0")
    for progress in run.learn(checkpoint_seconds=0):
        if progress.finished:
            store.record(folder, PLAN, run.result())


def _of_run(folder: Path) -> str:
    if not (folder / store.RESULTS).exists():
        return "nothing"
    store.read(folder)
    state = storage.read(folder / "seeds" / "0" / "checkpoint", "run")
    weights = b"".join(value.numpy().tobytes() for value in state["model"].values())
    return f"task {state['task']}, {hashlib.sha256(weights).hexdigest()[:12]}" if state["fit"] is None else "in a task"


WORKS = {
    "save": Work(lambda folder: _remember(1, folder), lambda folder: _remember(2, folder), _of_memory),
    "first save": Work(lambda folder: None, lambda folder: _remember(1, folder), _of_memory),
    "month": Work(_first_month, _second_month, _of_months),
    "run": Work(lambda folder: None, _learn, _of_run),
}


def in_process(do: Callable[[], object]) -> tuple[int, str]:
    """How a process ends that does this, and what it says if that is not ours."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = OURS
        try:
            os.write(writing, str(do()).encode())
        except FrompError:
            pass
        except BaseException as error:
            code = WRONG
            os.write(writing, f"{type(error).__name__}: {error} {traceback.format_exc()[-300:]}".encode())
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _counted(work: Work, folder: Path) -> int:
    with fault(-1, None) as calls:
        work.do(folder)
    return calls[0]


def campaign(
    names: Sequence[str] = tuple(WORKS), every: int = 1, done: dict[str, Any] | None = None,
    after_fault: Callable[[dict[str, Any], list[str]], Any] = lambda *_: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Each fault at every call, or at some; how the processes ended, and what should not have been.

    done: what an earlier call has found, whose faults are not tried again.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    findings: list[str] = list((done or {}).get("findings", []))
    found: dict[str, Any] = dict((done or {}).get("faults", {}))
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            work, before, whole = WORKS[name], Path(scratch) / name / "before", Path(scratch) / name / "whole"
            before.mkdir(parents=True)
            work.prepare(before)
            shutil.copytree(before, whole)
            _, said = in_process(partial(_counted, work, whole))
            calls, final = int(said), work.says(whole)
            first = work.says(before) if any(before.iterdir()) else None
            tried = {kind: count for kind, count in found.get(name, {}).items() if kind != "calls"}
            counts = Counter[str](tried if found.get(name, {}).get("calls") == calls else {})
            for kind, number in FAULTS.items():
                for at in range(0, calls, every)[counts[kind] :]:
                    what, folder = f"{name}, {kind} at call {at} of {calls}", Path(scratch) / "work"
                    shutil.rmtree(folder, ignore_errors=True)
                    shutil.copytree(before, folder)

                    def hit(
                        work: Work = work, folder: Path = folder, at: int = at, number: int | None = number
                    ) -> None:
                        with fault(at, number):
                            work.do(folder)

                    code, said = in_process(hit)
                    counts[kind] += 1
                    if code == WRONG:
                        findings.append(f"{what}: {said}"[:600])
                    try:
                        middle = work.says(folder) if (folder / storage.MANIFEST).exists() or name == "run" else None
                        if name != "run" and middle not in (first, final):
                            findings.append(f"{what}: the folder says {middle}, not {first} or {final}")
                    except Exception as error:
                        findings.append(f"{what}: cannot be read afterwards: {error!r}"[:400])
                    code, said = in_process(partial(work.do, folder))
                    if code != OURS or said != "None" or (end := work.says(folder)) != final:
                        findings.append(
                            f"{what}: doing it again ends with {code} {said[:300]}, {end if code == OURS else ''}"
                        )
                    found[name] = {"calls": calls, **counts}
                    after_fault({"faults": found}, findings)
            print(f"{name}: {found[name]}, {len(findings)} findings so far", flush=True)
    return {"faults": found}, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--works", nargs="*", default=list(WORKS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = kept(options.out)
    before = done.get("seconds", 0)
    after_fault = partial(keep, options.out, quiet=True, before=before)
    return keep(options.out, *campaign(options.works, options.every, done, after_fault), before=before)


if __name__ == "__main__":
    sys.exit(main())
