"""A run: one method learns one benchmark with one seed, and can be stopped and resumed at any step."""

import math
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head
from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, DerivativeError, FrompError
from fromp.foundation.examples import Examples
from fromp.foundation.state import State, field, tensor, whole
from fromp.lab.benchmarks.catalogue import Benchmark
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.first_task import FirstTask
from fromp.lab.engine.fit import Fit, accuracy, hash_seed
from fromp.lab.engine.threads import threads_for
from fromp.lab.methods.base import Method, TrainingSets
from fromp.lab.methods.card import Kept
from fromp.lab.results import metrics
from fromp.lab.results.environment import environment
from fromp.lab.results.plan import Given, Plan
from fromp.lab.results.record import SeedResult
from fromp.likelihoods import Categorical
from fromp.memory import Memory
from fromp.protocol import Loss

CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    seed: int
    task: int
    num_tasks: int
    past_steps: int  # steps of the tasks before
    step: int
    num_steps: int
    num_epochs: int
    finished: bool  # the task is learned, remembered and tested
    seconds: float
    accuracy: metrics.Matrix
    loss: Loss


class Interrupted(Exception):
    """A signal stopped the run; it has been saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Run:
    """One seed of a plan, in a folder of its own; `run_of` makes the kind that the plan wants."""

    def __init__(self, plan: Plan, benchmark: Benchmark, seed: int, path: Path, first_task: Path | None = None) -> None:
        self.plan, self.seed, self.path = plan, seed, path
        self.stream, self.model = benchmark.make(plan.stream, plan.network, seed)
        other = needed(plan)
        self._before = None if other is None else Run(other, benchmark, seed, path / other.method, first_task)
        self.method = build_method(plan, self.model, seed, None if self._before is None else self._before.kept)
        self.task, self.rows, self.seconds = 0, [], []  # type: tuple[int, list[list[float] | None], list[float]]
        self.steps: list[int] = []  # steps of each task
        self.threads: list[int | None] = []  # per task; None if they changed within it, or if another run learned it
        self.norms: list[float | None] = []  # largest norm of the gradient in each task, if it is clipped
        self._elapsed, self._threads = 0.0, None  # type: tuple[float, int | None]  # both are about the current task
        self._first_task = None
        if first_task is not None and self.method.starts_plain:
            self._first_task = FirstTask(first_task, plan, seed)

    def learn(self, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> Iterator[Progress]:
        """Learn the rest of the stream; yields the progress after each step and each task."""
        if self._before is not None:
            self._before.complete(checkpoint_seconds)
        with torch.random.fork_rng(devices=[]), threads_for(self.model), interruptions() as signals_received:
            torch.manual_seed(hash_seed(self.seed, 1))
            saved = self._load()
            while self.task < len(self.stream):
                fit = self._begin_task(saved)
                yield from self._fit(fit, checkpoint_seconds, signals_received)
                self._finish_task(fit)
                yield self._progress(fit, True, self.seconds[-1])
                if signals_received:
                    raise Interrupted(signals_received[0])
                saved = None

    def complete(self, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> SeedResult:
        """Learn the rest without yielding, and return the result."""
        for _ in self.learn(checkpoint_seconds):
            pass
        return self.result()

    def result(self) -> SeedResult:
        """The run so far."""
        return SeedResult(
            self.seed,
            list(self.rows),
            sum(self.seconds),
            len(self.stream),
            task_seconds=list(self.seconds),
            task_steps=list(self.steps),
            task_threads=list(self.threads),
            task_largest_norm=list(self.norms),
            peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            environment=environment(),
        )

    def kept(self, task: int) -> tuple[Tensor, Tensor]:
        """The places in a learned task's data of the examples that were kept of it, and their scores."""
        folder = self.path / "tasks" / str(task + 1)
        memory = field(storage.read(folder, "task"), "memory", dict, type(None))
        if memory is None:
            raise FrompError(
                f"{folder} holds no examples that {self.plan.method} kept, which another method needs; a snapshot "
                "holds them only if the inputs are one tensor, so choose a benchmark of that kind."
            )
        indices = tensor(memory, "indices", -1, floating=False)
        size = len(self.stream.task(task).train)
        if len(indices.unique()) < len(indices) or bool(((indices < 0) | (indices >= size)).any()):
            raise CheckpointError(f"the places that {folder} says were kept are not those of {size} examples.")
        return indices, tensor(memory, "scores", len(indices), floating=True)

    def _begin_task(self, saved: State | None) -> Fit:
        """The fit of the current task, as far as it was saved or as another run has left it."""
        task, begun = self.stream.task(self.task), time.monotonic()
        if saved is not None:
            self._restore(saved)
        training = self.method.begin_task(task.train, task.head, Past(self.stream, self.task))
        fit = self._new_fit(training, self.plan.training.of_task(self.task), hash_seed(self.seed, 2, self.task))
        threads = torch.get_num_threads()
        self._threads = threads
        if saved is not None and saved["fit"] is not None:  # beginning the task has changed things
            self._restore(saved, fit)
            self._threads = threads if saved["own_threads"] == threads else None
        shared = self._first_task if saved is None and self.task == 0 else None
        if shared is not None and (seconds := shared.load(fit)) is not None:
            self._elapsed, self._threads = seconds, None
        self._start = begun - self._elapsed
        return fit

    def _new_fit(self, training: TrainingSets, settings: Training, seed: int) -> Fit:
        return Fit(self.method, training, settings, seed)

    def _fit(self, fit: Fit, checkpoint_seconds: float, signals_received: list[int]) -> Iterator[Progress]:
        """Take the remaining steps of a task, with checkpoints in between and at the end."""
        last = time.monotonic()
        for _ in fit.steps():
            self._after_step()
            now = time.monotonic()
            if signals_received or now - last > checkpoint_seconds:
                self._elapsed = now - self._start
                self._save(fit)
                last = time.monotonic()
                if signals_received:
                    raise Interrupted(signals_received[0])
            yield self._progress(fit, False, now - self._start)
        self._elapsed = time.monotonic() - self._start
        self._save(fit)  # what follows can take minutes
        if signals_received:
            raise Interrupted(signals_received[0])

    def _after_step(self) -> None:
        return

    def _finish_task(self, fit: Fit) -> None:
        """Remember the task, test all tasks so far, and save."""
        if self.task == 0 and self._first_task is not None:
            self._first_task.save(fit, self._elapsed)
        self._end_task()
        seen = enumerate(map(self.stream.task, range(self.task + 1)))
        tested = [accuracy(self.method, task.test, task.head, place) for place, task in seen] if fit.num_steps else None
        self.rows.append(tested)
        before = 0.0 if self._before is None else self._before.seconds[self.task]
        self.seconds.append(before + time.monotonic() - self._start)
        self.steps.append(fit.num_steps)
        self.threads.append(self._threads)
        self.norms.append(fit.known_norm)
        self.task, self._elapsed = self.task + 1, 0.0
        self._snapshot()
        self._save(None)

    def _end_task(self) -> None:
        task = self.stream.task(self.task)
        self.method.end_task(task.train, task.head)

    def _progress(self, fit: Fit, finished: bool, seconds: float) -> Progress:
        return Progress(
            self.seed, self.task, len(self.stream), sum(self.steps), fit.step, fit.num_steps, fit.settings.epochs,
            finished, seconds, self.rows, fit.loss,
        )  # fmt: skip

    def _remembered(self) -> Memory | None:
        """What is kept of the task that has just ended."""
        return self.method.memories[-1] if self.method.memories else None

    def _snapshot(self) -> None:
        """The weights after a task, and what was remembered of it, for pictures of how it went."""
        memory = self._remembered()
        state: State = {
            "accuracy": self.rows[-1], "weights": self.model.state_dict(), "memory": None, "pictures": None
        }  # fmt: skip
        if memory is not None and isinstance(memory.inputs, Tensor):
            state["memory"] = memory.state_dict()
            state["pictures"] = self.stream.picture(self.task - 1, memory.inputs)
        storage.write(self.path / "tasks" / str(self.task), "task", state)

    def _state(self) -> State:
        """Everything that the rest of the run depends on, except the fit of the current task."""
        return {
            "plan": self.plan.as_json(), "seed": self.seed, "task": self.task, "rows": self.rows,
            "seconds": self.seconds, "steps": self.steps, "threads": self.threads, "norms": self.norms,
            "own_threads": self._threads, "elapsed": self._elapsed, "model": self.model.state_dict(),
            "method": self.method.state_dict(), "random": torch.get_rng_state(),
        }  # fmt: skip

    def _save(self, fit: Fit | None) -> None:
        if fit is not None and not math.isfinite(loss := float(fit.loss.data + fit.loss.penalty)):
            raise DerivativeError(
                f"the loss of seed {self.seed} is {loss} at step {fit.step} of {fit.num_steps} of task "
                f"{self.task + 1}; use a smaller lr than {self.plan.training.lr:g}, or a clip of the gradient."
            )
        state = {**self._state(), "fit": None if fit is None else fit.state_dict()}
        storage.write(self.path / "checkpoint", "run", state)

    def _load(self) -> State | None:
        """The checkpoint if there is one, with everything restored except the current task."""
        if not (self.path / "checkpoint" / storage.MANIFEST).exists():
            return None
        state = storage.read(self.path / "checkpoint", "run")
        if self.plan.differences(state["plan"]) or state["seed"] != self.seed:
            raise CheckpointError(
                f"{self.path} already holds a run with different settings; give another --out, or remove that folder."
            )
        self.task = field(state, "task", int)
        if not 0 <= self.task <= len(self.stream):
            raise CheckpointError(f"{self.path} has learned {self.task} of {len(self.stream)} tasks; restore a copy.")
        self.rows, self.seconds, self.steps, self.threads, self.norms = (
            self._per_task(state, *column)
            for column in (
                ("rows", list, type(None)), ("seconds", float), ("steps", int), ("threads", int, type(None)),
                ("norms", float, type(None)),
            )
        )  # fmt: skip
        if any(row is not None and not _is_row(row, task) for task, row in enumerate(self.rows, start=1)):
            raise CheckpointError("the saved 'rows' are not one accuracy per task so far; restore it from a copy.")
        self._elapsed = field(state, "elapsed", float)
        if self.task == len(self.stream):
            self._restore(state)
        return state

    def _per_task(self, state: State, key: str, *kinds: type) -> list[Any]:
        """A value of each kind for each task so far, or an error."""
        values = field(state, key, list)
        if len(values) != self.task or not all(isinstance(value, kinds) for value in values):
            raise CheckpointError(f"the saved '{key}' does not have one value per task; restore it from a copy.")
        return values

    def _restore(self, state: State, fit: Fit | None = None) -> None:
        try:
            self._restore_parts(state)
            if fit is not None:
                fit.load_state_dict(state["fit"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.path / 'checkpoint'} does not fit the run that it is of ({type(error).__name__}: {error}); "
                "restore it from a copy, or remove that folder to start the seed again."
            ) from error

    def _restore_parts(self, state: State) -> None:
        self.model.load_state_dict(whole(state, "model", self.model.state_dict()))
        self.method.load_state_dict(state["method"])
        torch.set_rng_state(state["random"])


