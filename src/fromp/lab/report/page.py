"""The page, section by section."""

import html
import statistics
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, get_args
from urllib.parse import quote

from matplotlib.figure import Figure

from fromp.foundation.errors import FrompError
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.report import embed, figures, gallery, plane
from fromp.lab.results import format, published
from fromp.lab.results.metrics import Summary, summarise
from fromp.lab.results.published import Reported
from fromp.lab.results.record import Experiment, Metric, SeedResult

PICTURE_DPI = 170  # of a boundary on its own; beside others it is shown at half the size


def render(experiments: Sequence[Experiment], out: Path) -> str:
    """The whole page as text, for a file in `out`."""
    several = len(experiments) > 1
    learned = [one for one in experiments if one.seeds]
    sections = [
        _headline(experiments),
        _comparison(learned) if several else "",
        _boundaries(learned),
        *(_charts(one, several) for one in learned),
        *(_detection(one, several) for one in learned),
        *(_gallery(one, several) for one in learned),
        _seeds(learned) if learned else "",
        _facts(experiments),
        _raw(experiments, out),
    ]
    template = Template(files("fromp.lab.report").joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        title=html.escape(_title(experiments)),
        panel="20rem" if several else "100%",
        content="\n".join(part for part in sections if part),
    )


def _title(experiments: Sequence[Experiment]) -> str:
    names = ", ".join(one.name for one in experiments)
    return f"{names} on {', '.join(dict.fromkeys(one.benchmark for one in experiments))}"


def _headline(experiments: Sequence[Experiment]) -> str:
    benchmarks = dict.fromkeys(one.benchmark for one in experiments)
    lead = "; ".join(BENCHMARKS[name].title for name in benchmarks if name in BENCHMARKS)
    if len(experiments) == 1:
        (only,) = experiments
        title = f"{_escape(only.method)} on {_escape(only.benchmark)}"
        rest = _states(experiments) + _tiles(only)
    else:
        title = f"{len(experiments)} runs on {_escape(', '.join(benchmarks))}"
        rest = _states(experiments)
    return f'<header><h1>{title}</h1><p class="lead">{_escape(lead[:1].upper() + lead[1:])}</p>{rest}</header>'


def _states(experiments: Sequence[Experiment]) -> str:
    """What a reader must know before comparing; what holds for several runs is said once."""
    names: dict[str, list[str]] = {}
    for one in experiments:
        for note in _notes(one):
            names.setdefault(note, []).append(one.name)
    several = len(experiments) > 1
    who = {note: f"<b>{_escape(', '.join(of))}</b>: " if several else "" for note, of in names.items()}
    return "".join(f'<p class="note warn">{who[note]}{_escape(note)}</p>' for note in names)


def _notes(one: Experiment) -> Iterator[str]:
    if not one.seeds:
        yield "No task has been learned yet."
    elif unfinished := len(one.seeds) - len(one.finished):
        yield (
            f"{unfinished} of {len(one.seeds)} seeds have not finished; "
            + ("they are left out below." if one.finished else "what there is so far is shown below.")
        )
    if changed := one.changed():
        settings = ", ".join(f"{_words(name)} = {_value(one.settings[name])}" for name in changed)
        yield f"Settings other than the benchmark's own, so not the paper's protocol: {settings}."


def _tiles(one: Experiment) -> str:
    key = (one.benchmark, one.method)
    shown = [
        ("Average accuracy", one.summary("average_accuracy"), published.AVERAGE_ACCURACY.get(key)),
        ("Backward transfer", one.summary("backward_transfer"), published.BACKWARD_TRANSFER.get(key)),
        ("Forward transfer", one.summary("forward_transfer"), published.FORWARD_TRANSFER.get(key)),
        ("Forgetting", one.summary("forgetting"), None),
    ]
    tiles = [_tile(label, summary, reported) for label, summary, reported in shown if summary]
    if seconds := one.summary("seconds"):
        tiles.append(_plain_tile("Time", format.duration(seconds.mean), "a seed, all tasks"))
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _tile(label: str, summary: Summary, reported: Reported | None) -> str:
    mean, _, spread = _percent(summary).partition(" ± ")
    n = summary.n
    number = f"{mean}<small>{f' ± {spread}' if spread else ''} %</small>"
    below = f"standard error, {n} seeds" if n > 1 else "one seed"
    return _plain_tile(label, number, below, _paper_note(reported))


def _plain_tile(label: str, number: str, *below: str) -> str:
    lines = "".join(f"<span>{line}</span>" for line in below if line)
    return f'<div class="card tile"><span class="label">{label}</span><b>{number}</b>{lines}</div>'


