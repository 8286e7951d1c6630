"""The tables in README.md and docs/, filled from the JSON under results/, so that no measured number is typed."""

import inspect
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.lab import bench
from fromp.lab.bench import detectors
from fromp.lab.benchmarks.catalogue import BENCHMARKS, Settings, as_text, settings_for
from fromp.lab.methods.registry import METHODS
from fromp.lab.paper import tables
from fromp.lab.paper.exhibits import EXHIBITS, Required, ResultsFolder
from fromp.lab.paper.required import LOOK_AT_MEMORY
from fromp.lab.results import metrics, published, selection
from fromp.lab.results.record import Experiment, find, forward_transfer

OPENING = re.compile(r"<!-- generated: (\S+) -->\n")
CLOSING = "<!-- end -->"


def update(root: Path, check: bool = False) -> list[Path]:
    """Fill the marked blocks of README.md and docs/*.md; returns the files that were stale. `check` writes nothing."""
    stale = []
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        if not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        if (filled := _fill(text, path, root / "results")) != text:
            stale.append(path)
            if not check:
                storage.replace(path, filled.encode())
    return stale


def _fill(text: str, path: Path, results: Path) -> str:
    """The text with everything between each pair of marks made anew."""
    parts, place = [], 0
    while opening := OPENING.search(text, place):
        name, end = opening[1], text.find(CLOSING, opening.end())
        if end < 0 or OPENING.search(text, opening.end(), end):
            raise FrompError(f"{path}: the block '{name}' is not closed; end it with {CLOSING}.")
        if name not in BLOCKS:
            raise FrompError(f"{path}: there is no block '{name}'; use one of {', '.join(BLOCKS)}.")
        parts += [text[place : opening.end()], "\n", BLOCKS[name](results), "\n\n"]
        place = end
    return "".join([*parts, text[place:]])


@dataclass(frozen=True)
class Row:
    """A result, if it is there, beside what the paper reports, if it does."""

    title: str
    experiment: Experiment | None
    accuracy: published.Reported | None
    transfer: published.Reported | None
    forward: published.Reported | None
    missing: str = "not run"  # and the time it would take, if that can be said

    def summary(self, name: str) -> dict[str, float] | None:
        """Mean, deviation, error and number of the finished runs."""
        return None if self.experiment is None else self.experiment.summary.get(name)


Columns = dict[str, Callable[[Row], str]]

COLUMNS: Columns = {
    "": lambda row: row.title,
    "paper": lambda row: _printed(row.accuracy),
    "here: mean ± standard error": lambda row: _percent(row.summary("average_accuracy")) or row.missing,
    "standard deviation": lambda row: _deviation(row.summary("average_accuracy")),
    "seeds": lambda row: _number(row.summary("average_accuracy")),
    "settings changed": lambda row: _changed(row.experiment),
}
WITH_TRANSFER: Columns = {
    **COLUMNS,
    "backward transfer": lambda row: _percent(row.summary("backward_transfer")) or _to_run(row, row.transfer),
    "paper's backward transfer": lambda row: _printed(row.transfer),
    "forward transfer": lambda row: _percent(row.summary("forward_transfer")) or _to_run(row, row.forward),
    "paper's forward transfer": lambda row: _printed(row.forward),
}


def _to_run(row: Row, reported: published.Reported | None) -> str:
    return "not run" if row.experiment is None and reported else ""


# Where a test says nothing of its task, except to the methods that must be told.
ONE_HEAD = ("toy", "permuted-mnist", "permuted-fashion", "permuted-digits", "split-mnist-domain", "split-mnist-class")
MOST_ROWS = 12  # of a table of choices that is shown unasked


def _demo(results: Path) -> str:
    """What `make demo` comes to: the first seed of the toy benchmark."""
    experiment = _experiment(results / "toy" / "fromp")
    runs = [] if experiment is None else [run for run in experiment.finished if run["seed"] == 0]
    if experiment is None or not runs:
        return "The toy benchmark has not been run yet."
    quickest = min(run["seconds"] for run in experiment.finished)  # a run that had a core for itself
    seconds, accuracy = 5 * math.ceil(quickest / 5), 100 * runs[0]["average_accuracy"]
    return f"`make demo` then takes about {seconds} seconds and ends with an average accuracy of {accuracy:.1f} %."


