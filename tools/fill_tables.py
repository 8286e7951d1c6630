"""The tables of README.md, docs/ and results/*/README.md, filled from the JSON under results/.

A table stands between `<!-- table: NAME ARGUMENTS -->` and `<!-- end -->`; NAME is a key of `TABLES`.

    python tools/fill_tables.py        fill all of them; `make docs`
"""

import inspect
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import approximations
import batch_norm
import first_month
import lost_blobs
import months
import profile_step
import safety_grid
import sensitivity
import text_stream
from reliability import promises

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.lab.bench import curvature, detectors, level, ranks, scaling
from fromp.lab.bench.table import table as bench_table
from fromp.lab.benchmarks.networks import MLP
from fromp.lab.benchmarks.streams import StreamOptions
from fromp.lab.benchmarks.training import Training
from fromp.lab.methods import METHODS
from fromp.lab.paper.exhibits import EXHIBITS
from fromp.lab.paper.required import ResultsFolder
from fromp.lab.results import metrics, published, selection
from fromp.lab.results.format import Table, about, deviation, percent
from fromp.lab.results.plan import Found, FoundByWelch, Given, Plan
from fromp.lab.results.record import Experiment
from fromp.lab.results.store import find
from fromp.lab.settings import Described, as_text, described

MARK = re.compile(r"<!-- table: (.+?) -->\n")
END = "<!-- end -->"
PAPERS = ("toy", "split-mnist", "permuted-mnist", "split-cifar")  # the paper's benchmarks
# Single-head benchmarks: no task label at test time, except for the methods that need one.
ONE_HEAD = ("toy", "permuted-mnist", "permuted-fashion", "permuted-digits", "split-mnist-domain", "split-mnist-class")
FOLDED = 12  # rows of a table of tried settings that is not folded away


def documents(root: Path) -> list[Path]:
    """Every document that may have tables."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md")), *sorted(root.glob("results/*/README.md"))]
    return [path for path in found if path.exists()]


def update(root: Path, check: bool = False) -> list[Path]:
    """Fill every table; returns the documents that were stale. `check` writes nothing."""
    stale = []
    for path in documents(root):
        text = path.read_text(encoding="utf-8")
        if (filled := _fill(text, path, root / "results")) != text:
            stale.append(path)
            if not check:
                storage.replace(path, filled.encode())
    return stale


def _fill(text: str, path: Path, results: Path) -> str:
    parts, start = [], 0
    while mark := MARK.search(text, start):
        end = text.find(END, mark.end())
        if end < 0 or MARK.search(text, mark.end(), end):
            raise FrompError(f"{path}: the table '{mark[1]}' is not closed; end it with {END}.")
        parts += [text[start : mark.end()], "\n", table(mark[1], path, results), "\n\n"]
        start = end
    return "".join([*parts, text[start:]])


def table(mark: str, path: Path, results: Path) -> str:
    """What a mark asks for, as Markdown."""
    name, *arguments = mark.split()
    if name not in TABLES:
        raise FrompError(f"{path}: unknown table '{name}'; known: {', '.join(TABLES)}.")
    try:
        inspect.signature(TABLES[name]).bind(results, *arguments)
    except TypeError as error:
        raise FrompError(f"{path}: <!-- table: {mark} -->: {error}; see tools/fill_tables.py.") from error
    return TABLES[name](results, *arguments)


def runs(results: Path, benchmarks: str, *methods: str) -> str:
    """Results beside the paper's numbers, one row per folder: those named, or all of a benchmark."""
    names, rows = benchmarks.split(","), []
    for name in names:
        kept = [path.parent.name for path in sorted((results / name).glob("*/results.json"))]
        reported = [method for benchmark, method in published.AVERAGE_ACCURACY if benchmark == name]
        known = [method for method in METHODS if method in {*kept, *reported}]
        prefix = f"`{name}`: " if len(names) > 1 else ""
        rows += [_run(results, name, method, prefix) for method in methods or dict.fromkeys([*known, *kept])]
    heads = (
        "", "paper", "here: mean ± standard error", "standard deviation", "seeds", "settings changed",
        "backward transfer", "paper's backward transfer", "forward transfer", "paper's forward transfer",
    )  # fmt: skip
    shown = [column for column, cells in enumerate(zip(*rows, strict=True)) if any(cells)]  # no column of blanks
    return Table([heads[column] for column in shown], [[row[column] for column in shown] for row in rows]).markdown()