def _paper_note(reported: Reported | None) -> str:
    if reported is None:
        return ""
    described = reported.describe()
    return f"paper: {_reported(reported)} %" + (f" ({described})" if described else "")


def _reported(reported: Reported | None) -> str:
    return "" if reported is None else str(reported).replace("-", "−")


def _comparison(experiments: Sequence[Experiment]) -> str:
    experiments = [_with_transfer(one, experiments) for one in experiments]
    metrics = [metric for metric in get_args(Metric) if metric not in ("average_accuracy", "seconds")]
    shown = [name for name in metrics if any(one.summary(name) for one in experiments)]
    rows = []
    for one in experiments:
        key = (one.benchmark, one.method)
        accuracy = one.summary("average_accuracy")
        reported = published.AVERAGE_ACCURACY.get(key)
        rows.append(
            [
                (one.name, None),
                (_percent(accuracy), _mean(accuracy)),
                (_reported(reported), "" if reported is None else reported.mean),
                *((_percent(one.summary(name)), _mean(one.summary(name))) for name in shown),
                (len(one.finished), len(one.finished)),
                (format.duration(_mean(one.summary("seconds")) or 0.0), _mean(one.summary("seconds"))),
            ]
        )
    heads = ["method", "average accuracy", "paper", *(_words(name) for name in shown), "seeds", "time a seed"]
    table = _table(heads, rows)
    measured = {
        one.name: (summary.mean, summary.stderr) for one in experiments if (summary := one.summary("average_accuracy"))
    }
    reports = {
        one.name: published.AVERAGE_ACCURACY[one.benchmark, one.method]
        for one in experiments
        if (one.benchmark, one.method) in published.AVERAGE_ACCURACY
    }
    over_time = {one.name: one.matrices for one in experiments}
    charts = []
    if measured:
        charts.append(
            _chart("After the last task", figures.final_accuracy(measured, reports), "Mean and standard error.")
        )
    if over_time and max(len(of[0]) for of in over_time.values()) > 1:
        charts.append(
            _chart("As tasks come", figures.average_over_time(over_time), "Bands are one standard error over seeds.")
        )
    costs = {one.name: statistics.mean(of) for one in experiments if (of := _all_steps(one))}
    if len(costs) > 1:
        charts.append(_chart("Cost of a step", figures.step_costs(costs), f"Mean over tasks and seeds. {OF_A_STEP}"))
    return (
        "<section><h2>Comparison</h2>"
        '<p class="note">In percent, mean ± standard error over seeds. Select a heading to sort by it.</p>'
        f'<div class="card scroll">{table}</div><div class="charts">{"".join(charts)}</div></section>'
    )


def _with_transfer(one: Experiment, among: Sequence[Experiment]) -> Experiment:
    """With its forward transfer, if the networks trained on each task alone are on the same page."""
    alone = [other for other in among if (other.benchmark, other.method) == (one.benchmark, "separate")]
    return one.with_forward_transfer(alone[0]) if alone and one.method != "separate" else one


def _boundaries(experiments: Sequence[Experiment]) -> str:
    """The decision boundary after each task, a panel for each run in the plane, one slider for all."""
    panels, longest, key = [], 1, ""
    dpi = PICTURE_DPI if len(experiments) == 1 else 0.6 * PICTURE_DPI
    for one in filter(plane.in_plane, experiments):
        title = f"<h3>{_escape(one.name)}, seed {one.middle_seed}</h3>"
        try:
            drawn = plane.boundaries(one, one.middle_seed)
        except FrompError as error:
            panels.append(f'<div class="card">{title}<p class="note">{_escape(error)}</p></div>')
            continue
        if not drawn:
            panels.append(f'<div class="card">{title}{_no_snapshots(one)}</div>')
            continue
        longest = max(longest, len(drawn))
        key = _key() if any(boundary.memory for boundary in drawn) else key
        pictures = "".join(
            f'<figure><img src="{embed.png(figures.decision_boundary(boundary), dpi)}" '
            f'alt="decision boundary after task {boundary.task}">'
            f"<figcaption>task {boundary.task}</figcaption></figure>"
            for boundary in drawn
        )
        panels.append(
            f'<div class="card panel">{title}<img class="stage" alt="" hidden><div class="strip">{pictures}</div></div>'
        )
    if not panels:
        return ""
    controls = (
        '<div class="controls" hidden><button type="button">Play</button>'
        f'<input type="range" min="1" max="{longest}" value="{longest}" aria-label="task"><output></output></div>'
        if any("panel" in panel for panel in panels)
        else ""
    )
    mode = "boundaries" if controls else "absent"
    return (
        f'<section class="{mode}"><h2>Decision boundary</h2>'
        '<p class="note">What the network predicts after each task: the tint is the likelier class, paler where it is '
        "unsure; small dots are the data so far, faint once their task is over. The run shown has the median accuracy."
        f"</p>{key}{controls}"
        f'<div class="panels">{"".join(panels)}</div></section>'
    )


