"""The command line: every command is a function, its options are the function's arguments."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt, UInt32

from fromp.foundation.errors import FrompError
from fromp.lab.engine.console import download_bar
from fromp.learn.cli import app, main, parse, print_json
from fromp.learn.console import PlainConsole, printable

if TYPE_CHECKING:  # a command imports what it needs: `fromp --help` does not wait for torch
    from fromp.lab.engine.jobs import Execution
    from fromp.lab.results.plan import Plan

__all__ = ["app", "main", "parse"]

app.group_commands = Group("Benchmarks and methods: the laboratory", sort_key=2)


def _names_in(module: str, registry: str) -> Callable[[Any], dict[str, str]]:
    """Completes the names of a registry in the laboratory, each with its title."""

    def complete(context: Any) -> dict[str, str]:
        known = getattr(import_module(f"fromp.lab.{module}"), registry)
        return {name: getattr(entry, "title", "") for name, entry in known.items()}

    return complete


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


BenchmarkName = Annotated[
    str, Parameter(help="A benchmark of `fromp list`.", completer=_names_in("benchmarks.catalogue", "BENCHMARKS"))
]
MethodName = Annotated[
    str, Parameter(metavar="NAME", help="A method of `fromp list`.", completer=_names_in("methods", "METHODS"))
]
ExhibitName = Annotated[str, Parameter(name="TABLE-OR-FIGURE", completer=_names_in("paper.exhibits", "EXHIBITS"))]
DatasetName = Annotated[str, Parameter(completer=_names_in("data", "DATASETS"))]
Names = Annotated[str, Parameter(metavar="A,B,C")]
Plugins = Annotated[tuple[Path, ...], Parameter(metavar="FILE.py")]
Folder = Annotated[Path, Parameter(metavar="DIR")]
Count = Annotated[PositiveInt, Parameter(metavar="N")]
Jobs = Annotated[PositiveInt, Parameter(metavar="J")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Learning:
    """The options of every command that learns."""

    seeds: Count | None = None
    """Learn seeds 0 to N-1."""
    seed: Annotated[UInt32, Parameter(metavar="S")] | None = None
    """Learn one seed; without it and --seeds, seed 0."""
    memory: Annotated[int, Parameter(metavar="M")] | None = None
    """Points kept per task; tau grows as they get fewer."""
    tasks: Annotated[int, Parameter(metavar="T")] | None = None
    """Learn the first T tasks only."""
    epochs: Annotated[int, Parameter(metavar="E")] | None = None
    """Epochs per task."""
    set: Annotated[list[str], Parameter(metavar="KEY=VALUE")] = field(default_factory=list)
    """Change a setting (docs/lab/commands.md lists them); repeatable."""
    plugin: Plugins = ()
    """Load methods or benchmarks of your own from a file (docs/lab/adding.md); repeatable."""
    jobs: Jobs = 1
    """Seeds learned at once, each in a process."""
    first_task: Folder | None = None
    """Share the first task with runs that name the same folder."""
    checkpoint_seconds: Annotated[NonNegativeFloat, Parameter(metavar="S")] = 60.0
    """Time between checkpoints."""
    tensorboard: bool = False
    """Write scalars for TensorBoard into the run's folder (extra `tensorboard`)."""
    ray: bool = False
    """Spread the seeds over a Ray cluster (extra `ray`)."""
    quiet: bool = False
    """Print no progress."""

    def chosen_seeds(self) -> list[int]:
        if self.seeds and self.seed is not None:
            raise FrompError(f"--seeds {self.seeds} and --seed {self.seed} contradict each other; give one of them.")
        return list(range(self.seeds)) if self.seeds else [self.seed or 0]

    def execution(self, first_task: Path | None = None, quiet: bool = False) -> "Execution":
        from fromp.lab.engine.jobs import Execution

        return Execution(
            self.jobs, self.quiet or quiet, self.checkpoint_seconds, self.first_task or first_task, self.tensorboard,
            self.ray,
        )  # fmt: skip

    def changes(self, task_free: bool = False) -> dict[str, Any]:
        """The settings that are given, as text where --set gives them; loads the plug-ins first."""
        from fromp.lab import plugins
        from fromp.lab.results.plan import parse_setting

        plugins.load(self.plugin)
        changes: dict[str, Any] = dict(parse_setting(text) for text in self.set)
        if task_free:
            changes = {"boundaries": "calibrated", "schedule": "constant", **changes}  # a decay needs to know the end
            if changes["boundaries"] == "given":
                raise FrompError("--task-free and boundaries=given contradict each other; give one of them.")
        return changes | {key: v for key in ("memory", "tasks", "epochs") if (v := getattr(self, key)) is not None}

    def plan(self, benchmark: str, method: str, task_free: bool = False) -> "Plan":
        changes = self.changes(task_free)
        from fromp.lab.results.plan import Plan

        return Plan.of(benchmark, method, **changes)

    def mention_untuned(self, plan: "Plan", quiet: bool) -> None:
        """Say it on standard error if the method's strength is a default that was not chosen for the benchmark."""
        given = any(text.startswith("strength=") for text in self.set)
        if plan.untuned() and not (given or quiet or self.quiet):
            says = f"the strength of {plan.method} is untuned on {plan.benchmark} (using {plan.options.strength:g})"
            way_out = f"fromp tune {plan.benchmark} --method {plan.method} --grid strength=1,10,100"
            print(f"note: {says}; try `{way_out}`.", file=sys.stderr)