def _run(results: Path, benchmark: str, method: str, prefix: str) -> list[str]:
    key, found = (benchmark, method), _experiment(results / benchmark / method)
    accuracy, backward = published.AVERAGE_ACCURACY.get(key), published.BACKWARD_TRANSFER.get(key)
    found = found and found.with_forward_transfer(_experiment(results / benchmark / "separate"))
    return [
        prefix + _title(benchmark, method), _printed(accuracy),
        *(_summary(found) or ["not run", "", ""]), _changed(found),
        percent(found.summary("backward_transfer") if found else None), _printed(backward),
        percent(found.summary("forward_transfer") if found else None), _printed(published.FORWARD_TRANSFER.get(key)),
    ]  # fmt: skip


def tried(results: Path, benchmark: str) -> str:
    """The settings that were tried on held-out data."""
    rows = []
    for file in sorted((results / benchmark).rglob(selection.FILE)):
        place = file.parent.relative_to(results / benchmark).as_posix().removeprefix("selection").strip("./")
        for found in selection.read(file):
            name = f"{place}/{found.name}".removeprefix("/")
            rows.append([f"`{name}`", *_summary(found), _changed(found)])
    heads = ["", "here: mean ± standard error", "standard deviation", "seeds", "settings changed"]
    filled = Table(heads, rows).markdown()
    if len(rows) <= FOLDED:
        return filled
    return f"<details>\n<summary>The {len(rows)} settings that were tried</summary>\n\n{filled}\n\n</details>"


def summary(results: Path, benchmarks: str, *methods: str) -> str:
    """Average accuracy, methods by benchmarks, with the number of seeds; the paper's number in a second line."""
    rows = []
    for method in methods:
        cells = [f"`{method}`"]
        for benchmark in benchmarks.split(","):
            found = _experiment(results / benchmark / method)
            here = _summary(found)
            reported = published.AVERAGE_ACCURACY.get((benchmark, method))
            text = f"{here[0]} ({here[2]})" if here else "–"
            cells.append(f"{text}<br>paper {reported}" if reported else text)
        rows.append(cells)
    return Table(["", *benchmarks.split(",")], rows).markdown()


def glance(results: Path, benchmarks: str, *methods: str) -> str:
    """Average accuracy at a glance: methods by benchmarks, above what the paper and others since have published."""
    names = benchmarks.split(",")
    rows = []
    for method in methods:
        found = [_summary(_experiment(results / name / method)) for name in names]
        rows.append([f"`{method}`", *(f"{values[0]} ({values[2]})" if values else "–" for values in found)])
    paper = [published.AVERAGE_ACCURACY.get((name, "fromp")) for name in names]
    best = [published.BEST_SINCE.get(name) for name in names]
    rows.append(["*FROMP in the paper*", *(f"*{found}*" if found else "–" for found in paper)])
    rows.append(["*best published since*", *(f"*{one.accuracy} ({one.by})*" if one else "–" for one in best)])
    return Table(["", *(name for name in names)], rows).markdown()


def by_task(results: Path, benchmark: str) -> str:
    """The accuracy on each task after the last, one row per method with its preset."""
    rows = []
    for method in METHODS:
        found = _experiment(results / benchmark / method)
        if found is not None and found.finished:
            tasks = zip(*(seed.last for seed in found.finished), strict=True)
            rows.append([f"`{method}`", *(f"{100 * sum(values) / len(values):.1f}" for values in tasks)])
    return Table(["", *(f"task {task}" for task in range(1, len(rows[0])))], rows).markdown()