def _key() -> str:
    marks = (("class 0", figures.MEMORY[0], "50%"), ("class 1", figures.MEMORY[1], "0"))
    keys = "".join(
        f'<span><i style="background:{colour};border-radius:{radius}"></i>remembered, {name}</span>'
        for name, colour, radius in marks
    )
    return f'<div class="key">{keys}</div>'


def _charts(one: Experiment, several: bool) -> str:
    n, matrices = len(one.shown), one.matrices
    over = f"Mean over {n} seeds" if n > 1 else "One seed"
    spread = "; {} are one standard error" if n > 1 else ""
    bars, bands = over + spread.format("bars") + ".", over + spread.format("bands") + "."
    charts = [_chart("Accuracy matrix", figures.accuracy_matrix(matrices), f"{over}.", one)]
    if len(matrices[0]) > 1:
        charts.append(_chart("Accuracy over time", figures.accuracy_over_time(matrices), bands, one))
        if not several:
            lost = f"Best accuracy of a task before the last one was learned, minus its accuracy after. {bars}"
            charts.append(_chart("Forgetting", figures.forgetting(matrices), lost, one))
    if not several:
        charts += _cost(one, bars)
    return f'<section><h2>{_of("Accuracy", one, several)}</h2><div class="charts">{"".join(charts)}</div></section>'


def _cost(one: Experiment, bars: str) -> list[str]:
    """What a step of each task took or, where steps were not counted, the task; nothing where it was not timed."""
    if steps := _steps(one):
        return [_chart("Cost of a step", figures.cost(steps, "ms a step"), f"{OF_A_STEP} {bars}", one)]
    times = [run.task_seconds for run in _timed(one)]
    return [_chart("Time", figures.cost(times, "seconds to learn it"), bars, one)] if times else []


OF_A_STEP = "A task's time over its steps, the work at its end and the tests included."


def _timed(one: Experiment) -> list[SeedResult]:
    return [run for run in one.shown if len(run.task_seconds) == len(one.matrices[0])]


def _steps(one: Experiment) -> list[list[float]]:
    """Milliseconds of a step of each task, for the runs whose steps were counted: (runs, tasks)."""
    return [
        [1e3 * seconds / steps for seconds, steps in zip(run.task_seconds, run.task_steps, strict=True)]
        for run in _timed(one)
        if len(run.task_steps) == len(run.task_seconds) and all(run.task_steps)
    ]


def _all_steps(one: Experiment) -> list[float]:
    return [milliseconds for run in _steps(one) for milliseconds in run]


def _detection(one: Experiment, several: bool) -> str:
    """Where tasks were found to begin, for runs that were not told."""
    trace = one.trace(one.middle_seed)
    if trace is None:
        return ""
    note = f"Seed {one.middle_seed}: {len(trace.true)} changes, {len(trace.found)} announced and marked."
    charts = [
        _chart(name, figures.boundaries(values.numpy(), name, trace.true, trace.found), note, one)
        for name, values in trace.values.items()
    ]
    return (
        f'<section><h2>{_of("Task boundaries", one, several)}</h2><div class="charts">{"".join(charts)}</div></section>'
    )


def _chart(title: str, figure: Figure, caption: str, one: Experiment | None = None) -> str:
    label = title if one is None else f"{title} of {one.name}"
    return (
        f'<figure class="card"><h3>{_escape(title)}</h3><figcaption>{_escape(caption)}</figcaption>'
        f"{embed.svg(figure, label)}</figure>"
    )


def _gallery(one: Experiment, several: bool) -> str:
    """What is remembered of each task, if it is images."""
    if plane.in_plane(one):
        return ""
    try:
        tasks = gallery.remembered(one)
        missing = "" if one.snapshots(one.middle_seed) else _no_snapshots(one)
    except FrompError as error:
        tasks, missing = [], f'<p class="note">{_escape(error)}</p>'
    if not tasks and not missing:
        return ""
    told = (
        "The class of each image. They were drawn at random."
        if gallery.drawn(one)
        else "The class and the score of each image, the highest scores of each class first."
    )
    shown = "".join(_remembered(place, images) for place, images in enumerate(tasks, start=1) if images)
    return (
        f"<section><h2>{_of('What is remembered', one, several)}</h2>"
        f'<p class="note">{told} Pixels that a task permutes are put back in their places. Seed {one.middle_seed}.</p>'
        f'<div class="card">{shown or missing}</div></section>'
    )