DEFAULTS = Learning()


@app.command(sort_key=1)
def run(
    benchmark: BenchmarkName, /, *, method: MethodName = "fromp", task_free: bool = False, out: Folder | None = None,
    json: bool = False, learning: Learning = DEFAULTS,
) -> int:  # fmt: skip
    """Learn a benchmark with one method.

    The same command again goes on where it was interrupted, and says so when all is done. For example:

        fromp run toy
        fromp run split-mnist --method ewc --seeds 5 --jobs 2
        fromp run permuted-mnist --memory 40 --set lr=0.003 --out runs/mine

    Args:
        task_free: Detect task boundaries instead of using the given ones (docs/library/task-free.md).
        out: Folder of the results; runs/BENCHMARK-METHOD if not given.
        json: Print results.json alone, with `folder` and `report`.
    """
    from fromp.lab import report
    from fromp.lab.engine.jobs import learn
    from fromp.lab.engine.watch import boundaries_line
    from fromp.lab.results import store
    from fromp.lab.results.format import matrix_table, results_table

    plan, seeds, console = learning.plan(benchmark, method, task_free), learning.chosen_seeds(), PlainConsole()
    learning.mention_untuned(plan, quiet=json)
    out = out or Path("runs") / f"{benchmark}-{method}{'-task-free' if task_free else ''}"
    if code := learn(plan, seeds, out, learning.execution(quiet=json), console):
        return code
    found, page = store.read(out), report.write(out)
    if json:
        return print_json({**_recorded(out), "report": str(page)})
    shown = next(result for result in found.seeds if result.seed == seeds[0])
    console.print(matrix_table(shown.accuracy).terminal(f"seed {shown.seed}: accuracy after each task, %"))
    if shown.boundaries is not None:
        console.print(boundaries_line(shown.boundaries))
    console.print(results_table([found]).terminal(benchmark))
    console.print(f"report: {page}", soft_wrap=True)
    return 0