def curve(results: Path, exhibit: str, setting: str) -> str:
    """Accuracy against a setting, one column per method: the kept runs of one of the paper's figures."""
    kept, cells = ResultsFolder(results), {}
    for required in EXHIBITS[exhibit].needed:
        if found := _summary(kept.experiment(required)):
            cells[required.plan.flat()[setting], required.method] = f"{found[0]} ({found[2]})"
    methods = list(dict.fromkeys(method for _, method in cells))
    rows = [[as_text(v), *(cells.get((v, m), "–") for m in methods)] for v in sorted({value for value, _ in cells})]
    return Table([f"`{setting}`", *(f"`{method}`" for method in methods)], rows).markdown()


def exhibits(results: Path) -> str:
    """Every table and figure of the paper, how many of its seeds are kept, and how long the others will take."""
    kept, rows = ResultsFolder(results), []
    for name, exhibit in EXHIBITS.items():
        states = [(kept.state(required), kept.seconds(required)) for required in exhibit.runs()]
        done, wanted = sum(state.done for state, _ in states), sum(state.seeds for state, _ in states)
        left = [(state.seeds - state.done, each) for state, each in states if state.done < state.seeds]
        known = all(each is not None for _, each in left)
        rest = (
            about(sum(seeds * (each or 0.0) for seeds, each in left)) if left and known else "unknown" if left else ""
        )
        rows.append([f"`{name}`", exhibit.place, exhibit.title, f"{done} of {wanted}", rest if left else ""])
    return Table(["", "in the paper", "what it shows", "seeds kept", "time for the rest"], rows).markdown()


def settings(results: Path) -> str:
    """Every setting, who has it, what it is, and its default."""
    owners: list[tuple[str, type]] = [("all methods", part) for part in (StreamOptions, Training, Given)]
    owners += [("benchmarks with an MLP", MLP), *((f"`{name}`", card.settings) for name, card in METHODS.items())]
    owners += [("task-free runs", Found), ("task-free runs", FoundByWelch)]
    of: dict[Described, list[str]] = {}
    for owner, part in owners:
        for setting in described(part):
            of.setdefault(setting, []).append(owner)
    rows = [[f"`{s.name}`", ", ".join(dict.fromkeys(of[s])), s.meaning, s.default] for s in of if s.meaning]
    return Table(["setting", "of", "what it is", "unless a preset says otherwise"], rows).markdown(numbers=False)


def presets(results: Path) -> str:
    """What a user of FROMP has to choose, as the presets have it."""
    names = ("tau", "memory", "prior_precision", "jitter", "lr", "batch_size", "epochs", "schedule", "clip_norm")
    rows = [[f"`{b}`", *(as_text(Plan.of(b, "fromp").flat()[name]) for name in names)] for b in PAPERS]
    return Table(["benchmark", *(f"`{name}`" for name in names)], rows).markdown()


