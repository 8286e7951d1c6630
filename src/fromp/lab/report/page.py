"""The values of the report's page, section by section; templates/report.html says how they look."""

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from matplotlib.figure import Figure

from fromp import __version__
from fromp.foundation.errors import FrompError
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.methods.bounds import SEPARATE
from fromp.lab.methods.card import places
from fromp.lab.report import embed, gallery, plane
from fromp.lab.report.figures import accuracy, statistic
from fromp.lab.report.figures.plane import decision_boundary
from fromp.lab.report.figures.style import MEMORY, look
from fromp.lab.results import published
from fromp.lab.results.format import Table, as_csv, duration, percent, points, results_table
from fromp.lab.results.published import Reported
from fromp.lab.results.record import COMPUTED, Experiment, Metric
from fromp.lab.results.store import HEADS
from fromp.lab.settings import as_text
from fromp.learn import pages

PICTURE_DPI = 170  # a single boundary; beside others it is shown at half the size
OF_A_STEP = "A task's time over its steps, the work at its end and the tests included."
TRANSFERS: dict[Metric, Mapping[tuple[str, str], Reported]] = {
    "backward_transfer": published.BACKWARD_TRANSFER, "forward_transfer": published.FORWARD_TRANSFER, "forgetting": {}
}  # fmt: skip
MEANINGS: dict[Metric, str] = {
    "average_accuracy": "the mean accuracy over all tasks after the last one.",
    "backward_transfer": "how much the accuracy on a task has changed since it was learned, the mean over all tasks "
    "but the last; below zero, tasks were forgotten.",
    "forward_transfer": "how much better a task was learned than by a network trained on it alone, the mean over all "
    "tasks but the first.",
    "forgetting": "the best accuracy that a task ever had, minus the last; the mean over all tasks but the last.",
}
Values = dict[str, Any]
NO_SNAPSHOTS = "There are no pictures, because the snapshots taken after each task are not beside results.json."


class Chart(NamedTuple):
    """A figure in a card."""

    title: str
    caption: str
    picture: str  # its address
    label: str  # read aloud to those who cannot see it


fill = partial(pages.fill, package="fromp.lab.report")


def render(experiments: Sequence[Experiment], out: Path) -> str:
    """The whole page as text, for a file in `out`."""
    several = len(experiments) > 1
    learned = [one for one in experiments if one.seeds]
    beside = [_with_transfer(one, learned) for one in learned] if several else []
    benchmarks = list(dict.fromkeys(one.benchmark for one in experiments))
    lead = "; ".join(BENCHMARKS[name].title for name in benchmarks if name in BENCHMARKS)
    names = ", ".join(one.name for one in experiments)
    single = f"{experiments[0].method} on {experiments[0].benchmark}"
    changed = {name for one in experiments for name in one.changed()}
    values = [value for one in learned for matrix in one.matrices for row in matrix for value in row or ()]
    lowest = 100 * min(values, default=1.0) if several else 100.0
    return fill(
        "report.html", several=several, panel="20rem" if several else "100%",
        title=f"{names} on {', '.join(benchmarks)}",
        headline=f"{len(experiments)} runs on {', '.join(benchmarks)}" if several else single,
        lead=lead[:1].upper() + lead[1:], notes=_notes(experiments),
        tiles=[] if several else list(_tiles(experiments[0])),
        comparison=results_table(beside) if several else None, comparison_charts=list(_comparison_charts(beside)),
        **_planes(learned),
        accuracy=[
            {"title": _of("Accuracy", one, several), "charts": list(_charts(one, several, lowest))} for one in learned
        ],
        detection=[
            {"title": _of("Task boundaries", one, several), "charts": charts}
            for one in learned
            if (charts := list(_detection(one)))
        ],
        galleries=[found for one in learned if (found := _gallery(one, several))],
        seeds=_seeds(learned) if learned else None,
        settings=_facts({one.name: one.settings for one in experiments}, changed),
        environment=_facts({one.name: one.environment for one in experiments}, set()),
        links=[_link(one, out) for one in experiments],
        meanings=[(_words(name), MEANINGS[name]) for name in MEANINGS if any(one.summary(name) for one in learned)],
        made=f"fromp {__version__}, {date.today().isoformat()}", commands=[_command(one) for one in experiments],
    )  # fmt: skip


def _notes(experiments: Sequence[Experiment]) -> list[tuple[str, str]]:
    """What a reader must know before comparing; what holds for several runs is said once, with their names."""
    names: dict[str, list[str]] = {}
    for one in experiments:
        for note in _notes_of(one):
            names.setdefault(note, []).append(one.name)
    return [(", ".join(of), note) for note, of in names.items()]


def _command(one: Experiment) -> str:
    """What learns the same again, and adds nothing if it is there."""
    seeds = [seed.seed for seed in one.recorded]
    which = f" --seeds {len(seeds)}" if seeds == list(range(len(seeds))) and len(seeds) > 1 else ""
    which = f" --seed {seeds[0]}" if len(seeds) == 1 and seeds[0] else which
    changes = "".join(f" --set {shlex.quote(f'{name}={as_text(value)}')}" for name, value in one.changed().items())
    return f"fromp run {shlex.quote(one.benchmark)} --method {shlex.quote(one.method)}{which}{changes}"


