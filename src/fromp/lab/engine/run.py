"""A run: one method learns one benchmark with one seed, and can be stopped and taken up again at any step."""

import inspect
import math
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head
from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, DerivativeError
from fromp.foundation.examples import Examples
from fromp.lab.benchmarks.catalogue import Benchmark, as_json, settings_for
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.engine.first_task import FirstTask
from fromp.lab.engine.fit import Fit, accuracy, hash_seed
from fromp.lab.engine.threads import environment, threads_for
from fromp.lab.methods.base import Loss, Method, under
from fromp.lab.methods.registry import METHODS
from fromp.lab.results import metrics
from fromp.lab.results.plan import Plan
from fromp.likelihoods import Categorical
from fromp.taskfree.detectors import DETECTORS
from fromp.taskfree.learner import TaskFree, TaskFreeFit

CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever watches it."""

    seed: int
    task: int
    num_tasks: int
    past_steps: int  # of the tasks before
    step: int
    num_steps: int
    num_epochs: int
    finished: bool  # the task is learned, remembered and tested
    seconds: float
    accuracy: Sequence[Sequence[float]]
    loss: Loss


class Interrupted(Exception):
    """A signal signals_received the run to stop; it has been saved."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Run:
    """One seed of a plan, in a folder of its own."""

    def __init__(self, plan: Plan, benchmark: Benchmark, seed: int, path: Path, first_task: Path | None = None) -> None:
        self.plan, self.seed, self.path = plan, seed, path
        self._first_task = (
            None if first_task is None else FirstTask(first_task, plan.benchmark, seed, plan.settings, plan.method)
        )
        self.stream, self.model = benchmark.make(plan.settings, seed)
        self.method = build_method(plan, self.model, seed)
        self.task, self.rows, self.seconds = 0, [], []  # type: tuple[int, list[list[float]], list[float]]
        self.steps: list[int] = []  # of each task
        self.threads: list[int | None] = []  # of each task; None where they changed, or where another run learned it
        self.norms: list[float | None] = []  # the largest of the gradient in each task, where it is clipped
        self._elapsed, self._threads = 0.0, None  # type: tuple[float, int | None]  # of the task at hand
        self.learner = build_learner(plan, self.method, seed)
        self._trace, self._ends = [], []  # type: tuple[list[list[float]], list[int]]

    def learn(self, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> Iterator[Progress]:
        """Learn what is left of the stream, saying after each step and each task where it stands."""
        with torch.random.fork_rng(devices=[]), threads_for(self.model), interruptions() as signals_received:
            torch.manual_seed(hash_seed(self.seed, 1))
            saved = self._load()
            while self.task < len(self.stream):
                yield from self._learn_task(saved, checkpoint_seconds, signals_received)
                saved = None

    def complete(self, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> dict[str, Any]:
        """Learn what is left, unwatched, and return the run as it stands in results.json."""
        for _ in self.learn(checkpoint_seconds):
            pass
        return self.result()

    def result(self) -> dict[str, Any]:
        """The run so far, as an entry of results.json."""
        result: dict[str, Any] = {"seed": self.seed, "accuracy": self.rows}
        if self.rows:
            every = self.method.trains_every_task
            result |= {
                "average_accuracy": metrics.average_accuracy(self.rows),
                "backward_transfer": metrics.backward_transfer(self.rows) if every else None,
                "forward_transfer": None,
                "forgetting": metrics.forgetting(self.rows) if every else None,
            }
        if self.learner is not None:
            result["boundaries"] = self._boundaries(self.learner)
        return result | {
            "seconds": sum(self.seconds),
            "task_seconds": self.seconds,
            "task_steps": self.steps,
            "task_threads": self.threads,
            "task_largest_norm": self.norms,
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "tasks": len(self.stream),
            "environment": environment(),
        }

    def _learn_task(
        self, saved: dict[str, Any] | None, checkpoint_seconds: float, signals_received: list[int]
    ) -> Iterator[Progress]:
        task, begun = self.stream.task(self.task), time.monotonic()
        if saved is not None:
            self._restore(None, saved)
        training = self.method.begin_task(task.train, task.head, Past(self.stream, self.task))
        settings, seed = self.plan.settings.optimisation(), hash_seed(self.seed, 2, self.task)
        if self.learner is None:
            fit = Fit(self.method, training, settings, seed)
        else:
            fit = TaskFreeFit(self.learner, training, settings, seed)
        if saved is not None and saved["step"] > 0:  # it ended within the task: beginning it has changed things
            self._restore(fit, saved)
        threads = torch.get_num_threads()
        self._threads = threads if saved is None or saved["step"] == 0 or saved["own_threads"] == threads else None
        plain = self.method.first_task_is_plain and self.learner is None
        shared = self._first_task if self.task == 0 and plain else None
        if shared is not None and saved is None and (seconds := shared.take(self.method, fit)) is not None:
            self._elapsed, self._threads = seconds, None
        start, last = begun - self._elapsed, time.monotonic()
        for _ in fit.steps():
            if self.learner is not None:
                self._trace.append([*self.learner.detector.values])
            now = time.monotonic()
            if signals_received or now - last > checkpoint_seconds:
                self._elapsed = now - start
                self._save(fit)
                last = time.monotonic()
                if signals_received:
                    raise Interrupted(signals_received[0])
            yield self._progress(fit, False, now - start)
        self._elapsed = time.monotonic() - start
        self._save(fit)  # what follows can take minutes
        if signals_received:
            raise Interrupted(signals_received[0])
        if shared is not None:
            shared.leave(self.method, fit, self._elapsed)
            shared.end(self.method, task)
        elif self.learner is None:
            self.method.end_task(task.train, task.head)
        else:
            self._ends.append(len(self._trace))
            found = {"names": self.learner.detector.names, **self._boundaries(self.learner)}
            storage.write(
                self.path / "trace", "trace", {"values": torch.tensor(self._trace, dtype=torch.double)}, found
            )
        self.rows.append(
            [
                accuracy(self.method, seen.test, seen.head, place)
                for place, seen in enumerate(map(self.stream.task, range(self.task + 1)))
            ]
        )
        self.seconds.append(time.monotonic() - start)
        self.steps.append(fit.num_steps)
        self.threads.append(self._threads)
        self.norms.append(fit.known_norm)
        self.task, self._elapsed = self.task + 1, 0.0
        self._snapshot()
        self._save(None)
        yield self._progress(fit, True, self.seconds[-1])
        if signals_received:
            raise Interrupted(signals_received[0])

    def _boundaries(self, learner: TaskFree) -> dict[str, Any]:
        """Where tasks were found to begin, and what is to be said of it."""
        true = [end for end in self._ends if end < len(self._trace)]
        found = metrics.detection(true, learner.boundaries)
        if true and "Welch's t" in learner.detector.names:
            statistic = [values[learner.detector.names.index("Welch's t")] for values in self._trace]
            found["threshold_range"] = metrics.threshold_range(statistic, true, learner.UNTESTED_MINIBATCHES)
        return found

    def _progress(self, fit: Fit, finished: bool, seconds: float) -> Progress:
        return Progress(
            self.seed, self.task, len(self.stream), sum(self.steps), fit.step, fit.num_steps, fit.settings.epochs,
            finished, seconds, self.rows, fit.loss,
        )  # fmt: skip

    def _snapshot(self) -> None:
        """The weights after a task, and what was remembered of it, for pictures of how it went."""
        tensors = {f"weights.{name}": value for name, value in self.model.state_dict().items()}
        state: dict[str, Any] = {"accuracy": self.rows[-1]}
        if self.method.memories and self.learner is None:  # otherwise this task is not remembered yet
            memory = self.method.memories[-1]
            if isinstance(memory.inputs, Tensor):
                tensors |= {"inputs": memory.inputs, "labels": memory.labels, "scores": memory.scores}
                state["head"] = memory.head
        storage.write(self.path / "tasks" / str(self.task), "task", tensors, state)

    def _save(self, fit: Fit | None) -> None:
        if fit is not None and not math.isfinite(loss := float(fit.loss.data + fit.loss.penalty)):
            raise DerivativeError(
                f"the loss of seed {self.seed} is {loss} at step {fit.step} of {fit.num_steps} of task "
                f"{self.task + 1}; use a smaller lr than {self.plan.settings.lr:g}, or a clip of the gradient."
            )
        of_method, method_state = self.method.state()
        tensors = {f"method.{name}": value for name, value in of_method.items()}
        tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors["random"] = torch.get_rng_state()
        if fit is not None:
            tensors |= {f"optimizer.{name}": value for name, value in fit.state().items()}
        state: dict[str, Any] = {
            "plan": self.plan.as_json(), "seed": self.seed, "task": self.task, "step": 0 if fit is None else fit.step,
            "rows": self.rows, "seconds": self.seconds, "steps": self.steps, "threads": self.threads,
            "own_threads": self._threads, "norms": self.norms, "elapsed": self._elapsed, "method": method_state,
            "largest_norm": None if fit is None else fit.known_norm,
        }  # fmt: skip
        if self.learner is not None:
            of_learner, state["learner"] = self.learner.state()
            tensors |= {f"learner.{name}": value for name, value in of_learner.items()}
            tensors["trace"], state["ends"] = torch.tensor(self._trace, dtype=torch.double), self._ends
        storage.write(self.path / "checkpoint", "run", tensors, state)

    def _load(self) -> dict[str, Any] | None:
        """The tensors of the checkpoint if there is one, with everything but the task at hand restored."""
        if not (self.path / "checkpoint" / storage.MANIFEST).exists():
            return None
        tensors, state = storage.read(self.path / "checkpoint", "run")
        if self.plan.differences(state["plan"]) or state["seed"] != self.seed:
            raise CheckpointError(
                f"{self.path} holds a run with other settings; choose another --out, or remove that folder."
            )
        self.task, self.rows, self.seconds = state["task"], state["rows"], state["seconds"]
        self._elapsed, self.steps = state["elapsed"], state.get("steps", [])  # there were none in older checkpoints
        self.threads, self.norms = (state.get(key, [None] * self.task) for key in ("threads", "norms"))  # nor these
        saved = {
            "tensors": tensors,
            **{key: state.get(key) for key in ("step", "own_threads", "method", "learner", "ends", "largest_norm")},
        }
        if self.task == len(self.stream):
            self._restore(None, saved)
        return saved

    def _restore(self, fit: Fit | None, saved: dict[str, Any]) -> None:
        tensors = saved["tensors"]
        self.model.load_state_dict(under(tensors, "model."))
        self.method.restore(under(tensors, "method."), saved["method"])
        torch.set_rng_state(tensors["random"])
        if self.learner is not None:
            self.learner.restore(under(tensors, "learner."), saved["learner"])
            self._trace, self._ends = tensors["trace"].tolist(), saved["ends"]
        if fit is not None:
            fit.restore(saved["step"], under(tensors, "optimizer."))
            fit.largest_norm = math.inf if saved["largest_norm"] is None else saved["largest_norm"]


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


def build_method(plan: Plan, model: nn.Module, seed: int) -> Method:
    """The plan's method, given the settings that it names."""
    build = METHODS[plan.method].build
    options = {**as_json(plan.settings), "seed": hash_seed(seed, 3), "base": settings_for(plan.benchmark, {})}
    wanted = inspect.signature(build).parameters
    return build(model, Categorical(), **{name: options[name] for name in wanted if name in options})


def build_learner(plan: Plan, method: Method, seed: int) -> TaskFree | None:
    """What learns without being told where tasks begin, if the plan wants that."""
    settings = plan.settings
    if settings.boundaries == "given":
        return None
    build, options = DETECTORS[settings.boundaries], as_json(settings)
    detector = build(**{name: options[name] for name in inspect.signature(build).parameters if name in options})
    optimisation = settings.optimisation()
    return TaskFree(
        method,
        optimisation.optimizer(method.parameters()),
        detector,
        reservoir=settings.reservoir,
        min_task_examples=settings.memory,
        clip=optimisation.clip,
        seed=hash_seed(seed, 4),
    )


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """SIGINT and SIGTERM noted in a list instead of acted on; a second one is obeyed at once."""
    signals_received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if signals_received:
            raise KeyboardInterrupt
        signals_received.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only a main thread may listen
        before = {}
    try:
        yield signals_received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
