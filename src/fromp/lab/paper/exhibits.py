"""Every table and figure of the paper and its appendix. Each says what varies; the runs it needs follow from that."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

from matplotlib.figure import Figure

from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.paper import drawings, tables
from fromp.lab.paper.required import Required, ResultsFolder
from fromp.lab.results.format import Table
from fromp.lab.results.record import Metric

Seeds: TypeAlias = Mapping[str, int]  # how many of each method


@dataclass(frozen=True)
class Exhibit(ABC):
    """A table or a figure."""

    name: str
    place: str  # where it stands in the paper
    title: str

    @property
    @abstractmethod
    def needed(self) -> Sequence[Required]:
        """The runs it shows."""

    @abstractmethod
    def render(self, kept: ResultsFolder, runs: Sequence[Required]) -> Table | Figure:
        """The exhibit from what is kept of its runs; a figure that lacks some is an error that says which."""

    def runs(self, quick: bool = False) -> list[Required]:
        """What it needs; in a quick version several may be equal."""
        by_place = {runs.place: runs for runs in (one.quick() if quick else one for one in self.needed)}
        return list(by_place.values())


@final
@dataclass(frozen=True)
class Pivot(Exhibit):
    """A table of methods and benchmarks, one of them down and the other, or several metrics, across."""

    methods: Seeds
    benchmarks: Sequence[str]
    down: tables.Side = "method"
    show: Sequence[Metric] = ("average_accuracy",)

    @property
    def needed(self) -> Sequence[Required]:
        methods = {**self.methods, **({"separate": 5} if "forward_transfer" in self.show else {})}
        return [Required(name, method, seeds) for name in self.benchmarks for method, seeds in methods.items()]

    def render(self, kept: ResultsFolder, runs: Sequence[Required]) -> Table:
        shown = [required for required in runs if required.method in self.methods]
        separate = [required for required in runs if required.method == "separate"]
        return tables.pivot(kept, shown, self.down, self.show, separate)


@final
@dataclass(frozen=True)
class Curve(Exhibit):
    """The average accuracy against a setting, one line per method: its preset, and these values beside it."""

    benchmark: str
    methods: Sequence[str]
    setting: str
    values: Sequence[float]
    label: str  # the axis's label

    @property
    def needed(self) -> Sequence[Required]:
        folder = f"{self.setting}/{{method}}-{{{self.setting}:g}}"
        others = [
            Required(self.benchmark, method, changes={self.setting: value}, name=folder)
            for method in self.methods
            for value in self.values
        ]
        return [*(Required(self.benchmark, method) for method in self.methods), *others]

    def render(self, kept: ResultsFolder, runs: Sequence[Required]) -> Figure:
        return drawings.against(kept, runs, self.setting, self.label)


@final
@dataclass(frozen=True)
class Panels(Exhibit):
    """The last decision boundary in the plane, one panel per method."""

    benchmark: str
    methods: Seeds = field(default_factory=lambda: {"fromp": 10, "joint": 3})

    @property
    def needed(self) -> Sequence[Required]:
        return [Required(self.benchmark, method, seeds, pictures=1) for method, seeds in self.methods.items()]

    def render(self, kept: ResultsFolder, runs: Sequence[Required]) -> Figure:
        return drawings.toy_methods(kept, runs)


@final
@dataclass(frozen=True)
class Drawing(Exhibit):
    """A figure of its own kind."""

    draw: Callable[[ResultsFolder, Sequence[Required]], Figure]
    shown: Sequence[Required]

    @property
    def needed(self) -> Sequence[Required]:
        return self.shown

    def render(self, kept: ResultsFolder, runs: Sequence[Required]) -> Figure:
        return self.draw(kept, runs)


def _five(*methods: str) -> Seeds:
    return dict.fromkeys(methods, 5)


def _variation(benchmark: str, place: str) -> Panels:
    title = f"{BENCHMARKS[benchmark].title}: FROMP and batch Adam"
    return Panels(f"figure-{benchmark}", place, title, benchmark)


MNIST = _five(
    "dlp", "ewc", "si", "vcl", "vcl-coreset", "frcl-random", "frcl-trace", "frorp-l2", "fromp-l2", "frorp", "fromp"
)
CIFAR = _five("fromp", "fromp-l2", "ewc", "si", "vcl-coreset", "joint", "separate")
TOY = {"fromp": 10, "frorp": 10, "vcl-coreset": 5, "vcl-memorable": 5, "vcl": 5, "joint": 5}
VARIATIONS = [name for name in BENCHMARKS if name.startswith("toy")]
WITH_MEMORY = ("fromp", "frorp", "fromp-l2")
SIZES = (10, 20, 40, 100)  # points per task, below the preset of 200; tau grows by the same factor
POINTS = "points per task"
FREE = {"boundaries": "welch", "schedule": "constant"}
ONE_TOY = [Required("toy", "fromp", 10, pictures=1)]

_ALL: Sequence[Exhibit] = (
    Drawing(
        "figure-memorable-mnist", "Fig. 1b", "most and least memorable digits", drawings.memorable,
        [Required("permuted-mnist", "fromp", pictures=1, pictured=1)],
    ),
    Pivot("table-mnist", "Fig. 2a", "Permuted and Split MNIST", MNIST, ("permuted-mnist", "split-mnist")),
    Drawing(
        "figure-memorable-cifar", "Fig. 2b", "most and least memorable photographs", drawings.memorable,
        [Required("split-cifar", "fromp", pictures=1, pictured=1)],
    ),
    Drawing(
        "figure-cifar-bars", "Fig. 3a", "Split CIFAR, task by task", drawings.task_bars,
        [Required("split-cifar", method) for method in CIFAR],
    ),
    Curve(
        "figure-memory-cifar", "Fig. 3b", "Split CIFAR with fewer points", "split-cifar", WITH_MEMORY, "memory", SIZES,
        POINTS,
    ),
    Curve(
        "figure-memory-mnist", "Fig. 3c", "Permuted MNIST with fewer points", "permuted-mnist", WITH_MEMORY, "memory",
        SIZES, POINTS,
    ),
    Pivot(
        "table-transfer", "Table 1", "forward and backward transfer", _five("fromp"),
        ("split-mnist", "permuted-mnist", "split-cifar"), "benchmark", ("forward_transfer", "backward_transfer"),
    ),
    Pivot(
        "table-cifar", "Table 2 and its section", "accuracy and transfer on Split CIFAR", CIFAR, ("split-cifar",),
        "method", ("average_accuracy", "forward_transfer", "backward_transfer"),
    ),
    Pivot(
        "table-mnist-small", "App. F.2", "Split MNIST with a smaller network", _five("fromp"), ("split-mnist-small",)
    ),
    Curve(
        "figure-tau", "App. F.2", "sensitivity to tau on Split MNIST", "split-mnist", ("fromp", "fromp-l2"), "tau",
        (1.0, 3.0, 30.0, 100.0), "tau / N",
    ),
    Curve(
        "figure-memory-cifar-11", "Fig. 4", "Split CIFAR, 11 tasks, with fewer points", "split-cifar-11", WITH_MEMORY,
        "memory", SIZES, POINTS,
    ),
    Drawing("figure-toy", "Fig. 5", "the toy after tasks 1, 2 and 5", drawings.toy_tasks, ONE_TOY),
    Pivot("table-toy", "Table 3", "comparison on the toy", TOY, ("toy",)),
    Drawing(
        "figure-toy-vcl", "Fig. 6", "three runs of VCL-MP on the toy", drawings.toy_seeds,
        [Required("toy", "vcl-memorable", 5, pictures=3)],
    ),
    Pivot(
        "table-toy-variations", "Table 4", "variations of the toy", {"fromp": 10, "joint": 3}, VARIATIONS, "benchmark"
    ),
    _variation("toy-less-data", "Fig. 7"),
    _variation("toy-more-data", "Fig. 8"),
    _variation("toy-sixth-task", "Fig. 9"),
    _variation("toy-larger-deviation", "Fig. 10"),
    _variation("toy-overlapping", "Fig. 11"),
    Drawing("figure-entropy", "Fig. 12", "entropy of the weights by layer and task", drawings.entropies, ONE_TOY),
    Drawing(
        "figure-task-boundaries", "Fig. 13", "statistics that tell where a task begins", drawings.task_boundaries,
        [Required("permuted-mnist", "fromp", 1, FREE, "task-free/welch", pictures=1)],
    ),
)  # fmt: skip
EXHIBITS: dict[str, Exhibit] = {exhibit.name: exhibit for exhibit in _ALL}


def root_of(quick: bool) -> Path:
    """Where results are kept unless another folder is named."""
    return Path("runs/quick" if quick else "results")


def call(name: str, root: Path, quick: bool) -> str:
    """The command that learns and renders a table or figure in that folder."""
    elsewhere = "" if root == root_of(quick) else f" --out {shlex.quote(str(root))}"
    return f"fromp reproduce {name}{' --quick' if quick else ''}{elsewhere}"
