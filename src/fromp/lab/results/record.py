"""results.json as the report sees it, and the snapshots beside it."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.foundation.state import State
from fromp.lab.benchmarks.catalogue import BENCHMARKS, Settings, settings_for
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.methods.registry import METHODS
from fromp.lab.results import metrics, store
from fromp.lab.results.metrics import Matrix
from fromp.lab.results.plan import Plan


@dataclass(frozen=True)
class Snapshot:
    """The weights after a task and what was remembered of it."""

    task: int  # how many were learned
    weights: dict[str, Tensor]
    memory: State | None


@dataclass(frozen=True)
class Experiment:
    """One results.json: a method on a benchmark, with some seeds."""

    path: Path
    name: str  # what tells it from the others on the page
    benchmark: str
    method: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    runs: list[dict[str, Any]]  # those that have learned a task
    summary: dict[str, dict[str, float]]

    @property
    def finished(self) -> list[dict[str, Any]]:
        """The runs that have learned every task."""
        return store.finished(self.runs)

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The finished runs, or, while there are none, those that are furthest."""
        furthest = max((len(run["accuracy"]) for run in self.runs), default=0)
        return self.finished or [run for run in self.runs if len(run["accuracy"]) == furthest]

    @property
    def matrices(self) -> list[Matrix]:
        """The accuracy matrices of the runs that are shown."""
        return [run["accuracy"] for run in self.shown]

    @property
    def middle_seed(self) -> int:
        """The seed whose average accuracy is the median, for pictures of a single run."""
        return self.middle_seeds(1)[0]

    def middle_seeds(self, count: int) -> list[int]:
        """That many seeds about the median, the least accurate first; all of them if there are fewer."""
        ordered = sorted(self.shown, key=lambda run: (run["average_accuracy"], run["seed"]))
        first = max(0, (len(ordered) - count) // 2)
        return [int(run["seed"]) for run in ordered[first : first + count]]

    def make(self, seed: int) -> tuple[Stream, nn.Module]:
        """The stream and the network of one seed, untrained."""
        return BENCHMARKS[self.benchmark].make(self._settings(), seed)

    def changed(self) -> list[str]:
        """The settings that are not the benchmark's own for this method."""
        if self.benchmark not in BENCHMARKS:
            return []
        preset, settings = settings_for(self.benchmark, {}, self.method), self._settings()
        matters = Plan(self.benchmark, self.method, settings).matters() if self.method in METHODS else vars(settings)
        return [k for k, v in vars(settings).items() if k in matters and getattr(preset, k) != v]

    def _settings(self) -> Settings:
        """Those of the run, as far as they are still known; one that did not exist then is the benchmark's own."""
        known = {field.name for field in fields(Settings)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in self.settings.items() if k in known
        }
        return replace(settings_for(self.benchmark, {}, self.method), **values)

    def snapshots(self, seed: int) -> list[Snapshot]:
        """What one seed looked like after each task; none if only results.json is here."""
        path = store.seed_folder(self.path, seed) / "tasks"
        found: list[Snapshot] = []
        while (path / str(len(found) + 1) / storage.MANIFEST).exists():
            task = len(found) + 1
            state = storage.read(path / str(task), "task")
            found.append(Snapshot(task, state["weights"], state["memory"]))
        return found

    def trace(self, seed: int) -> "Trace | None":
        """The detector's statistics, if the run had a detector."""
        path = store.seed_folder(self.path, seed) / "trace"
        if not (path / storage.MANIFEST).exists():
            return None
        state = storage.read(path, "trace")
        columns = dict(zip(state["names"], state["values"].unbind(1), strict=True))
        return Trace(columns, state["true"], [begins for begins, _ in state["found"]])


@dataclass(frozen=True)
class Trace:
    """What a detector saw at each minibatch of a run that was not told where tasks begin."""

    values: dict[str, Tensor]  # by the statistic's name
    true: list[int]
    found: list[int]


def find(out: Path) -> list[Experiment]:
    """The experiment in a folder, or those in its subfolders, the most accurate first."""
    if (out / "results.json").exists():
        return [_read(out)]
    found = [_read(path.parent) for path in sorted(out.glob("*/results.json"))]
    if not found:
        raise CheckpointError(
            f"{out} holds no results.json, nor does a folder in it; name one that `fromp run` or `fromp compare` wrote."
        )
    return sorted(_told_apart(found), key=lambda one: -one.summary.get("average_accuracy", {}).get("mean", -1.0))


def forward_transfer(found: Experiment, separate: Experiment | None) -> dict[str, float] | None:
    """FWT over the seeds that were also learned by a network for each task alone."""
    values = store.forward_transfers(found.runs, separate.runs) if separate else {}
    return metrics.summarise(list(values.values())) if values else None


def _read(path: Path) -> Experiment:
    read = store.read(path)
    try:
        runs = [run for run in read["runs"] if run["accuracy"]]
        return Experiment(
            path, read["method"], read["benchmark"], read["method"], read["settings"], read["environment"], runs,
            read["summary"],
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path / 'results.json'} is not what `fromp run` writes ({error}); run the same command again."
        ) from error


def _told_apart(experiments: list[Experiment]) -> list[Experiment]:
    """Named by method if that tells them apart, else by folder."""
    if len({one.method for one in experiments}) == len(experiments):
        return experiments
    return [Experiment(**{**vars(one), "name": one.path.name}) for one in experiments]