def _toy_comparison(results: Path) -> str:
    rows = [
        ("FROMP, released settings", "fromp", "fromp-released"),
        ("FRORP, released settings", "frorp", "frorp-released"),
        ("FROMP, with linear decay and jitter 0.01", "", "fromp-tau-1"),
        ("FRORP, with linear decay and jitter 0.01", "", "frorp-tau-1"),
        ("FROMP, and with tau = 0.1 N", "", "fromp-lr-0.01"),
        ("FROMP, and with learning rate 0.003: the preset", "fromp", "fromp"),
        ("FRORP, the preset", "frorp", "frorp"),
        ("FROMP, released but for the linear decay", "", "fromp-decay-only"),
        ("FROMP, released but for the jitter", "", "fromp-jitter-only"),
        ("FROMP, released but for tau", "", "fromp-tau-only"),
        ("FROMP, released but for the learning rate", "", "fromp-lr-only"),
        ("VCL + random coreset (VCL-RP)", "vcl-coreset", "vcl-coreset"),
        ("VCL + FROMP's memory as coreset (VCL-MP)", "vcl-memorable", "vcl-memorable"),
        ("VCL", "vcl", "vcl"),
        ("batch Adam (`joint`)", "joint", "joint"),
        ("plain training (`finetune`)", "finetune", "finetune"),
    ]
    listed = {name for _, _, name in rows}
    others = [path.parent.name for path in sorted((results / "toy").glob("*/results.json"))]
    rows += [(_title("toy", name), "", name) for name in others if name not in listed]
    return _table([_row(title, "toy", method, results / "toy" / name) for title, method, name in rows], COLUMNS)


def _toy_variations(results: Path) -> str:
    titles = {"fromp": "FROMP", "joint": "batch Adam"}
    rows = [
        _row(f"{benchmark.title}: {title}", name, method, results / name / method)
        for name, benchmark in BENCHMARKS.items()
        if name.startswith("toy-")
        for method, title in titles.items()
    ]
    return _table(rows, COLUMNS)


def _selection(name: str) -> Callable[[Path], str]:
    """The runs that a benchmark's settings were chosen by."""

    def block(results: Path) -> str:
        tried = [one for file in sorted((results / name).rglob(selection.FILE)) for one in selection.read(file)]
        if not tried:
            return "Nothing of the choice has been kept."
        columns = {title: column for title, column in COLUMNS.items() if title != "paper"}
        rows = [Row(f"`{one.name}`", one, None, None, None) for one in tried]
        table = _table(rows, columns)
        if len(rows) <= MOST_ROWS:
            return table
        return f"<details>\n<summary>The {len(rows)} settings that were tried</summary>\n\n{table}\n\n</details>"

    return block


def _against(exhibit: str, setting: str, title: str) -> Callable[[Path], str]:
    """Accuracy against a setting, a column a method: the runs of one of the paper's figures."""

    def block(results: Path) -> str:
        kept, needed = ResultsFolder(results), EXHIBITS[exhibit].needed
        cells = {(getattr(runs.settings, setting), runs.method): _cell(kept, runs) for runs in needed}
        methods = list(dict.fromkeys(method for _, method in cells))
        rows = [
            [as_text(value), *(cells.get((value, method), "") for method in methods)]
            for value in sorted({value for value, _ in cells})
        ]
        return tables.Table([title, *(f"`{method}`" for method in methods)], rows).markdown()

    return block


def _cell(kept: ResultsFolder, runs: Required) -> str:
    found = kept.experiment(runs)
    summary = None if found is None else found.summary["average_accuracy"]
    return _not_run(kept, runs) if summary is None else f"{_percent(summary)} ({_seeds(int(summary['n']))})"


def _reproduction(results: Path) -> str:
    """Every table and figure of the paper, how many of its runs are kept, and what the others will take."""
    kept, rows = ResultsFolder(results), []
    for name, exhibit in EXHIBITS.items():
        states = [(kept.state(runs), kept.seconds(runs)) for runs in exhibit.runs()]
        done, wanted = sum(state.done for state, _ in states), sum(state.seeds for state, _ in states)
        seconds = sum((state.seeds - state.done) * each for state, each in states)
        rows.append([f"`{name}`", exhibit.place, exhibit.title, f"{done} of {wanted}", _time(seconds)])
    return tables.Table(["", "in the paper", "what it shows", "seeds kept", "time for the rest"], rows).markdown()