def methods(results: Path) -> str:
    """What differs between each method's presets and FROMP's."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for method in METHODS:
        defaults = {field.name: field.default for field in fields(METHODS[method].settings)}
        changes = tuple(
            _differences({**defaults, **Plan.of(b, "fromp").flat()}, Plan.of(b, method).flat()) for b in PAPERS
        )
        if any(changes):
            alike.setdefault(changes, []).append(f"`{method}`")
    rows = [[", ".join(names), *changes] for changes, names in alike.items()]
    return Table(["", *(f"`{name}`" for name in PAPERS)], rows).markdown(numbers=False)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={as_text(value)}`" for name, value in after.items() if value != before.get(name))


def task_free(results: Path, benchmark: str, given: str, *found: str) -> str:
    """Runs that find their task boundaries, beside the same with the boundaries given."""
    baseline = _experiment(results / benchmark / given)
    accuracies = {seed.seed: seed.average_accuracy or 0.0 for seed in (baseline.finished if baseline else [])}
    rows = [[f"`{given}`", "given", "", "", "", *(_summary(baseline) or ["", "", ""])[::2], ""]]
    for name in found:
        experiment = _experiment(results / benchmark / name)
        finished = experiment.finished if experiment else []
        gains = [(s.average_accuracy or 0.0) - accuracies[s.seed] for s in finished if s.seed in accuracies]
        accuracy = _summary(experiment) or ["", "", ""]
        gain = percent(metrics.summarise(gains))
        rows.append(
            [f"`{name}`", *_boundaries([seed.boundaries for seed in finished if seed.boundaries]), *accuracy[::2], gain]
        )
    heads = ("changes found", "off by at most", "false alarms", "thresholds that work", "accuracy", "seeds")
    return Table((f"{benchmark}", *heads, "above given"), rows).markdown()


def _boundaries(changes: Sequence[dict[str, Any]]) -> list[str]:
    """Changes found, how far from where they were, false alarms, and the thresholds that work in every run."""
    delays = [delay for change in changes for delay in change["delays"]]
    shifts = [abs(shift) for change in changes for shift in change["shifts"] if shift is not None]
    ranges = [change["threshold_range"] for change in changes if "threshold_range" in change]
    low, high = max((each[0] for each in ranges), default=0.0), min((each[1] for each in ranges), default=0.0)
    return [
        f"{sum(delay is not None for delay in delays)} of {len(delays)}",
        f"{max(shifts, default=0)}",
        f"{sum(change['false_alarms'] for change in changes)}",
        f"{low:.2f} to {high:.2f}" if low < high else "none" if ranges else "none to set",
    ]


def measured(results: Path, what: str) -> str:
    """What a command has measured: `demo`, `quick`, `first-month`, `bench`, `profile`, `curvature`, `ranks`, ..."""
    if what == "detection":
        files = [results / "detection" / f"{name}.json" for name in detectors.TRIALS]
        return detectors.table([json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()])
    if what == "demo":
        both = [find(results / "toy" / method)[0] for method in ("finetune", "fromp")]
        # Of runs that had a core for themselves.
        seconds = 10 * math.ceil(sum(min(seed.seconds for seed in one.finished) for one in both) / 10)
        first = [next(seed for seed in one.finished if seed.seed == 0) for one in both]
        plain, held = (f"{100 * (seed.average_accuracy or 0.0):.1f} %" for seed in first)
        return (
            f"`make demo` then takes about {seconds} seconds. Plain training ends with {plain} over the five tasks, "
            f"FROMP with {held}."
        )
    file = {
        "quick": "quick/took.json",
        "first-month": "first-month/took.json",
        "bench": "bench/bench.json",
        "profile": "bench/profile.json",
        "curvature": "bench/curvature.json",
        "ranks": "bench/ranks.json",
        "level": "bench/level.json",
        "scaling": "bench/scaling.json",
    }[what]
    found = json.loads((results / file).read_text(encoding="utf-8"))
    if what in (own := {"curvature": curvature.table, "level": level.table, "scaling": scaling.table}):
        return own[what](found)
    if what == "first-month":
        return first_month.text(found)
    if what == "ranks":
        return ranks.table(found)
    machine = "{cores} cores of {processor}".format(**found["environment"])
    if what == "bench":
        return f"Measured on {machine}, torch {found['environment']['torch']}.\n\n{bench_table(found)}"
    if what == "profile":
        return profile_step.text(found)
    return (
        f"From nothing it took {found['seconds'] / 60:.1f} minutes on {machine}: "
        f"{found['runs']} runs, {found['jobs']} at once, and {len(found['rendered'])} tables and figures."
    )


def defaults(results: Path, what: str) -> str:
    """What the defaults were measured to do, `safety` or `batch_norm`, and what they were chosen from, `chosen`."""
    found = json.loads((results / "defaults" / f"{what}.json").read_text(encoding="utf-8"))
    return {"safety": safety_grid.table, "chosen": safety_grid.choice, "batch_norm": batch_norm.table}[what](found)


def own_months(results: Path, stream: str) -> str:
    """How good `fromp learn` is on a stream of months, beside other ways: `tumours` or `digits`."""
    return months.table(json.loads((results / "months" / f"{stream}.json").read_text(encoding="utf-8")))


def text(results: Path, stream: str) -> str:
    """What became of a pre-trained encoder on a stream of `tools/text_stream.py`."""
    return text_stream.table(results / "text", stream)


UNCERTAINTY = {  # what `tools/uncertainty.py` measures, and the heading of its column
    "classes": {"nll": "nll", "ece": "ECE", "auroc": "AUROC"},
    "regression": {
        "coverage": "coverage", "width": "width", "nll": "nll", "foreign coverage": "foreign coverage",
        "foreign width": "foreign width", "foreign nll": "foreign nll",
    },
}  # fmt: skip


def uncertainty(results: Path, kind: str) -> str:
    """How well stated uncertainty agrees with what happened: mean and standard error over seeds."""
    rows, columns = [], UNCERTAINTY[kind]
    for file in sorted((results / "uncertainty").glob("*.json")):
        runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
        for way in runs[0]:
            if all(column in runs[0][way] for column in columns):
                found = (metrics.summarise([run[way][column] for run in runs]) for column in columns)
                rows.append([f"`{file.stem}`: {way}", *(f"{one.mean:.3g} ± {one.stderr:.1g}" for one in found if one)])
    return Table(["", *columns.values()], rows).markdown()


def relaxed(results: Path, what: str) -> str:
    """What `tools/approximations.py` has measured: a benchmark, a benchmark's points, or `functional-prior`."""
    found = json.loads((results / "approximations" / f"{what}.json").read_text(encoding="utf-8"))
    if what == "functional-prior":
        return approximations.prior_table(found)
    return (approximations.points_table if what.endswith("-points") else approximations.table)(found)


