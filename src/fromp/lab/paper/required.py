"""The runs that a table or figure needs, what is there of them, and how long the rest will take."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.lab.benchmarks.catalogue import BENCHMARKS, Settings, as_json, settings_for
from fromp.lab.engine.jobs import Job
from fromp.lab.results import store
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import Experiment, seed_folder
from fromp.lab.results.store import find

# Seconds of a seed of FROMP on one core, roughly: for the time before one has been measured.
ROUGHLY = {
    "toy": 35.0, "toy-less-data": 35.0, "toy-more-data": 35.0, "toy-sixth-task": 45.0, "toy-larger-deviation": 35.0,
    "toy-overlapping": 35.0, "split-digits": 16.0, "permuted-digits": 25.0, "split-mnist": 45.0,
    "split-mnist-small": 25.0, "permuted-mnist": 420.0, "split-cifar": 3 * 3600.0, "split-cifar-11": 6 * 3600.0,
}  # fmt: skip

# Methods that take about the same time, the first of which is most often there.
ALIKE = (
    ("fromp", "frorp", "fromp-l2", "frorp-l2"), ("vcl", "vcl-coreset", "vcl-memorable"),
    ("frcl-random", "frcl-trace"), ("finetune", "separate"), ("ewc", "dlp", "si"),
)  # fmt: skip
LOOK_AT_MEMORY = ("fromp", "frorp", "fromp-l2", "frorp-l2", "functional-l2")  # at all of it, in every step

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
    method: str = "fromp"
    seeds: int = 5
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the benchmark's settings for this method
    name: str = "{method}"  # of the folder, filled with the method and the changes
    pictures: int = 0  # of how many seeds, the middle ones by accuracy, the snapshots are needed

    @property
    def place(self) -> Path:
        """The folder, below that of all results."""
        return Path(self.benchmark, self.name.format(method=self.method, **self.changes))

    @property
    def settings(self) -> Settings:
        """Those of every seed."""
        return settings_for(self.benchmark, dict(self.changes), self.method)

    @property
    def plan(self) -> Plan:
        """What every seed runs."""
        return Plan(self.benchmark, self.method, self.settings)

    def quick(self) -> "Required":
        """The same on small data, with fewer and larger steps and few seeds; sizes keep their share of the preset's."""
        benchmark = STAND_INS.get(self.benchmark, self.benchmark)
        large, small = settings_for(self.benchmark, {}, self.method), settings_for(benchmark, {}, self.method)
        changes = dict(self.changes)
        if "memory" in changes:
            changes["memory"] = max(small.memory // 5, small.memory * changes["memory"] // large.memory)
        if "joint_from" in changes:
            changes["joint_from"] = small.tasks
        most = 2 * BENCHMARKS[benchmark].settings.epochs  # VCL has several times as many, which takes minutes
        changes |= {"epochs": max(2, min(small.epochs, most) // SHORTER), "lr": LARGER * small.lr}
        if small.coreset_epochs:
            changes["coreset_epochs"] = max(1, min(small.coreset_epochs, most) // SHORTER)
        seeds = max(min(self.seeds // 2, FEWER_SEEDS), self.pictures, 1)
        return replace(self, benchmark=benchmark, changes=changes, seeds=seeds)


@dataclass(frozen=True)
class State:
    """How far some runs are."""

    seeds: int  # wanted
    done: int
    again: int  # to be learned once more, because their snapshots are not here
    different: tuple[str, ...]  # settings of what lies in the folder that are not those wanted
    seconds: float  # for what is missing

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
        path = self.root / runs.place
        if not (path / "results.json").exists() or self.different(runs):
            return None
        found = find(path)[0]
        return found if found.finished else None

    def different(self, runs: Required) -> tuple[str, ...]:
        """The settings in which what lies in the folder is not what is wanted."""
        path = self.root / runs.place
        return tuple(runs.plan.differences(store.read(path).plan)) if (path / "results.json").exists() else ()

    def left(self, runs: Required) -> list[int]:
        """The seeds to learn; once all are done, those to learn again because pictures need their snapshots."""
        found = self.experiment(runs)
        done = {seed.seed for seed in found.finished} if found else set()
        missing = [seed for seed in range(runs.seeds) if seed not in done]
        return missing or self.unpictured(runs)

    def unpictured(self, runs: Required) -> list[int]:
        """Of the seeds that pictures show, the middle ones of those done, the ones whose snapshots are not here."""
        if (found := self.experiment(runs)) is None:
            return []
        return [seed for seed in found.middle_seeds(runs.pictures) if not _has_snapshots(found, seed)]

    def jobs(self, needed: Sequence[Required]) -> list[Job]:
        """What is left of several runs, those of one place once."""
        every = {(runs.place, seed): runs for runs in needed for seed in self.left(runs)}
        return [Job(runs.plan, seed, self.root / place) for (place, seed), runs in every.items()]

    def state(self, runs: Required) -> State:
        """How far the runs are, and how long what is missing will take."""
        found, left = self.experiment(runs), self.left(runs)
        done = len({seed.seed for seed in found.finished} & set(range(runs.seeds))) if found else 0
        again = len(left) if done == runs.seeds else 0
        return State(runs.seeds, done, again, self.different(runs), len(left) * self.seconds(runs))

    def seconds(self, runs: Required) -> float:
        """Of a seed: the median of those measured of this method or one alike, else what FROMP's lets expect.

        That is for as many epochs, at the method's cost of a step, and for as many points of memory a step.
        """
        settings, preset = runs.settings, BENCHMARKS[runs.benchmark].settings
        alike = next((group for group in ALIKE if runs.method in group), ())
        for method in (runs.method, *alike):
            if measured := self._measured.get(_kind(runs.benchmark, method, as_json(settings))):
                return statistics.median(measured)
        of_fromp = self._measured.get(_kind(runs.benchmark, "fromp", as_json(preset)))
        base = statistics.median(of_fromp) if of_fromp else ROUGHLY.get(runs.benchmark, 60.0)
        every_task_again = runs.method == "joint" and settings.joint_from == 1
        times = (settings.tasks + 1) / 2 if every_task_again else 1.0
        cost, samples = (
            self._step_costs.get(runs.method, 1.0),
            _samples(settings, runs.method) / _samples(preset, "fromp"),
        )
        cost = cost * samples if runs.method in LOOK_AT_MEMORY else max(cost, samples)
        steps = settings.epochs / preset.epochs * preset.batch_size / settings.batch_size
        return base * steps * times * cost

    @cached_property
    def _step_costs(self) -> dict[str, float]:
        """Of each method against FROMP, as far as `fromp bench` has measured them."""
        path = self.root / "bench" / "bench.json"
        if not path.exists():
            return {}
        seconds = json.loads(path.read_text())["methods"]["seconds"]
        return {method: value / seconds["fromp"] for method, value in seconds.items()}

    @cached_property
    def _measured(self) -> dict[tuple[Any, ...], list[float]]:
        """Seconds of every finished run under the folder."""
        seconds: dict[tuple[Any, ...], list[float]] = {}
        for path in sorted(self.root.rglob("results.json")):
            for one in find(path.parent):
                kind = _kind(one.benchmark, one.method, one.settings)
                seconds.setdefault(kind, []).extend(seed.seconds for seed in one.finished)
        return {kind: values for kind, values in seconds.items() if values}


def _kind(benchmark: str, method: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides how long a seed takes, more or less."""
    names = ("tasks", "epochs", "batch_size", "joint_from", "memory", "tasks_per_step")
    return benchmark, method, *(settings.get(name, 1) for name in names)


def _samples(settings: Settings, method: str) -> float:
    """That a step looks at, those of memory included, on the average over tasks."""
    remembered = settings.memory * (settings.tasks - 1) / 2 if method in LOOK_AT_MEMORY else 0.0
    return settings.batch_size + remembered


def _has_snapshots(experiment: Experiment, seed: int) -> bool:
    last = max(len(seed.accuracy) for seed in experiment.finished)
    return (seed_folder(experiment.path, seed) / "tasks" / str(last) / storage.MANIFEST).exists()