def _notes_of(one: Experiment) -> Iterator[str]:
    if plane.in_plane(one):
        yield "Accuracy is that on the training data, as the paper reports it for the toy."
    if not one.seeds:
        yield "No task has been learned yet."
    elif unfinished := len(one.seeds) - len(one.finished):
        rest = "they are left out below." if one.finished else "what there is so far is shown below."
        yield f"{unfinished} of {len(one.seeds)} seeds have not finished; {rest}"
    if changed := one.changed():
        settings = ", ".join(f"{_words(name)} = {_value(value)}" for name, value in changed.items())
        yield f"Settings other than the benchmark's own, so not the paper's protocol: {settings}."


def _tiles(one: Experiment) -> Iterator[Values]:
    sources: dict[Metric, Mapping[tuple[str, str], Reported]] = {
        "average_accuracy": published.AVERAGE_ACCURACY, **TRANSFERS
    }  # fmt: skip
    for metric, source in sources.items():
        if summary := one.summary(metric):
            mean, _, spread = _minus(percent(summary)).partition(" ± ")
            below = f"standard error, {summary.n} seeds" if summary.n > 1 else "one seed"
            lines = [below, _paper_note(source.get((one.benchmark, one.method)))]
            unit = f" ± {spread} %" if spread else " %"
            yield {"label": _words(metric).capitalize(), "number": mean, "unit": unit, "below": lines}
    if seconds := one.summary("seconds"):
        yield {"label": "Time", "number": duration(seconds.mean), "unit": "", "below": ["per seed, all tasks"]}


def _paper_note(reported: Reported | None) -> str:
    if reported is None:
        return ""
    return f"paper: {_minus(str(reported))} %" + (f" ({reported.describe()})" if reported.describe() else "")


def _with_transfer(one: Experiment, among: Sequence[Experiment]) -> Experiment:
    """With its forward transfer, if the networks trained on each task alone are on the same page."""
    alone = [other for other in among if (other.benchmark, other.method) == (one.benchmark, SEPARATE.name)]
    return one.with_forward_transfer(alone[0]) if alone and one.method != SEPARATE.name else one


def _comparison_charts(experiments: Sequence[Experiment]) -> Iterator[Chart]:
    keys = {one.name: (one.benchmark, one.method) for one in experiments}
    looks = {name: look(place) for name, place in zip(keys, places([one.method for one in experiments]), strict=True)}
    measured = {
        one.name: (100 * summary.mean, 100 * summary.stderr)
        for one in experiments
        if (summary := one.summary("average_accuracy"))
    }
    paper = {
        name: (reported.mean, reported.spread or 0.0)
        for name, key in keys.items()
        if (reported := published.AVERAGE_ACCURACY.get(key))
    }
    if measured:
        drawn = accuracy.final_accuracy(measured, paper, looks)
        yield _chart("After the last task", drawn, "Mean and standard error.")
    over_time = {one.name: one.matrices for one in experiments}
    if max((len(matrices[0]) for matrices in over_time.values()), default=0) > 1:
        drawn = accuracy.average_over_time(over_time, looks)
        yield _chart("As tasks come", drawn, "Bands are one standard error over seeds.")
    steps = {one.name: [ms for seed in _milliseconds(one) for ms in seed if not math.isnan(ms)] for one in experiments}
    costs = {name: statistics.mean(values) for name, values in steps.items() if values}
    if len(costs) > 1:
        yield _chart("Cost of a step", accuracy.step_costs(costs, looks), f"Mean over tasks and seeds. {OF_A_STEP}")


def _planes(experiments: Sequence[Experiment]) -> Values:
    """The decision boundary after each task, one panel per run in the plane, one slider for all."""
    shown, remembered = [], False
    dpi = PICTURE_DPI if len(experiments) == 1 else 0.6 * PICTURE_DPI
    for one in filter(plane.in_plane, experiments):
        pictures, note = [], NO_SNAPSHOTS
        try:
            boundaries = plane.boundaries(one, one.middle_seed)
            remembered = remembered or any(boundary.memory for boundary in boundaries)
            untrained = {task for task, row in enumerate(one.of(one.middle_seed).accuracy, start=1) if row is None}
            pictures = [
                (embed.png(decision_boundary(boundary), dpi), "not trained" if boundary.task in untrained else "")
                for boundary in boundaries
            ]
        except FrompError as error:
            note = str(error)
        shown.append({"title": f"{one.name}, seed {one.middle_seed}", "pictures": pictures, "note": note})
    key = [("class 0", MEMORY[0], "50%"), ("class 1", MEMORY[1], "0")]
    longest = max((len(panel["pictures"]) for panel in shown), default=0)
    return {"planes": shown, "longest": longest, "key": key if remembered else []}


