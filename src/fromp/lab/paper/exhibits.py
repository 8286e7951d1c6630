"""Every table and figure of the paper and its appendix: what it needs, where it is kept, how it is rendered."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure

from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.paper import drawings, tables
from fromp.lab.paper.required import Required, ResultsFolder
from fromp.lab.results.format import Table

Render: TypeAlias = Callable[[ResultsFolder, Sequence[Required]], Table | Figure]


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure."""

    title: str
    place: str  # in the paper
    render: Render
    needed: tuple[Required, ...]

    def runs(self, quick: bool = False) -> list[Required]:
        """What it needs; in a quick version several may come to the same."""
        by_place = {runs.place: runs for runs in (one.quick() if quick else one for one in self.needed)}
        return list(by_place.values())


MNIST = (
    "dlp", "ewc", "si", "vcl", "vcl-coreset", "frcl-random", "frcl-trace", "frorp-l2", "fromp-l2", "frorp", "fromp"
)  # fmt: skip
CIFAR = ("fromp", "fromp-l2", "ewc", "si", "vcl-coreset")
SIZES = (10, 20, 40, 100)  # of memory, below the preset of 200
TAUS = (1.0, 3.0, 30.0, 100.0)  # about the preset of 10
JOINT_CIFAR = Required("split-cifar", "joint", changes={"joint_from": 6})


def _curve(benchmark: str) -> tuple[Required, ...]:
    """Methods with fewer and fewer points; tau grows by the same factor."""
    methods = ("fromp", "frorp", "fromp-l2")
    fewer = [Required(benchmark, m, 5, {"memory": size}, "memory/{method}-{memory}") for m in methods for size in SIZES]
    return (*(Required(benchmark, method) for method in methods), *fewer)


def _taus() -> tuple[Required, ...]:
    methods = ("fromp", "fromp-l2")
    others = [Required("split-mnist", m, 5, {"tau": tau}, "tau/{method}-{tau:g}") for m in methods for tau in TAUS]
    return (*(Required("split-mnist", method) for method in methods), *others)


def _variation(name: str, place: str) -> Exhibit:
    needed = (Required(name, "fromp", 10, pictures=1), Required(name, "joint", 3, pictures=1))
    return Exhibit(f"{BENCHMARKS[name].title}: FROMP and batch Adam", place, drawings.toy_methods, needed)


VARIATIONS = [name for name in BENCHMARKS if name.startswith("toy")]

EXHIBITS: dict[str, Exhibit] = {
    "figure-memorable-mnist": Exhibit(
        "most and least memorable digits", "Fig. 1b", drawings.memorable, (Required("permuted-mnist", pictures=1),)
    ),
    "table-mnist": Exhibit(
        "Permuted and Split MNIST", "Fig. 2a", tables.by_method,
        tuple(Required(benchmark, method) for benchmark in ("permuted-mnist", "split-mnist") for method in MNIST),
    ),
    "figure-memorable-cifar": Exhibit(
        "most and least memorable photographs", "Fig. 2b", drawings.memorable, (Required("split-cifar", pictures=1),)
    ),
    "figure-cifar-bars": Exhibit(
        "Split CIFAR, task by task", "Fig. 3a", drawings.task_bars,
        (*(Required("split-cifar", method) for method in CIFAR), JOINT_CIFAR, Required("split-cifar", "separate")),
    ),
    "figure-memory-cifar": Exhibit(
        "Split CIFAR with fewer points", "Fig. 3b", drawings.against("memory", "points a task"), _curve("split-cifar")
    ),
    "figure-memory-mnist": Exhibit(
        "Permuted MNIST with fewer points", "Fig. 3c", drawings.against("memory", "points a task"),
        _curve("permuted-mnist"),
    ),
    "table-transfer": Exhibit(
        "forward and backward transfer", "Table 1", tables.transfer,
        tuple(
            Required(benchmark, method)
            for benchmark in ("split-mnist", "permuted-mnist", "split-cifar")
            for method in ("fromp", "separate")
        ),
    ),
    "table-cifar": Exhibit(
        "accuracy and transfer on Split CIFAR", "Table 2 and its section", tables.all_metrics,
        (*(Required("split-cifar", method) for method in CIFAR), JOINT_CIFAR, Required("split-cifar", "separate")),
    ),
    "table-mnist-small": Exhibit(
        "Split MNIST with a smaller network", "App. F.2", tables.by_method, (Required("split-mnist-small"),)
    ),
    "figure-tau": Exhibit(
        "sensitivity to tau on Split MNIST", "App. F.2", drawings.against("tau", "tau / N"), _taus()
    ),
    "figure-memory-cifar-11": Exhibit(
        "Split CIFAR, 11 tasks, with fewer points", "Fig. 4", drawings.against("memory", "points a task"),
        _curve("split-cifar-11"),
    ),
    "figure-toy": Exhibit(
        "the toy after tasks 1, 2 and 5", "Fig. 5", drawings.toy_tasks, (Required("toy", "fromp", 10, pictures=1),)
    ),
    "table-toy": Exhibit(
        "comparison on the toy", "Table 3", tables.by_method,
        tuple(
            Required("toy", method, seeds)
            for method, seeds in {
                "fromp": 10, "frorp": 10, "vcl-coreset": 5, "vcl-memorable": 5, "vcl": 5, "joint": 5
            }.items()
        ),
    ),
    "figure-toy-vcl": Exhibit(
        "three runs of VCL-MP on the toy", "Fig. 6", drawings.toy_seeds,
        (Required("toy", "vcl-memorable", 5, pictures=3),),
    ),
    "table-toy-variations": Exhibit(
        "variations of the toy", "Table 4", tables.by_benchmark,
        tuple(Required(name, *of) for name in VARIATIONS for of in (("fromp", 10), ("joint", 3))),
    ),
    "figure-toy-less-data": _variation("toy-less-data", "Fig. 7"),
    "figure-toy-more-data": _variation("toy-more-data", "Fig. 8"),
    "figure-toy-sixth-task": _variation("toy-sixth-task", "Fig. 9"),
    "figure-toy-larger-deviation": _variation("toy-larger-deviation", "Fig. 10"),
    "figure-toy-overlapping": _variation("toy-overlapping", "Fig. 11"),
    "figure-entropy": Exhibit(
        "entropy of the weights by layer and task", "Fig. 12", drawings.entropies,
        (Required("toy", "fromp", 10, pictures=1),),
    ),
    "figure-task-boundaries": Exhibit(
        "statistics that tell where a task begins", "Fig. 13", drawings.task_boundaries,
        (
            Required(
                "permuted-mnist", "fromp", 1, {"boundaries": "welch", "schedule": "constant"}, "task-free/welch",
                pictures=1,
            ),
        ),
    ),
}  # fmt: skip


def root_of(quick: bool) -> Path:
    """Where results are kept unless another folder is named."""
    return Path("runs/quick" if quick else "results")


def call(name: str, root: Path, quick: bool) -> str:
    """The command that learns and renders a table or figure in that folder."""
    elsewhere = "" if root == root_of(quick) else f" --out {shlex.quote(str(root))}"
    return f"fromp reproduce {name}{' --quick' if quick else ''}{elsewhere}"


__all__ = ["EXHIBITS", "Exhibit", "Required", "ResultsFolder", "Table", "call", "root_of"]