@app.command(sort_key=2)
def compare(
    benchmark: BenchmarkName, /, *, methods: Names, out: Folder | None = None, json: bool = False,
    learning: Learning = DEFAULTS,
) -> int:  # fmt: skip
    """Learn a benchmark with several methods.

    With several seeds, the first method is compared with each other one seed by seed. For example:

        fromp compare toy --methods fromp,ewc,finetune,separate --seeds 3

    Args:
        methods: Methods of `fromp list`, separated by commas. With `separate`, there is forward transfer.
        out: Folder of the results, one below it per method; runs/BENCHMARK-comparison if not given.
        json: Print the results alone, as a list in the order of the methods.
    """
    from fromp.lab import report
    from fromp.lab.engine.jobs import learn
    from fromp.lab.methods.bounds import SEPARATE
    from fromp.lab.results import paired, store
    from fromp.lab.results.format import results_table
    from fromp.lab.results.plan import comparison

    names, console = list(dict.fromkeys(_names(methods))), PlainConsole()
    if not names:
        raise FrompError(f"--methods {methods} names no method; write --methods fromp,finetune.")
    plans = comparison(benchmark, names, learning.changes())
    out = out or Path("runs") / f"{benchmark}-comparison"
    execution = learning.execution(first_task=out / "first-task", quiet=json)
    for name in names:
        learning.mention_untuned(plans[name], quiet=json)
        if code := learn(plans[name], learning.chosen_seeds(), out / name, execution, console):
            return code
    if SEPARATE.name in names:
        for name in names:
            store.add_forward_transfer(out / name, out / SEPARATE.name)
    page = report.write(out)
    first, *others = found = [store.read(out / name) for name in names]
    if json:
        results, differences = [_recorded(out / name) for name in names], paired.as_json(first, others)
        return print_json({"results": results, "differences": differences, "folder": str(out), "report": str(page)})
    console.print(results_table(found).terminal(benchmark))
    if (table := paired.differences_table(first, others)).rows:
        console.print(table.terminal("paired by seed, %; p of a t-test per row"))
    console.print(f"report: {page}", soft_wrap=True)
    return 0


@app.command(sort_key=3)
def tune(
    benchmark: BenchmarkName, /, *, grid: Annotated[list[str], Parameter(metavar="KEY=V1,V2")],
    method: MethodName = "fromp", out: Folder | None = None, learning: Learning = DEFAULTS,
) -> int:  # fmt: skip
    """Try settings on held-out training data.

    For example:

        fromp tune split-digits --method ewc --grid strength=1,10,100
        fromp tune split-digits --grid tau=1,10 --grid lr=0.001,0.003 --seeds 3

    Args:
        grid: Values of a setting; if repeated, every combination is tried.
        out: Folder of the results; runs/BENCHMARK-METHOD-tuning if not given.
    """
    from fromp.lab.engine import tune

    values = dict(map(tune.parse_values, grid))
    plans = tune.candidates(benchmark, method, learning.changes(), values)
    out = out or Path("runs") / f"{benchmark}-{method}-tuning"
    execution = learning.execution(first_task=out / "first-task")
    return tune.tune(plans, learning.chosen_seeds(), out, execution, PlainConsole())


@app.command(sort_key=4)
def reproduce(
    name: ExhibitName | None = None, /, *,
    quick: bool = False, as_is: bool = False, list: bool = False, out: Folder | None = None,
    plugin: Plugins = (), jobs: Jobs | None = None, quiet: bool = False,
) -> int:  # fmt: skip
    """List the paper's tables and figures, or learn what is missing of one and render it.

    For example:

        fromp reproduce
        fromp reproduce table-toy
        fromp reproduce figure-cifar-bars --as-is

    Args:
        name: One of those listed, or `all`.
        quick: A small version in minutes; without a name, of everything.
        as_is: Render what has been learned so far, without learning.
        list: Only list; with --quick, the small version.
        out: Folder of the results; `results`, with --quick `runs/quick`, if not given.
        plugin: Load methods or benchmarks of your own from a file (docs/lab/adding.md); repeatable.
        jobs: Seeds learned at once, each in a process; one per core if not given.
        quiet: Print no progress.
    """
    from fromp.lab import plugins
    from fromp.lab.engine.jobs import Execution
    from fromp.lab.paper import reproduce
    from fromp.lab.paper.exhibits import EXHIBITS, root_of

    plugins.load(plugin)
    root, console = out or root_of(quick), PlainConsole()
    name = name or ("all" if quick else None)
    if name is None or list:
        console.print(reproduce.listing(root, quick))
        return 0
    names = [*EXHIBITS] if name == "all" else [name]
    if as_is:
        reproduce.render(names, root, quick, console)
        return 0
    execution = Execution(jobs or _cores(), quiet, first_task=root / "first-task")
    return reproduce.reproduce(names, root, quick, execution, console)