def _quick(results: Path) -> str:
    """How long `fromp reproduce --quick` took, from nothing."""
    path = results / "quick" / "took.json"
    if not path.exists():
        return "Not measured yet."
    took = json.loads(path.read_text(encoding="utf-8"))
    return (
        f"From nothing it took {took['seconds'] / 60:.1f} minutes on {_machine(took)}: "
        f"{took['runs']} runs, {took['jobs']} at once, and {len(took['rendered'])} tables and figures."
    )


def _benchmark(name: str) -> Callable[[Path], str]:
    def block(results: Path) -> str:
        ours = [path.parent.name for path in sorted((results / name).glob("*/results.json"))]
        reported = [method for benchmark, method in published.AVERAGE_ACCURACY if benchmark == name]
        if not ours and not reported:
            return f"Not run yet: `fromp compare {name} --methods fromp,frorp --seeds 5 --out results/{name}`."
        known = [method for method in METHODS if method in {*ours, *reported}]
        rows = [
            _row(_title(name, method), name, method, results / name / method)
            for method in dict.fromkeys([*known, *ours, *reported])
        ]
        return _table(rows, WITH_TRANSFER)

    return block


def _title(benchmark: str, method: str) -> str:
    """A method's name, and whether it is told more than the others."""
    told = benchmark in ONE_HEAD and method in METHODS and METHODS[method].told
    return f"`{method}`, told the task" if told else f"`{method}`"


def _by_task(name: str) -> Callable[[Path], str]:
    """The accuracy on each task after the last, a row a method with the presets' settings."""

    def block(results: Path) -> str:
        every = {method: _experiment(results / name / method) for method in METHODS}
        found = {method: one for method, one in every.items() if one is not None and one.finished}
        if not found:
            return "Not run yet."
        rows = []
        for method, one in found.items():
            by_task = zip(*(run["accuracy"][-1] for run in one.finished), strict=True)
            rows.append([f"`{method}`", *(f"{100 * sum(of) / len(of):.1f}" for of in by_task)])
        heads = [f"task {place}" for place in range(1, len(rows[0]))]
        return tables.Table(["", *heads], rows).markdown()

    return block


def _settings(results: Path) -> str:
    """What a user has to choose, as the presets have it."""
    names = ("tau", "memory", "prior_precision", "jitter", "lr", "batch_size", "epochs", "schedule", "clip")
    lines = ["| benchmark | " + " | ".join(f"`{name}`" for name in names) + " |", "|---|" + "---:|" * len(names)]
    for benchmark in ("toy", "split-mnist", "permuted-mnist", "split-cifar"):
        preset = BENCHMARKS[benchmark].settings
        lines.append(f"| `{benchmark}` | " + " | ".join(as_text(getattr(preset, name)) for name in names) + " |")
    return "\n".join(lines)


def _all_settings(results: Path) -> str:
    """Every setting with the comment behind it, and the value that it has unless a preset says otherwise."""
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(Settings), re.MULTILINE))
    rows = [
        [f"`{field.name}`", comments[field.name], "" if field.default in (MISSING, ()) else as_text(field.default)]
        for field in fields(Settings)
    ]
    return tables.Table(["setting", "what it is", "unless a preset says otherwise"], rows).markdown(numbers=False)


def _method_settings(results: Path) -> str:
    """In what each method's presets differ from FROMP's."""
    names = ("toy", "split-mnist", "permuted-mnist", "split-cifar")
    alike: dict[tuple[str, ...], list[str]] = {}
    for method in METHODS:
        changes = tuple(
            _changes(asdict(settings_for(name, {})), asdict(settings_for(name, {}, method))) for name in names
        )
        if any(changes):
            alike.setdefault(changes, []).append(f"`{method}`")
    rows = [[", ".join(methods), *changes] for changes, methods in alike.items()]
    return tables.Table(["", *(f"`{name}`" for name in names)], rows).markdown(numbers=False)


