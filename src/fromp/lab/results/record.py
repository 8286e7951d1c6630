"""One results.json, typed: an experiment and its seeds. Every summary is computed from the accuracy matrices."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State, tensor
from fromp.foundation.state import field as entry
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.methods import METHODS
from fromp.lab.results import metrics
from fromp.lab.results.metrics import Matrix, Summary
from fromp.lab.results.plan import Plan
from fromp.memory import Memory

Metric = Literal["average_accuracy", "backward_transfer", "forward_transfer", "forgetting", "seconds"]
COMPUTED = ("average_accuracy", "backward_transfer", "forgetting")
Fraction = Annotated[float, Field(ge=0, le=1)]


def seed_folder(out: Path, seed: int) -> Path:
    """Where one seed's checkpoints and snapshots lie."""
    return out / "seeds" / str(seed)


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed; lists have one entry per task learned, and are empty in files that did not record it."""

    seed: int
    accuracy: list[list[Fraction] | None]  # row i after task i; None if nothing was trained there
    seconds: float
    tasks: int | None = None  # how many there are; None in a file that does not say is as many as were learned
    forward_transfer: float | None = None  # known only beside networks trained on each task alone
    task_seconds: list[float] = field(default_factory=list)
    task_steps: list[int] = field(default_factory=list)
    task_threads: list[int | None] = field(default_factory=list)  # None where they changed within the task
    task_largest_norm: list[float | None] = field(default_factory=list)  # norm of the gradient, if it is clipped
    peak_memory_mb: float | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    boundaries: dict[str, Any] | None = None  # detected boundaries of a task-free run
    other: dict[str, Any] = field(default_factory=dict)  # what another version recorded beside these

    def __post_init__(self) -> None:
        for i, row in enumerate(self.accuracy):
            if row is not None and len(row) != i + 1:
                raise ValueError(f"row {i + 1} of the accuracy matrix has {len(row)} numbers")

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> "SeedResult":
        """From an entry of results.json; pydantic's error if it is none."""
        known = {one.name for one in fields(cls)} - {"other"}
        values = {key: value for key, value in found.items() if key in known}
        other = {key: value for key, value in found.items() if key not in known and key not in COMPUTED}
        return _SEED.validate_python({**values, "other": other})

    def as_json(self) -> dict[str, Any]:
        """As an entry of results.json: what is computed beside what was recorded."""
        values = asdict(self)
        other, seed, accuracy = values.pop("other"), values.pop("seed"), values.pop("accuracy")
        computed: dict[str, Any] = {}
        if self.accuracy:
            computed = {
                "average_accuracy": self.average_accuracy,
                "backward_transfer": self.backward_transfer,
                "forward_transfer": values.pop("forward_transfer"),
                "forgetting": self.forgetting,
            }
        recorded = {key: value for key, value in values.items() if value not in (None, [], {})}
        return {"seed": seed, "accuracy": accuracy, **computed, **recorded, **other}

    @property
    def finished(self) -> bool:
        """Whether all its tasks are learned."""
        return len(self.accuracy) == (len(self.accuracy) if self.tasks is None else self.tasks)

    @cached_property
    def average_accuracy(self) -> float | None:
        return metrics.average_accuracy(self.accuracy)

    @cached_property
    def backward_transfer(self) -> float | None:
        return metrics.backward_transfer(self.accuracy)

    @cached_property
    def forgetting(self) -> float | None:
        return metrics.forgetting(self.accuracy)

    @property
    def last(self) -> list[float]:
        """The accuracy on each task after the last one learned."""
        return self.accuracy[-1] or [] if self.accuracy else []


_SEED = TypeAdapter(SeedResult)


@dataclass(frozen=True)
class Snapshot:
    """The weights after a task and what was remembered of it."""

    task: int  # how many were learned
    weights: dict[str, Tensor]
    memory: State | None
    pictures: Tensor | None = None  # remembered images, (n, channels, height, width); None if there are none

    @classmethod
    def from_state(cls, task: int, state: State) -> "Snapshot":
        """What a run has written after a task, checked."""
        weights, memory = entry(state, "weights", dict), entry(state, "memory", dict, type(None))
        for name in weights:
            tensor(weights, name)
        pictures = None
        if memory is not None:
            kept = Memory.from_state(memory, torch.device("cpu"))
            memory = kept.state_dict()
            if state.get("pictures") is not None:
                pictures = tensor(state, "pictures", len(kept), -1, -1, -1)
        return cls(task, weights, memory, pictures)


@dataclass(frozen=True)
class Trace:
    """The detector's statistics at each minibatch of a task-free run."""

    values: dict[str, Tensor]  # the keys are the statistics' names
    true: list[int]
    found: list[int]


