"""Seeds learned one after another or several at once, each resumable, all in one folder."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import torch
from filelock import FileLock, Timeout
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky import get_reusable_executor
from rich.console import Console

from fromp.foundation.errors import CheckpointError, FrompError, install
from fromp.lab.benchmarks.catalogue import benchmark
from fromp.lab.engine import tensorboard
from fromp.lab.engine.run import CHECKPOINT_SECONDS, Interrupted, Progress, run_of, terminating
from fromp.lab.engine.watch import Board, NowAndThen, Posting, Watcher
from fromp.lab.results import store
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import Experiment, seed_folder
from fromp.learn.console import PlainConsole, printable


@dataclass(frozen=True)
class Execution:
    """How seeds are learned; none of it changes the numbers."""

    jobs: int = 1  # seeds at once, each in a process
    quiet: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    first_task: Path | None = None  # a folder in which runs share their first task
    tensorboard: bool = False
    ray: bool = False  # the processes on a Ray cluster rather than here

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise FrompError(f"jobs must be at least 1 (got {self.jobs}).")


@dataclass(frozen=True)
class Job:
    """One seed of a plan, and the folder of its results."""

    plan: Plan
    seed: int
    out: Path


def learn(plan: Plan, seeds: list[int], out: Path, execution: Execution, console: Console) -> int:
    """Learn every seed that is not done yet; the exit code, 128 + the signal if one came."""
    with _working_in(out, plan):
        left = [seed for seed in seeds if not done(out, seed)]
        if not execution.quiet:
            already = f", {len(seeds) - len(left)} already done" if len(left) < len(seeds) else ""
            what = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
            console.print(f"{plan.benchmark} with {plan.method}, {what}{already}, in {out}", highlight=False)
        jobs = [Job(plan, seed, out) for seed in left]
        if not _several(jobs, execution):
            return _learn_each(partial(_learn_and_show, execution), jobs, execution)
        if execution.ray or execution.quiet or not console.is_terminal:  # other machines, or nobody to see lines move
            return _learn_each(partial(_learn_and_print, execution), jobs, execution)
        with Board(console, {job.seed: seed_folder(out, job.seed) for job in jobs}):
            return _learn_each(partial(_learn_and_post, execution), jobs, execution)


def run(benchmark: str, method: str, out: Path | str, seeds: int = 1, **changes: Any) -> Experiment:
    """Learn a benchmark with a method, seeds 0 to `seeds` - 1, and return what results.json in `out` then has."""
    out = Path(out)
    learn(Plan.of(benchmark, method, **changes), list(range(seeds)), out, Execution(quiet=True), PlainConsole())
    return store.read(out)


def learn_all(jobs: Sequence[Job], execution: Execution) -> int:
    """Learn seeds of several plans, done or not, with a line for each; one that fails leaves the others alone.

    The exit code is that of `learn`, 2 if one failed.
    """
    with ExitStack() as folders:
        for out, plan in {job.out: job.plan for job in jobs}.items():
            folders.enter_context(_working_in(out, plan))
        return _learn_each(partial(_learn_and_tell, execution, list(jobs)), jobs, execution)


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """Those that are not done; an error if a folder holds runs of another plan."""
    for out, plan in {job.out: job.plan for job in jobs}.items():
        with _working_in(out, plan):
            pass
    return [job for job in jobs if not done(job.out, job.seed)]


def _learn_each(one: Callable[[Job], int], jobs: Sequence[Job], execution: Execution) -> int:
    codes = _at_once(one, jobs, execution) if _several(jobs, execution) else _in_turn(one, jobs)
    return max(codes, default=0)


def _several(jobs: Sequence[Job], execution: Execution) -> bool:
    """Whether other processes do it."""
    return bool(jobs) and (execution.ray or min(execution.jobs, len(jobs)) > 1)


@contextmanager
def exclusive_folder(out: Path) -> Iterator[None]:
    """No other process works in the folder meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise CheckpointError(f"another process is working in {out}; wait for it, or give another --out.") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _working_in(out: Path, plan: Plan) -> Iterator[None]:
    """Alone in a folder that has no runs of other plans, each of its runs in a file of its own."""
    with exclusive_folder(out):
        if (out / "results.json").exists() and (different := plan.differences(store.read(out).plan)):
            raise CheckpointError(
                f"{out} already holds a run with a different {', '.join(different)}; "
                "give another --out, or remove that folder."
            )
        store.unfold(out)
        yield