def _changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={as_text(value)}`" for name, value in after.items() if value != before[name])


def _bench(results: Path) -> str:
    path = results / "bench" / "bench.json"
    if not path.exists():
        return "Not measured yet: `fromp bench --out results/bench`."
    report = json.loads(path.read_text(encoding="utf-8"))
    return f"Measured on {_machine(report)}, torch {report['environment']['torch']}.\n\n{bench.table(report)}"


def _rates(results: Path) -> str:
    """Images per second of the presets' runs on Split CIFAR, as far as threads are known, against plain training's.

    Without the first task, which most runs take from another. Those of memory count.
    """
    # Images, seconds and tasks, by method, seed, and where it ran: threads, machine.
    totals: dict[tuple[str, int, tuple[int, str]], list[float]] = {}
    for method in ("finetune", "separate", "ewc", "si", *LOOK_AT_MEMORY):
        settings, found = settings_for("split-cifar", {}, method), _experiment(results / "split-cifar" / method)
        memory = settings.memory if method in LOOK_AT_MEMORY else 0
        for run in found.finished if found and not found.changed() else []:
            of_tasks = enumerate(zip(run.get("task_threads", ()), run["task_seconds"], strict=False))
            for past, (threads, seconds) in of_tasks:
                if past and threads is not None:
                    where = threads, json.dumps(run["environment"])
                    of = totals.setdefault((method, run["seed"], where), [0, 0, 0])
                    of[:] = of[0] + bench.images_of(settings, past, memory), of[1] + seconds, of[2] + 1
    plain = {where: of[0] / of[1] for (method, _, where), of in totals.items() if method == "finetune"}
    rows = []
    for (method, seed, where), (images, seconds, tasks) in totals.items():
        against = f"{images / seconds / plain[where]:.2f} x" if where in plain else ""
        numbers = f"{tasks}", f"{images / 1e6:.2f}", f"{images / seconds:.0f}", against
        rows.append([f"`{method}`", f"{seed}", f"{where[0]}", *numbers])
    heads = ["", "seed", "threads", "tasks", "millions of images", "images a second", "against `finetune`"]
    return tables.Table(heads, rows).markdown() if rows else "No run has said it yet."


def _machine(report: dict[str, Any]) -> str:
    return "{cores} cores of {processor}".format(**report["environment"])


def _detection(results: Path) -> str:
    """The detectors of new tasks, stream by stream."""
    found = [path for name in detectors.TRIALS if (path := results / "detection" / f"{name}.json").exists()]
    if not found:
        return "Not run yet: `fromp detect --seeds 3 --out results/detection`."
    return detectors.table([json.loads(path.read_text(encoding="utf-8")) for path in found])


def _task_free(results: Path) -> str:
    """Benchmarks with their boundaries found out, beside the same with them given."""
    compared = {
        ("permuted-mnist", "fromp-paper"): {
            "`calibrated`": "task-free/calibrated",
            "`welch`": "task-free/welch",
            "`welch`, all of a task for its sample": "task-free/welch-whole-task",
        },
        ("toy", "fromp-constant"): {"`calibrated`": "task-free"},
    }
    rows = []
    for (benchmark, told), places in compared.items():
        given = _experiment(results / benchmark / told)
        rows.append([benchmark, "given", "", "", "", "", *_accuracy(given, None)])
        for name, place in places.items():
            found = _experiment(results / benchmark / place)
            changes = [run["boundaries"] for run in found.finished] if found else []
            rows.append([benchmark, name, *_found(changes), *_accuracy(found, given)])
    heads = ("benchmark", "detector", "changes found", "off by at most", "false alarms", "thresholds that work")
    return tables.Table((*heads, "accuracy", "above given", "seeds"), rows).markdown()


def _found(changes: Sequence[dict[str, Any]]) -> tuple[str, str, str, str]:
    """Changes found, how far from where they were, false alarms, and the thresholds that work in every run."""
    if not changes:
        return "not run", "", "", ""
    delays = [delay for one in changes for delay in one["delays"]]
    ranges = [one["threshold_range"] for one in changes if "threshold_range" in one]
    low, high = max((one[0] for one in ranges), default=0.0), min((one[1] for one in ranges), default=0.0)
    return (
        f"{sum(delay is not None for delay in delays)} of {len(delays)}",
        f"{max((abs(shift) for one in changes for shift in one['shifts'] if shift is not None), default=0)}",
        f"{sum(one['false_alarms'] for one in changes)}",
        f"{low:.2f} to {high:.2f}" if low < high else "none" if ranges else "none to set",
    )


def _accuracy(one: Experiment | None, other: Experiment | None) -> tuple[str, str, str]:
    """The accuracy, by how much it is above another's seed by seed, and the number of seeds."""
    if one is None or not one.finished:
        return "", "", ""
    return _percent(one.summary["average_accuracy"]), _percent(_differences(one, other)), f"{len(one.finished)}"


def _differences(one: Experiment, other: Experiment | None) -> dict[str, float] | None:
    """Of the average accuracies of the seeds that both have."""
    others = {run["seed"]: run["average_accuracy"] for run in (other.finished if other else [])}
    both = [run["average_accuracy"] - others[run["seed"]] for run in one.finished if run["seed"] in others]
    return metrics.summarise(both) if both else None


BLOCKS: dict[str, Callable[[Path], str]] = {
    "demo": _demo,
    "toy-comparison": _toy_comparison,
    "toy-variations": _toy_variations,
    **{name: _benchmark(name) for name in BENCHMARKS if not name.startswith("toy")},
    **{f"{name}-selection": _selection(name) for name in BENCHMARKS},
    **{f"{name}-by-task": _by_task(name) for name in BENCHMARKS},
    **{
        f"{name}-memory": _against(exhibit, "memory", "points a task")
        for name, exhibit in {
            "permuted-mnist": "figure-memory-mnist",
            "split-cifar": "figure-memory-cifar",
            "split-cifar-11": "figure-memory-cifar-11",
        }.items()
    },
    "split-mnist-tau": _against("figure-tau", "tau", "tau / N"),
    "reproduction": _reproduction,
    "quick": _quick,
    "settings": _settings,
    "all-settings": _all_settings,
    "method-settings": _method_settings,
    "bench": _bench,
    "split-cifar-rates": _rates,
    "detection": _detection,
    "task-free": _task_free,
}


def _row(title: str, benchmark: str, method: str, path: Path) -> Row:
    key, experiment, results = (benchmark, method), _experiment(path), path.parent.parent
    return Row(
        title,
        experiment if experiment is None else _with_forward_transfer(experiment),
        published.AVERAGE_ACCURACY.get(key),
        published.BACKWARD_TRANSFER.get(key),
        published.FORWARD_TRANSFER.get(key),
        "not run"
        if experiment or method not in METHODS
        else _not_run(ResultsFolder(results), _planned(benchmark, method)),
    )


def _planned(benchmark: str, method: str) -> Required:
    """As a table of the paper wants them, if one does."""
    own = Required(benchmark, method)
    return next((runs for exhibit in EXHIBITS.values() for runs in exhibit.needed if runs.place == own.place), own)


def _with_forward_transfer(experiment: Experiment) -> Experiment:
    """The experiment with the transfer from the networks trained on each task alone that lie beside it, if they do."""
    separate = _experiment(experiment.path.parent / "separate")
    found = None if separate is None else forward_transfer(experiment, separate)
    return (
        experiment if found is None else replace(experiment, summary={**experiment.summary, "forward_transfer": found})
    )


def _not_run(kept: ResultsFolder, runs: Required) -> str:
    return f"not run: {_seeds(runs.seeds)} take {_time(runs.seeds * kept.seconds(runs))}"


def _time(seconds: float) -> str:
    return tables.duration(seconds) if seconds else ""


def _seeds(count: int) -> str:
    return f"{count} seed" + "s" * (count != 1)


def _experiment(path: Path) -> Experiment | None:
    return find(path)[0] if (path / "results.json").exists() else None


def _table(rows: Sequence[Row], columns: Columns) -> str:
    """The rows as Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(cell(row) for cell in columns.values()) + " |" for row in rows])


def _printed(reported: published.Reported | None) -> str:
    if reported is None:
        return ""
    return f"{reported} ({reported.describe()})" if reported.spread is not None else str(reported)


def _percent(summary: dict[str, float] | None) -> str:
    """The mean with its standard error in percent; a single run has none."""
    if summary is None:
        return ""
    mean = f"{100 * summary['mean']:.2f}"
    return mean if summary["n"] < 2 else f"{mean} ± {100 * summary['stderr']:.2f}"


def _deviation(summary: dict[str, float] | None) -> str:
    return "" if summary is None or summary["n"] < 2 else f"{100 * summary['std']:.2f}"


def _number(summary: dict[str, float] | None) -> str:
    return "" if summary is None else str(int(summary["n"]))


def _changed(experiment: Experiment | None) -> str:
    if experiment is None or not experiment.summary:
        return ""
    return ", ".join(f"`{name}={as_text(experiment.settings[name])}`" for name in experiment.changed())


if __name__ == "__main__":
    for changed in update(Path()):
        print(f"updated {changed}")