def _charts(one: Experiment, several: bool, lowest: float) -> Iterator[Chart]:
    """lowest: the lowest accuracy of all runs on the page, in percent, so that their axes and shades are the same."""
    n, matrices = len(one.shown), one.matrices
    over = f"Mean over {n} seeds" if n > 1 else "One seed"
    bars, bands = (f"{over}; {what} are one standard error." if n > 1 else f"{over}." for what in ("bars", "bands"))
    drawn = accuracy.accuracy_matrix(matrices, min(90.0, lowest))
    yield _chart("Accuracy matrix", drawn, f"{over}.", one)
    if len([row for row in matrices[0] if row]) > 1:
        drawn = accuracy.accuracy_over_time(matrices, lowest)
        yield _chart("Accuracy over time", drawn, bands, one)
    if several:
        return
    if len(matrices[0]) > 2 and all(seed.forgetting is not None for seed in one.shown):
        lost = f"Best accuracy of a task before the last one was learned, minus its accuracy after. {bars}"
        yield _chart("Forgetting", accuracy.forgetting(matrices), lost, one)
    if steps := _milliseconds(one):
        yield _chart("Cost of a step", accuracy.cost(steps, "ms per step"), f"{OF_A_STEP} {bars}", one)
    elif times := [seed.task_seconds for seed in one.shown if len(seed.task_seconds) == len(matrices[0])]:
        yield _chart("Time", accuracy.cost(times, "seconds to learn it"), bars, one)


def _milliseconds(one: Experiment) -> list[list[float]]:
    """Milliseconds per step of each task, nan without steps, for seeds whose steps were counted: (seeds, tasks)."""
    return [
        [
            1e3 * seconds / steps if steps else math.nan
            for seconds, steps in zip(seed.task_seconds, seed.task_steps, strict=True)
        ]
        for seed in one.shown
        if len(seed.task_seconds) == len(seed.task_steps) == len(seed.accuracy)
    ]


def _detection(one: Experiment) -> Iterator[Chart]:
    """The detected task boundaries of task-free runs."""
    if trace := one.trace(one.middle_seed):
        note = f"Seed {one.middle_seed}: {len(trace.true)} changes, {len(trace.found)} announced and marked."
        for name, values in trace.values.items():
            yield _chart(name, statistic.boundaries(values.numpy(), name, trace.true, trace.found), note, one)


def _chart(title: str, figure: Figure, caption: str, one: Experiment | None = None) -> Chart:
    return Chart(title, caption, embed.svg(figure), title if one is None else f"{title} of {one.name}")


def _gallery(one: Experiment, several: bool) -> Values | None:
    """What is remembered of each task, if it is images."""
    if plane.in_plane(one):
        return None
    tasks: list[list[gallery.Remembered]] = []
    try:
        tasks, note = gallery.remembered(one), "" if one.snapshots(one.middle_seed) else NO_SNAPSHOTS
    except FrompError as error:
        note = str(error)
    if not tasks and not note:
        return None
    return {
        "title": _of("What is remembered", one, several), "note": note, "seed": one.middle_seed,
        "told": "The class of each image. They were drawn at random." if gallery.drawn(one)
        else "The class and the score of each image, the highest scores of each class first.",
        "tasks": [
            [
                {"picture": embed.pixels(image), "label": label, "score": "" if score is None else f" {score:.3f}"}
                for image, label, score in task
            ]
            for task in tasks
        ],
    }  # fmt: skip


def _seeds(experiments: Sequence[Experiment]) -> Table:
    rows = [
        [
            one.name, f"{seed.seed}",
            *("" if value is None else points(value) for value in (getattr(seed, metric) for metric in COMPUTED)),
            duration(seed.seconds), f"{len(seed.accuracy)} of {seed.tasks or '?'}",
        ]
        for one in experiments
        for seed in one.seeds
    ]  # fmt: skip
    heads = ["method", "seed", *map(_words, COMPUTED), "time", "tasks"]
    unfinished = any(len(one.finished) < len(one.seeds) for one in experiments)
    shown = slice(0 if len(experiments) > 1 else 1, None if unfinished else -1)
    return Table(heads[shown], [row[shown] for row in rows])


def _facts(by_name: Mapping[str, Mapping[str, Any]], bold: set[str]) -> Iterator[Values]:
    """Each key's value, or, where the runs differ, the value of each."""
    for key in dict.fromkeys(key for values in by_name.values() for key in values):
        texts = {name: _value(values[key]) for name, values in by_name.items() if key in values}
        same = len(texts) == len(by_name) and len(set(texts.values())) == 1
        text = next(iter(texts.values())) if same else "; ".join(f"{name}: {of}" for name, of in texts.items())
        yield {"name": _words(key), "text": text, "bold": key in bold}


def _link(one: Experiment, out: Path) -> dict[str, str]:
    rows = as_csv([HEADS, *one.cells()]) if one.seeds else ""
    where = quote(one.path.relative_to(out).joinpath("results.json").as_posix())
    return {"name": one.name, "address": where, "csv": rows and pages.address("text/csv", rows.encode())}


def _minus(text: str) -> str:
    """With a true minus."""
    return text.replace("-", "−")


def _of(title: str, one: Experiment, several: bool) -> str:
    return f"{title}: {one.name}" if several else title


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