def _in_turn(one: Callable[[Job], int], jobs: Sequence[Job]) -> list[int]:
    codes = []
    for job in jobs:
        codes.append(one(job))
        if codes[-1] >= 128:  # a signal, which is meant for all of them
            break
    return codes


def _at_once(one: Callable[[Job], int], jobs: Sequence[Job], execution: Execution) -> list[int]:
    if execution.ray:
        try:
            from ray.util.joblib import register_ray
        except ImportError as error:
            raise FrompError(f"Ray is not installed; {install('ray')}, or leave --ray out.") from error
        register_ray()
    with parallel_config(backend="ray" if execution.ray else "loky"), _terminable():
        parallel = Parallel(n_jobs=min(execution.jobs, len(jobs)), pre_dispatch="n_jobs", batch_size=1)
        try:
            return list(parallel(delayed(_on_one_core)(one, job) for job in jobs))
        except _Terminated as stop:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)
            print("  terminated; what was saved is kept. Run the same command again to resume.", file=sys.stderr)
            return [128 + stop.number]


class _Terminated(BaseException):
    """The process that waits for the others has received SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise inside, so that the processes at work can be stopped too."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated(number)

    before = {number: signal.signal(number, stop) for number in terminating()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _on_one_core(one: Callable[[Job], int], job: Job) -> int:
    torch.set_num_threads(1)
    _end_with_parent()
    return one(job)


@cache
def _end_with_parent() -> None:
    """End this process soon after the one that started it, however that ended: an orphan would train on and write."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)  # a run can be killed at any moment

    Thread(target=watch, daemon=True).start()


def _learn_and_show(execution: Execution, job: Job) -> int:
    """Learn a seed, with a line that moves, in a terminal, and one after each task."""
    console = PlainConsole()
    with Watcher(console, live=console.is_terminal, quiet=execution.quiet) as show:
        return _learn_one(execution, job, show)


def _learn_and_print(execution: Execution, job: Job) -> int:
    """Learn a seed beside others, with a line now and then, and one after each task."""
    with Watcher(PlainConsole(), live=False, quiet=execution.quiet) as show:
        return _learn_one(execution, job, show)


def _learn_and_post(execution: Execution, job: Job) -> int:
    """Learn a seed for a `Board`."""
    folder = seed_folder(job.out, job.seed)
    folder.mkdir(parents=True, exist_ok=True)
    return _learn_one(execution, job, Posting(folder))


def _learn_and_tell(execution: Execution, jobs: list[Job], job: Job) -> int:
    """Learn one seed of many: a line now and then, and one with the result at the end."""
    console, position = PlainConsole(), f"{jobs.index(job) + 1}/{len(jobs)}"
    try:
        code = _learn_one(execution, job, NowAndThen(console, position, execution.quiet))
    except FrompError as error:
        print(printable(f"  {position:>7}  failed: {error}  {job.out}, seed {job.seed}"), file=sys.stderr)
        return 2
    if code == 0 and not execution.quiet:
        result = store.read_seed(job.out, job.seed)
        how = f"{100 * (result.average_accuracy or 0.0):6.2f} %  {result.seconds:5.0f} s" if result else ""
        console.print(f"  {position:>7}  {how}  {job.out}, seed {job.seed}", highlight=False, soft_wrap=True)
    return code


def _learn_one(execution: Execution, job: Job, show: Callable[[Progress], None]) -> int:
    path = seed_folder(job.out, job.seed)
    with exclusive_folder(path):  # a second lock: a worker may outlive the process that holds the one on all seeds
        return _learn_in(path, execution, job, show)


def _learn_in(path: Path, execution: Execution, job: Job, show: Callable[[Progress], None]) -> int:
    plan, seed, out = job.plan, job.seed, job.out
    run = run_of(plan, benchmark(plan.benchmark), seed, path, execution.first_task)
    log = tensorboard.watcher(path / "tensorboard") if execution.tensorboard else None
    again = done(out, seed)  # learned again for its snapshots: its earlier result stands until it is done

    try:
        for progress in run.learn(execution.checkpoint_seconds):
            if progress.finished and not again:
                store.record(out, plan, run.result())
            show(progress)
            if log is not None:
                log(progress)
        store.record(out, plan, run.result())
    except Interrupted as stop:
        if not isinstance(show, Posting):  # its lines are drawn by another process, which says so itself
            print(f"  seed {seed}: saved; run the same command again to resume", file=sys.stderr)
        return 128 + stop.number
    return 0


def done(out: Path, seed: int) -> bool:
    """Whether every task of the seed has been learned."""
    found = store.read_seed(out, seed)
    return found is not None and found.finished
