"""The runs that a table or figure needs, what is there of them, and how long the rest will take."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.engine.jobs import Job
from fromp.lab.methods import METHODS
from fromp.lab.results import store
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import Experiment, seed_folder

# What is learned instead when it has to be quick.
STAND_INS = {
    "split-mnist": "split-digits", "split-mnist-small": "split-digits", "permuted-mnist": "permuted-digits",
    "split-cifar": "split-digits", "split-cifar-11": "split-digits",
}  # fmt: skip
SHORTER, LARGER = 5, 3  # times fewer epochs, times the learning rate
FEWER_SEEDS = 2


@dataclass(frozen=True)
class Required:
    """Seeds 0 to `seeds` - 1 of a method on a benchmark, and where they are kept."""

    benchmark: str
    method: str
    seeds: int = 5
    changes: Mapping[str, Any] = field(default_factory=dict)  # changed settings of the method's preset
    name: str = "{method}"  # the folder's name, filled with the method and the changes
    pictures: int = 0  # the number of seeds, the middle ones by accuracy, whose snapshots are needed
    pictured: int | None = None  # the task whose snapshot must be there; the last if none is given

    @property
    def place(self) -> Path:
        """The folder, below that of all results."""
        return Path(self.benchmark, self.name.format(method=self.method, **self.changes))

    @property
    def plan(self) -> Plan:
        """What every seed runs."""
        return Plan.of(self.benchmark, self.method, **self.changes)

    def quick(self) -> "Required":
        """The same on small data, with fewer and larger steps and few seeds; sizes keep their share of the preset's."""
        benchmark = STAND_INS.get(self.benchmark, self.benchmark)
        large, small = Plan.of(self.benchmark, self.method), Plan.of(benchmark, self.method)
        changes = dict(self.changes)
        if "memory" in changes:
            changes["memory"] = max(small.memory // 5, small.memory * changes["memory"] // large.memory)
        most = 2 * BENCHMARKS[benchmark].training.epochs  # VCL has several times as many, which takes minutes
        training = small.training
        changes |= {"epochs": max(2, min(training.epochs, most) // SHORTER), "lr": LARGER * training.lr}
        if coreset_epochs := small.flat().get("coreset_epochs"):
            changes["coreset_epochs"] = max(1, min(coreset_epochs, most) // SHORTER)
        seeds = max(min(self.seeds // 2, FEWER_SEEDS), self.pictures, 1)
        return replace(self, benchmark=benchmark, changes=changes, seeds=seeds)


def total(states: Iterable["State"]) -> float | None:
    """The time for what is missing of all of them; None if that of one is unknown."""
    seconds = [state.seconds for state in states]
    return None if None in seconds else sum(each for each in seconds if each is not None)


@dataclass(frozen=True)
class State:
    """How far some runs are."""

    seeds: int  # number of seeds wanted
    done: int
    again: int  # to be learned once more, because their snapshots are not here
    different: tuple[str, ...]  # settings of what lies in the folder that are not those wanted
    seconds: float | None  # what is missing takes them; None if that cannot be said

    @property
    def complete(self) -> bool:
        """Whether nothing has to be learned."""
        return self.done >= self.seeds and not self.again


class ResultsFolder:
    """What lies under a folder of results."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def experiment(self, runs: Required) -> Experiment | None:
        """The runs as far as they have finished; None if there are none with these settings."""
        found = self._read(runs.place)
        return found if found and found.finished and not runs.plan.differences(found.plan) else None

    def different(self, runs: Required) -> tuple[str, ...]:
        """The settings in which what lies in the folder is not what is wanted."""
        found = self._read(runs.place)
        return tuple(runs.plan.differences(found.plan)) if found else ()

    def left(self, runs: Required) -> list[int]:
        """The seeds to learn; once all are done, those to learn again because pictures need their snapshots."""
        found = self.experiment(runs)
        done = {seed.seed for seed in found.finished} if found else set()
        missing = [seed for seed in range(runs.seeds) if seed not in done]
        return missing or self.unpictured(runs)

    def unpictured(self, runs: Required) -> list[int]:
        """The seeds that pictures show, the middle ones of those done, whose snapshots are missing."""
        if (found := self.experiment(runs)) is None:
            return []
        return [seed for seed in found.middle_seeds(runs.pictures) if not _has_snapshot(found, seed, runs.pictured)]

    def jobs(self, needed: Sequence[Required]) -> list[Job]:
        """What is left of several runs, those of one place once."""
        every = {(runs.place, seed): runs for runs in needed for seed in self.left(runs)}
        return [Job(runs.plan, seed, self.root / place) for (place, seed), runs in every.items()]

    def state(self, runs: Required) -> State:
        """How far the runs are, and how long what is missing will take."""
        found, left, each = self.experiment(runs), self.left(runs), self.seconds(runs)
        done = len({seed.seed for seed in found.finished} & set(range(runs.seeds))) if found else 0
        again = len(left) if done == runs.seeds else 0
        seconds = 0.0 if not left else None if each is None else len(left) * each
        return State(runs.seeds, done, again, self.different(runs), seconds)

    def seconds(self, runs: Required) -> float | None:
        """Seconds per seed: the median of those finished there, else of the method's preset, of another, or None."""
        for place in (runs.place, *(Path(runs.benchmark, name) for name in (runs.method, *METHODS))):
            if (found := self._read(place)) and found.finished:
                return statistics.median(seed.seconds for seed in found.finished)
        return None

    def _read(self, place: Path) -> Experiment | None:
        return store.read(self.root / place) if (self.root / place / store.RESULTS).exists() else None


def _has_snapshot(experiment: Experiment, seed: int, task: int | None) -> bool:
    task = task or max(len(seed.accuracy) for seed in experiment.finished)
    return (seed_folder(experiment.path, seed) / "tasks" / str(task) / storage.MANIFEST).exists()