class Past(Sequence[tuple[Examples, Head]]):
    """The data of the tasks before `place`, made only when looked at."""

    def __init__(self, stream: Stream, place: int) -> None:
        self._stream, self._place = stream, place

    def __len__(self) -> int:
        return self._place

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < self._place:
            raise IndexError(index)
        task = self._stream.task(index)
        return task.train, task.head


def _is_row(row: Any, length: int) -> bool:
    return isinstance(row, list) and len(row) == length and all(isinstance(r, float) and 0 <= r <= 1 for r in row)


def needed(plan: Plan) -> Plan | None:
    """The plan to learn before this one, for what it keeps: the other method's own, on the same data and network."""
    if plan.card.needs_memories_of is None:
        return None
    own = Plan.of(plan.benchmark, plan.card.needs_memories_of, memory=plan.memory)
    return replace(own, stream=plan.stream, network=plan.network)


def build_method(plan: Plan, model: nn.Module, seed: int, kept: Kept | None = None) -> Method:
    """The plan's method. kept: what the method has kept whose memories it needs."""
    settings = plan.settings
    settings.kept = kept
    return plan.card.build(model, Categorical(), settings, hash_seed(seed, 3))


def run_of(plan: Plan, benchmark: Benchmark, seed: int, path: Path, first_task: Path | None = None) -> Run:
    """A run of the plan, task-free if its boundaries are not given."""
    if isinstance(plan.boundaries, Given):
        return Run(plan, benchmark, seed, path, first_task)
    from fromp.lab.engine.task_free import TaskFreeRun

    return TaskFreeRun(plan, benchmark, seed, path)


def terminating() -> list[int]:
    """The signals that end a process: SIGTERM, and where it is not ignored, as under nohup, SIGHUP of a terminal that
    closes."""
    hangup = getattr(signal, "SIGHUP", None)  # not on Windows
    return [signal.SIGTERM, *([] if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN else [hangup])]


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """SIGINT, SIGTERM and SIGHUP are recorded in a list; a second one takes effect at once."""
    signals_received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals_received:
            raise KeyboardInterrupt
        signals_received.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, *terminating())}
    except ValueError:  # only the main thread can set handlers
        before = {}
    try:
        yield signals_received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
