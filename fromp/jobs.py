"""Seeds learned one after another or several at once, each resumable, all in one folder."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from filelock import FileLock, Timeout
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from rich.console import Console

from fromp import results, tensorboard
from fromp.errors import CheckpointError, FrompError
from fromp.experiments import benchmark
from fromp.progress import Watcher
from fromp.progress import console as plain_console
from fromp.runs import CHECKPOINT_SECONDS, Interrupted, Moment, Plan, Run


@dataclass(frozen=True)
class Manner:
    """How seeds are learned; none of it changes the numbers."""

    jobs: int = 1  # seeds at once, each in a process
    quiet: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    first_task: Path | None = None  # a folder in which runs share their first task
    tensorboard: bool = False
    ray: bool = False  # the processes on a Ray cluster rather than here

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise FrompError(f"--jobs {self.jobs} is impossible; use at least 1.")


def learn(plan: Plan, seeds: list[int], out: Path, manner: Manner, console: Console) -> int:
    """Learn every seed that is not done yet; the exit code, 128 + the signal if one came."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            _check_plan(plan, out)
            left = [seed for seed in seeds if not _done(out, seed)]
            if not manner.quiet:
                already = f", {len(seeds) - len(left)} already done" if len(left) < len(seeds) else ""
                what = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
                console.print(f"{plan.benchmark} with {plan.method}, {what}{already}, in {out}", highlight=False)
            one = partial(_learn_one, plan, out, manner)
            codes = _in_turn(one, left) if min(manner.jobs, len(left)) <= 1 else _at_once(one, left, manner)
    except Timeout as error:
        raise CheckpointError(f"another process is working in {out}; wait for it, or choose another --out.") from error
    return max(codes, default=0)


def _in_turn(one: Callable[[int], int], seeds: list[int]) -> list[int]:
    codes = []
    for seed in seeds:
        codes.append(one(seed))
        if codes[-1]:
            break
    return codes


def _at_once(one: Callable[[int], int], seeds: list[int], manner: Manner) -> list[int]:
    if manner.ray:
        try:
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise FrompError("Ray is not installed; pip install fromp[ray], or leave --ray out.") from error
        register_ray()
    with parallel_config(backend="ray" if manner.ray else "loky"), _terminable():
        parallel = Parallel(n_jobs=min(manner.jobs, len(seeds)))
        try:
            return list(parallel(delayed(_on_one_core)(one, seed) for seed in seeds))
        except _Terminated:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            return [128 + signal.SIGTERM]


class _Terminated(BaseException):
    """SIGTERM came to the process that waits for the others."""


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises inside, so that the processes at work can be stopped too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _on_one_core(one: Callable[[int], int], seed: int) -> int:
    torch.set_num_threads(1)
    return one(seed)


def _learn_one(plan: Plan, out: Path, manner: Manner, seed: int) -> int:
    console = plain_console()
    path = results.seed_folder(out, seed)
    run = Run(plan, benchmark(plan.benchmark), seed, path, manner.first_task)
    log = tensorboard.watcher(path / "tensorboard") if manner.tensorboard else None
    with Watcher(console, manner.quiet) as show:

        def watch(moment: Moment) -> None:
            if moment.finished:
                results.record(out, plan, run.result())
            show(moment)
            if log is not None:
                log(moment)

        try:
            results.record(out, plan, run.learn(watch, manner.checkpoint_seconds))
        except Interrupted as stop:
            console.print(f"  seed {seed}: saved; run the same command again to go on", highlight=False)
            return 128 + stop.number
    return 0


def _done(out: Path, seed: int) -> bool:
    path = results.seed_folder(out, seed) / "run.json"
    if not path.exists():
        return False
    run: dict[str, Any] = json.loads(path.read_text())
    return len(run["accuracy"]) == run["tasks"]


def _check_plan(plan: Plan, out: Path) -> None:
    if not (out / "results.json").exists():
        return
    if different := plan.differences(results.read(out)):
        raise CheckpointError(
            f"{out} holds a run with another {', '.join(different)}; choose another --out, or remove that folder."
        )