@dataclass(frozen=True)
class Experiment:
    """One results.json: a method on a benchmark, with some seeds."""

    path: Path  # its folder
    benchmark: str
    method: str
    settings: dict[str, Any]  # what was recorded
    environment: dict[str, Any]
    recorded: list[SeedResult]
    name: str = ""  # what distinguishes it from others: the method, or the folder

    @classmethod
    def parse(cls, found: Any, path: Path) -> "Experiment":
        """From the content of a results.json in a folder; ValueError, KeyError or TypeError if it is none."""
        plan = {key: _KINDS[key].validate_python(found[key]) for key in _KINDS}
        seeds = [SeedResult.parse(run) for run in found["runs"]]
        if plan["method"] == "joint":  # some older files have accuracies of the untrained network before this task
            first = plan["settings"].get("joint_from", 1)
            seeds = [
                replace(seed, accuracy=[row if i + 1 >= first else None for i, row in enumerate(seed.accuracy)])
                for seed in seeds
            ]
        return cls(path, **plan, recorded=seeds, name=plan["method"])

    @property
    def plan(self) -> dict[str, Any]:
        """What was run, as recorded."""
        return {"benchmark": self.benchmark, "method": self.method, "settings": self.settings}

    @property
    def seeds(self) -> list[SeedResult]:
        """Those that have learned a task."""
        return [seed for seed in self.recorded if seed.last]

    @property
    def finished(self) -> list[SeedResult]:
        """Those that have learned every task."""
        return [seed for seed in self.seeds if seed.finished]

    @property
    def shown(self) -> list[SeedResult]:
        """The finished ones, or, while there are none, those that are furthest."""
        furthest = max((len(seed.accuracy) for seed in self.seeds), default=0)
        return self.finished or [seed for seed in self.seeds if len(seed.accuracy) == furthest]

    def of(self, seed: int) -> SeedResult:
        """What was recorded of one seed."""
        return next(one for one in self.recorded if one.seed == seed)

    @property
    def matrices(self) -> list[Matrix]:
        """The accuracy matrices of the seeds that are shown."""
        return [seed.accuracy for seed in self.shown]

    def summary(self, metric: Metric) -> Summary | None:
        """A number over the finished seeds; None if no seed has it."""
        values = [getattr(seed, metric) for seed in self.finished]
        return metrics.summarise([value for value in values if value is not None])

    def summaries(self) -> dict[str, dict[str, float]]:
        """Every summary, as results.json has them."""
        found = {metric: self.summary(metric) for metric in get_args(Metric)}
        return {metric: asdict(summary) for metric, summary in found.items() if summary is not None}

    def with_forward_transfer(self, separate: "Experiment | None") -> "Experiment":
        """With FWT in the seeds whose tasks were also learned by networks trained on each task alone."""
        alone = {seed.seed: seed.last for seed in separate.finished} if separate is not None else {}
        seeds = [
            replace(seed, forward_transfer=metrics.forward_transfer(seed.accuracy, alone[seed.seed]))
            if seed.finished and len(alone.get(seed.seed, ())) == len(seed.accuracy)
            else seed
            for seed in self.recorded
        ]
        return replace(self, recorded=seeds)

    @property
    def middle_seed(self) -> int:
        """The seed whose average accuracy is the median, for pictures of a single run."""
        return self.middle_seeds(1)[0]

    def middle_seeds(self, count: int) -> list[int]:
        """That many seeds about the median, the least accurate first; all of them if there are fewer."""
        ordered = sorted(self.shown, key=lambda seed: (seed.average_accuracy or 0.0, seed.seed))
        first = max(0, (len(ordered) - count) // 2)
        return [seed.seed for seed in ordered[first : first + count]]

    def make(self, seed: int) -> tuple[Stream, nn.Module]:
        """The stream and the network of one seed, untrained."""
        return Plan.read(self.plan).make(seed)

    def changed(self) -> dict[str, Any]:
        """The settings that are not the benchmark's own for this method, by their present names."""
        if self.benchmark not in BENCHMARKS or self.method not in METHODS:
            return {}
        return Plan.changes(self.plan)

    def snapshots(self, seed: int) -> list[Snapshot]:
        """What one seed looked like after each task; none if only results.json is here."""
        path = seed_folder(self.path, seed) / "tasks"
        found: list[Snapshot] = []
        while (path / str(len(found) + 1) / storage.MANIFEST).exists():
            task = len(found) + 1
            found.append(Snapshot.from_state(task, storage.read(path / str(task), "task")))
        return found

    def trace(self, seed: int) -> Trace | None:
        """The detector's statistics, if the run had a detector."""
        path = seed_folder(self.path, seed) / "trace"
        if not (path / storage.MANIFEST).exists():
            return None
        state = storage.read(path, "trace")
        try:
            columns = dict(zip(state["names"], tensor(state, "values", -1, -1).unbind(1), strict=True))
            found = [int(begins) for begins, _ in entry(state, "found", list)]
            return Trace(columns, [int(end) for end in entry(state, "true", list)], found)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); restore it from a copy.") from error

    def cells(self) -> Iterator[tuple[int, int, int, float]]:
        """The accuracy matrices as rows: seed, after how many tasks, task, accuracy."""
        for seed in self.recorded:
            for i, row in enumerate(seed.accuracy, start=1):
                yield from ((seed.seed, i, j, value) for j, value in enumerate(row or (), start=1))


_KINDS: dict[str, TypeAdapter] = {
    "benchmark": TypeAdapter(str),
    "method": TypeAdapter(str),
    "settings": TypeAdapter(dict[str, Any]),
    "environment": TypeAdapter(dict[str, Any]),
}


def refused(path: Path, error: Exception, way_out: str) -> CheckpointError:
    """The error for a file that is not what fromp writes."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
    else:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return CheckpointError(f"{path} is damaged, or not of a form that this version reads ({reason}); {way_out}.")