def _remembered(task: int, images: Sequence[gallery.Remembered]) -> str:
    items = "".join(
        f'<figure><img src="{embed.pixels(one.image)}" alt="class {one.label}">'
        f"<figcaption><b>{one.label}</b>{'' if one.score is None else f' {one.score:.2f}'}</figcaption></figure>"
        for one in images
    )
    return f'<h3>Task {task}</h3><div class="gallery">{items}</div>'


def _seeds(experiments: Sequence[Experiment]) -> str:
    several = len(experiments) > 1
    unfinished = any(len(one.finished) < len(one.seeds) for one in experiments)
    heads = ["seed", "average accuracy", "backward transfer", "forgetting", "time"]
    heads = ["method"] * several + heads + ["tasks"] * unfinished
    rows = [
        [
            *([(one.name, None)] * several),
            (run.seed, run.seed),
            *map(_points, (run.average_accuracy, run.backward_transfer, run.forgetting)),
            (format.duration(run.seconds), run.seconds),
            *([(f"{len(run.accuracy)} of {run.tasks or '?'}", len(run.accuracy))] * unfinished),
        ]
        for one in experiments
        for run in one.seeds
    ]
    return (
        '<section><h2>Every seed</h2><p class="note">In percent. Select a heading to sort by it.</p>'
        f'<div class="card scroll">{_table(heads, rows)}</div></section>'
    )


def _facts(experiments: Sequence[Experiment]) -> str:
    changed = {name for one in experiments for name in one.changed()}
    settings = _merged([(one.name, one.settings) for one in experiments])
    environment = _merged([(one.name, one.environment) for one in experiments])
    return (
        '<section><h2>Settings and environment</h2><p class="note">Bold: not the benchmark\'s own.</p>'
        f'<div class="charts"><div class="card">{_list(settings, changed)}</div>'
        f'<div class="card">{_list(environment, set())}</div></div></section>'
    )


def _merged(of: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Each key's value, or, where the runs differ, the value of each."""
    merged = {}
    for key in dict.fromkeys(key for _, values in of for key in values):
        texts = {name: _value(values.get(key)) for name, values in of}
        same = len(set(texts.values())) == 1
        merged[key] = next(iter(texts.values())) if same else "; ".join(f"{n}: {text}" for n, text in texts.items())
    return merged


def _list(values: dict[str, str], bold: set[str]) -> str:
    rows = "".join(
        f"<tr{' class=new' if name in bold else ''}><th>{_escape(_words(name))}</th><td>{_escape(text)}</td></tr>"
        for name, text in values.items()
    )
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _raw(experiments: Sequence[Experiment], out: Path) -> str:
    links = []
    for one in experiments:
        address = quote(one.path.relative_to(out).joinpath("results.json").as_posix())
        links.append(f'{_escape(one.name)}: <a href="./{address}">results.json</a>')
        if one.seeds:
            matrix = embed.csv(_matrix_rows(one))
            links.append(f'<a download="accuracy.csv" href="{matrix}">accuracy.csv</a>')
    return f"<footer>{' · '.join(links)}</footer>"


def _matrix_rows(one: Experiment) -> list[list[Any]]:
    return [["seed", "after_task", "task", "accuracy"], *(list(cell) for cell in one.cells())]


def _table(heads: Sequence[str], rows: Iterable[Sequence[tuple[object, object]]]) -> str:
    """A sortable table; each cell is its text and the number it sorts by, None to sort by the text."""
    head = "".join(f"<th>{_escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(_cell(*cell) for cell in row)}</tr>" for row in rows)
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: object, value: object) -> str:
    mark = "" if value is None else f' data-value="{_escape(value)}"'
    return f"<td{mark}>{_escape(text)}</td>"


def _percent(summary: Summary | None) -> str:
    """Mean and standard error in percent, with a true minus, and none before zero."""
    return format.percent(summary).replace("-", "−")


def _points(fraction: float | None) -> tuple[str, object]:
    return ("–", "") if fraction is None else (_percent(summarise([fraction])), fraction)


def _mean(summary: Summary | None) -> Any:
    return "" if summary is None else summary.mean


def _of(title: str, one: Experiment, several: bool) -> str:
    return f"{title}: {_escape(one.name)}" if several else title


def _words(name: str) -> str:
    return name.replace("_", " ")


def _no_snapshots(one: Experiment) -> str:
    return (
        '<p class="note">There are no pictures, because the snapshots taken after each task are not beside '
        f"results.json (seeds/{one.middle_seed}/tasks).</p>"
    )


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escape(text: object) -> str:
    return html.escape(str(text))