@app.command(sort_key=5)
def report(folder: Annotated[Path, Parameter(name="DIR")], /) -> None:
    """Write report.html for a folder of results.

    For example:

        fromp report runs/toy-fromp

    Args:
        folder: Folder of a run, or of several.
    """
    from fromp.lab import report

    print(printable(str(report.write(folder))))


@app.command(sort_key=6)
def bench(*, out: Folder = Path("runs/bench"), quick: bool = False) -> None:
    """Measure the cost of a step, of a task's end and of memory.

    For example:

        fromp bench --quick

    Args:
        out: Folder of the table and the figure.
        quick: Fewer repetitions and cases.
    """
    from fromp.lab import bench

    bench.main(out, quick)


@app.command(sort_key=7)
def detect(
    *, streams: Names = "", detectors: Names = "", seeds: Count = 1, out: Folder = Path("runs/detection"),
    quick: bool = False,
) -> None:  # fmt: skip
    """Try detectors of new tasks on streams.

    For example:

        fromp detect --streams permuted,split --detectors calibrated,welch

    Args:
        streams: Of permuted, split, rotated, recurring, stationary; all if not given.
        detectors: Of calibrated, divergence, welch, adwin, kswin; all if not given.
        seeds: Seeds 0 to N-1.
        out: Folder of the results.
        quick: A fifth of each task.
    """
    from fromp.lab.bench import detectors as trials

    chosen = _names(streams) or [*trials.TRIALS]
    trials.main(out, chosen, _names(detectors) or [*trials.DETECTORS], seeds, share=0.2 if quick else 1.0)


@app.command(name="list", sort_key=8, synonym=("methods", "benchmarks", "ls"))
def list_(*, json: bool = False, plugin: Plugins = ()) -> int:
    """List benchmarks and methods, with what each method keeps and costs.

    For example:

        fromp list
        fromp list --json

    Args:
        json: Print them as JSON.
        plugin: Those of a file of your own too; repeatable.
    """
    from fromp.lab import plugins
    from fromp.lab.benchmarks.catalogue import BENCHMARKS
    from fromp.lab.engine.watch import methods_table
    from fromp.lab.methods import METHODS

    plugins.load(plugin)
    if json:
        methods = [
            {"name": name, "paper": card.paper, "keeps": card.keeps, "step_cost": card.step_cost,
             "needs_task_at_test": card.needs_task_at_test} for name, card in METHODS.items()
        ]  # fmt: skip
        benchmarks = [{"name": name, "title": benchmark.title} for name, benchmark in BENCHMARKS.items()]
        return print_json({"benchmarks": benchmarks, "methods": methods})
    console = PlainConsole()
    console.print("benchmarks", style="bold")
    for name, benchmark in BENCHMARKS.items():
        console.print(f"  {name:22} {benchmark.title}")
    console.print()
    console.print(methods_table())
    return 0


data = App(name="data", sort_key=9)
app.command(data)


@data.default
def show_datasets() -> None:
    """Show the datasets, or fetch one.

    For example:

        fromp data
        fromp data fetch mnist --folder ~/Downloads
    """
    from fromp.lab import data

    console = PlainConsole()
    for status in data.status():
        state = "cached" if status.present else "not downloaded"
        console.print(f"  {status.name:14} {state:14} {status.images:>7,} images   {status.where or status.how}")


@data.command
def fetch(
    name: DatasetName, /, *, folder: Folder | None = None
) -> None:  # fmt: skip
    """Get a dataset now instead of at its first use.

    Args:
        name: A dataset of `fromp data`.
        folder: Look here first; without it, in the folder that the variable FROMP_DATA names.
    """
    from fromp.lab import data

    console = PlainConsole()
    with download_bar(console, name) as progress:
        where = data.fetch(name, folder, progress)
    console.print(f"{name}: {where}", soft_wrap=True)


def _names(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _recorded(folder: Path) -> dict[str, Any]:
    """What results.json says, and where it is."""
    return {**json.loads((folder / "results.json").read_text()), "folder": str(folder)}