def multiples(results: Path, benchmark: str, *names: str) -> str:
    """Accuracy with each setting at multiples of its preset, the others at theirs."""
    return sensitivity.multiples(results / "sensitivity" / benchmark, names)


def lost(results: Path) -> str:
    """What `tools/lost_blobs.py` has measured."""
    return lost_blobs.table(json.loads((results / "approximations" / "toy-lost.json").read_text(encoding="utf-8")))


def guarantees(results: Path) -> str:
    """What is promised, the test that keeps it, and the figure of the latest campaign."""
    return Table(["promise", "test", "latest figure"], promises.table(results)).markdown(numbers=False)


TABLES: dict[str, Callable[..., str]] = {

    "runs": runs, "tried": tried, "summary": summary, "glance": glance, "by-task": by_task, "curve": curve,
    "exhibits": exhibits, "settings": settings, "presets": presets, "methods": methods, "task-free": task_free,
    "measured": measured, "months": own_months, "defaults": defaults, "uncertainty": uncertainty, "text": text,
    "relaxed": relaxed, "multiples": multiples, "lost": lost,
    "guarantees": guarantees,
}  # fmt: skip


def _experiment(path: Path) -> Experiment | None:
    return find(path)[0] if (path / "results.json").exists() else None


def _title(benchmark: str, method: str) -> str:
    """A method's name, and whether it gets more information than the others."""
    told = benchmark in ONE_HEAD and method in METHODS and METHODS[method].needs_task_at_test
    return f"`{method}`, given the task label" if told else f"`{method}`"


def _summary(found: Experiment | None) -> list[str]:
    """Average accuracy: mean and standard error, standard deviation, number of seeds; nothing without a seed."""
    values = found.summary("average_accuracy") if found else None
    return [] if values is None else [percent(values), deviation(values), str(values.n)]


def _printed(reported: published.Reported | None) -> str:
    if reported is None:
        return ""
    return f"{reported} ({reported.describe()})" if reported.spread is not None else str(reported)


def _changed(found: Experiment | None) -> str:
    return ", ".join(f"`{name}={as_text(value)}`" for name, value in found.changed().items()) if found else ""


if __name__ == "__main__":
    for changed in update(Path(__file__).resolve().parent.parent):
        print(f"updated {changed}")
