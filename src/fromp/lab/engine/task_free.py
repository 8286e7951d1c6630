"""A run without given task boundaries."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.foundation.state import State
from fromp.lab.benchmarks.catalogue import Benchmark
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.fit import Fit, hash_seed
from fromp.lab.engine.run import Run
from fromp.lab.methods.base import HeadBatch, Penalised, TrainingSets
from fromp.lab.results import metrics
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import SeedResult
from fromp.memory import Memory
from fromp.protocol import Loss
from fromp.taskfree.detectors import DETECTORS
from fromp.taskfree.learner import TaskFree


@final
class TaskFreeRun(Run):
    """One seed of a plan, with a learner that detects task boundaries in the minibatches."""

    def __init__(self, plan: Plan, benchmark: Benchmark, seed: int, path: Path) -> None:
        super().__init__(plan, benchmark, seed, path)
        if not isinstance(self.method, Penalised):
            raise FrompError(
                f"{plan.method} needs to know when a task begins; use a method that is only a penalty, such as fromp."
            )
        self._penalised = self.method
        settings, regulariser = plan.settings, self.method.regulariser
        build, options = DETECTORS[settings.boundaries], {**vars(settings), "regulariser": regulariser}
        detector = build(**{name: options[name] for name in inspect.signature(build).parameters if name in options})
        self.learner = TaskFree(
            regulariser,
            self.method.optimizer(plan.training),
            detector,
            reservoir=settings.reservoir,
            min_task_examples=plan.memory,
            clip=plan.training.clip_norm,
            seed=hash_seed(seed, 4),
        )
        self._trace, self._ends = [], []  # type: tuple[list[list[float]], list[int]]

    def result(self) -> SeedResult:
        return replace(super().result(), boundaries=self._boundaries())

    def _new_fit(self, training: TrainingSets, settings: Training, seed: int) -> Fit:
        return TaskFreeFit(self.learner, self._penalised, training, settings, seed)

    def _after_step(self) -> None:
        self._trace.append([*self.learner.detector.values])

    def _end_task(self) -> None:
        """The learner is not informed; the trace is recorded for figures."""
        self._ends.append(len(self._trace))
        values = torch.tensor(self._trace, dtype=torch.double)
        found = {"values": values, "names": self.learner.detector.names, **self._boundaries()}
        storage.write(self.path / "trace", "trace", found)

    def _remembered(self) -> Memory | None:
        return None  # the current task is not remembered before its end is found

    def _boundaries(self) -> dict[str, Any]:
        """The detected task boundaries, with delays and false alarms."""
        true = [end for end in self._ends if end < len(self._trace)]
        found = metrics.detection(true, self.learner.boundaries)
        if true and "Welch's t" in (names := self.learner.detector.names):
            statistic = [values[names.index("Welch's t")] for values in self._trace]
            found["threshold_range"] = metrics.threshold_range(statistic, true, self.learner.UNTESTED_MINIBATCHES)
        return found

    def _state(self) -> State:
        trace = torch.tensor(self._trace, dtype=torch.double)
        return {**super()._state(), "learner": self.learner.state_dict(), "trace": trace, "ends": self._ends}

    def _restore_parts(self, state: State) -> None:
        super()._restore_parts(state)
        self.learner.load_state_dict(state["learner"])
        self._trace, self._ends = state["trace"].tolist(), state["ends"]


@final
class TaskFreeFit(Fit):
    """A task's minibatches, shown to a learner without the boundary."""

    def __init__(
        self, learner: TaskFree, method: Penalised, training: TrainingSets, settings: Training, seed: int
    ) -> None:
        super().__init__(method, training, settings, seed, learner.optimizer)
        self._learner = learner

    def learn(self, batch: list[HeadBatch]) -> Loss:
        x, y, head = batch[0]
        if head is not None:
            raise FrompError(
                f"the head {list(head)} says which task an example belongs to; "
                "choose a benchmark with one head for all tasks, such as permuted-mnist."
            )
        self._learner.observe(x, y)
        return self._learner.loss

    def state_dict(self) -> State:
        return {"step": self.step}  # the learner keeps the rest

    def load_state_dict(self, state: State) -> None:
        self.step = state["step"]
