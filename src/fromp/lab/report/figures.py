"""Figures in one style: colour-blind safe, text as text, the same on light and dark paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fromp.lab.results.metrics import Matrix
from fromp.lab.results.published import Reported

# Okabe and Ito's colours, but for black and the yellow that white paper swallows.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
LINES = ("-", "--", ":")  # another line for each time round the colours
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#68707c"  # text, axes and neutral bars: readable on white and on black
MEMORY = ("#004c78", "#c26a00")  # of the two classes of points in the plane, darker than their data
SHADES = LinearSegmentedColormap.from_list("shades", ["#e6eef5", "#8fbbdb", "#2f86bf", "#0a4a7d"])

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9.5, "axes.titlesize": 9.5, "axes.labelsize": 9.5,
    "legend.fontsize": 8.5, "legend.frameon": False, "legend.handlelength": 2.2,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.linewidth": 0.7, "xtick.major.width": 0.7, "ytick.major.width": 0.7,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True,
    "grid.color": INK, "grid.alpha": 0.18, "grid.linewidth": 0.7,
    "lines.linewidth": 1.7, "lines.markersize": 4.5,
    "svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "fromp",
}  # fmt: skip

SIZE = (4.6, 3.1)  # inches: two beside each other on a page, one on a phone
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Boundary:
    """What a network in the plane predicts after some task, the data so far and what is remembered of it."""

    task: int  # how many were learned
    extent: tuple[float, float, float, float]  # left, right, bottom, top of the grid
    probability: Array  # of class 1, on a grid whose first row is the bottom
    points: Sequence[tuple[Array, Array]]  # inputs (n, 2) and labels (n,) of each task so far
    memory: Sequence[tuple[Array, Array]]


def save(figure: Figure, path: Path) -> list[Path]:
    """The figure as PDF, SVG and PNG at `path` with those suffixes; a directory that is missing is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{suffix}") for suffix in ("pdf", "svg", "png")]
    with rc_context(STYLE):
        for file in written:
            figure.savefig(file, dpi=200)
    return written


@rc_context(STYLE)
def accuracy_matrix(matrices: Sequence[Matrix]) -> Figure:
    """R_ij, the mean over seeds: row i after training on task i, column j the accuracy on task j."""
    mean = 100 * _stack(matrices).mean(0)
    num_tasks = len(mean)
    figure, axes = new((max(4.6, 0.52 * num_tasks), 1.5 + 1.9 * min(1.0, num_tasks / 5)))
    low = min(90.0, float(np.nanmin(mean)))
    norm = Normalize(low, max(float(np.nanmax(mean)), low + 5))
    size = 9.5 if num_tasks <= 7 else 8.5
    for (i, j), value in np.ndenumerate(mean):
        if not np.isnan(value):
            axes.add_patch(Rectangle((j + 0.02, i + 0.02), 0.96, 0.96, color=SHADES(norm(value)), linewidth=0))
            colour = "#ffffff" if norm(value) > 0.45 else "#12304a"
            axes.text(j + 0.5, i + 0.5, _short(value), ha="center", va="center", color=colour, fontsize=size)
    ticks = np.arange(num_tasks) + 0.5
    axes.set_xticks(ticks, [str(k + 1) for k in range(num_tasks)])
    axes.set_yticks(ticks, [str(k + 1) for k in range(num_tasks)])
    axes.set_xlabel("accuracy on task, %")
    axes.set_ylabel("after learning task")
    axes.set_xlim(0, num_tasks)
    axes.set_ylim(num_tasks, 0)
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


@rc_context(STYLE)
def accuracy_over_time(matrices: Sequence[Matrix]) -> Figure:
    """The accuracy on each task as later ones are learned: mean over seeds, and a band of one standard error."""
    values = 100 * _stack(matrices)
    num_tasks = values.shape[1]
    figure, axes = new()
    after = np.arange(1, num_tasks + 1)
    for task in range(num_tasks):
        _line(axes, after[task:], values[:, task:, task], task, f"task {task + 1}")
    average = np.stack([np.nanmean(values[:, i, :], axis=1) for i in range(num_tasks)], axis=1)
    axes.plot(after, average.mean(0), color=INK, linewidth=2.4, alpha=0.55, label="average", zorder=1)
    _accuracy_axis(axes, values)
    _task_axis(axes, after, "tasks learned")
    figure.legend(loc="outside lower center", ncols=min(4, num_tasks + 1), columnspacing=1.2)
    return figure


@rc_context(STYLE)
def forgetting(matrices: Sequence[Matrix]) -> Figure:
    """For each past task, the best accuracy ever reached minus the last: mean over seeds, and its standard error."""
    values = 100 * _stack(matrices)
    num_tasks = values.shape[1]
    lost = np.stack([np.max(values[:, j:-1, j], axis=1) - values[:, -1, j] for j in range(num_tasks - 1)], axis=1)
    figure, axes = new()
    _bars(axes, lost)
    axes.axhline(0, color=INK, linewidth=0.7)
    _task_axis(axes, np.arange(1, num_tasks), "task")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.1), max(high, 1.0))
    axes.set_ylabel("points lost since its best")
    return figure


@rc_context(STYLE)
def cost(by_run: Sequence[Sequence[float]], label: str) -> Figure:
    """What each task took: mean over seeds, and its standard error."""
    values = np.array(by_run, dtype=float)
    figure, axes = new()
    _bars(axes, values)
    _task_axis(axes, np.arange(1, values.shape[1] + 1), "task")
    axes.set_ylim(bottom=0)
    axes.set_ylabel(label)
    return figure


@rc_context(STYLE)
def average_over_time(by_name: Mapping[str, Sequence[Matrix]]) -> Figure:
    """The average accuracy over the tasks so far, a line for each method."""
    columns = min(3, len(by_name))
    rows = -(-len(by_name) // columns)
    figure, axes = new((SIZE[0], SIZE[1] + 0.18 * (rows - 1)))
    every, longest = [], 1
    for place, (name, matrices) in enumerate(by_name.items()):
        average = np.array([[100 * np.mean(row) if row else np.nan for row in matrix] for matrix in matrices])
        every.append(average.ravel())
        longest = max(longest, average.shape[1])
        _line(axes, np.arange(1, average.shape[1] + 1), average, place, plain(name))
    _accuracy_axis(axes, np.concatenate(every))
    axes.set_ylabel("average accuracy so far, %")
    _task_axis(axes, np.arange(1, longest + 1), "tasks learned")
    figure.legend(loc="outside lower center", ncols=columns, columnspacing=1.2)
    return figure


@rc_context(STYLE)
def step_costs(by_name: Mapping[str, float]) -> Figure:
    """Milliseconds of a step, a bar for each method."""
    figure, axes = new((4.6, 0.9 + 0.3 * len(by_name)))
    places = np.arange(len(by_name))
    axes.barh(places, list(by_name.values()), height=0.6, color=COLOURS[0], alpha=0.85)
    for place, value in enumerate(by_name.values()):
        axes.annotate(f"{value:.3g}", (value, place), (3, 0), textcoords="offset points", va="center", color=INK)
    axes.set_yticks(places, [plain(name) for name in by_name])
    axes.set_ylim(len(by_name) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(by_name.values()))
    axes.set_xlabel("ms a step")
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


@rc_context(STYLE)
def final_accuracy(by_name: Mapping[str, tuple[float, float]], paper: Mapping[str, Reported]) -> Figure:
    """The average accuracy after the last task, mean and standard error, beside what the paper reports."""
    figure, axes = new((4.6, 0.9 + 0.36 * len(by_name)))
    places = np.arange(len(by_name))
    means = np.array([100 * mean for mean, _ in by_name.values()])
    errors = np.array([100 * error for _, error in by_name.values()])
    colours = [COLOURS[place % len(COLOURS)] for place in places]
    axes.hlines(places, means - errors, means + errors, colors=colours, linewidth=2.2)
    axes.scatter(means, places, color=colours, s=44, zorder=3, label="measured")
    shown = [(place, paper[name]) for place, name in enumerate(by_name) if name in paper]
    if shown:
        values = [reported.mean for _, reported in shown]
        spreads = [reported.spread or 0.0 for _, reported in shown]
        below = np.array([place for place, _ in shown]) + 0.26
        axes.errorbar(values, below, xerr=spreads, fmt="D", color=INK, markersize=4, elinewidth=1, label="paper")
        figure.legend(loc="outside lower center", ncols=2)
    axes.set_yticks(places, [plain(name) for name in by_name])
    axes.set_ylim(len(by_name) - 0.4, -0.6)
    axes.set_xlabel("average accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


@rc_context(STYLE)
def decision_boundary(boundary: Boundary) -> Figure:
    """One panel of `toy_strip`, transparent, without a caption."""
    figure = Figure(figsize=(4.4, 4.4 * _aspect(boundary)))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    _draw_boundary(axes, boundary)
    return figure


@rc_context(STYLE)
def toy_strip(boundaries: Sequence[Boundary], captions: Sequence[str] | None = None) -> Figure:
    """Panels in the plane beside each other; without captions, the paper's toy figure, which says after which task."""
    width, gap = 4.0, 0.12
    height, count = width * _aspect(boundaries[0]), len(boundaries)
    whole = count * width + (count - 1) * gap
    caption = 0.36
    figure = Figure(figsize=(whole, height + caption), facecolor="none")
    said = captions or [f"after task {boundary.task}" for boundary in boundaries]
    for place, (boundary, text) in enumerate(zip(boundaries, said, strict=True)):
        left = place * (width + gap) / whole
        axes = figure.add_axes((left, caption / (height + caption), width / whole, height / (height + caption)))
        _draw_boundary(axes, boundary)
        axes.text(0.5, -0.04, text, transform=axes.transAxes, ha="center", va="top", color=INK, fontsize=13)
    return figure


def _draw_boundary(axes: Axes, boundary: Boundary) -> None:
    """Tints that grow with confidence, the line where neither class is likelier, dots, and large outlined memory."""
    left, right, bottom, top = boundary.extent
    p = boundary.probability
    tint = np.empty((*p.shape, 4))
    tint[..., :3] = np.where((p > 0.5)[..., None], to_rgb(COLOURS[1]), to_rgb(COLOURS[0]))
    tint[..., 3] = 0.05 + 0.23 * np.abs(2 * p - 1)
    axes.imshow(tint, extent=boundary.extent, origin="lower", interpolation="nearest", aspect="auto")
    if p.min() < 0.5 < p.max():
        axes.contour(p, levels=[0.5], extent=boundary.extent, colors=[INK], linewidths=1.3)
    for task, (x, y) in enumerate(boundary.points, start=1):
        alpha = 0.75 if task == boundary.task else 0.3
        colours = np.where(y == 1, COLOURS[1], COLOURS[0])
        # Thousands of vector dots would make a file of megabytes; everything else stays vectors.
        axes.scatter(x[:, 0], x[:, 1], s=2.2, c=colours, alpha=alpha, linewidths=0, zorder=2, rasterized=True)
    for x, y in boundary.memory:
        for label, (colour, marker) in enumerate(zip(MEMORY, ("o", "s"), strict=True)):
            of_class = x[y == label]
            axes.scatter(
                of_class[:, 0], of_class[:, 1], s=42, c=colour, marker=marker, edgecolors="white", linewidths=1.1,
                zorder=4,
            )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()


def _aspect(boundary: Boundary) -> float:
    left, right, bottom, top = boundary.extent
    return (top - bottom) / (right - left)


@rc_context(STYLE)
def step_cost(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Milliseconds of a step against the number of past tasks: all of them, two drawn a step, and plain training."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(figsize=(4.0 * len(networks), 3.1), facecolor="none", layout="constrained")
    for place, network in enumerate(networks):
        axes = figure.add_subplot(1, len(networks), place + 1, facecolor="none")
        own = [row for row in rows if row["network"] == network]
        tasks = [row["past_tasks"] for row in own]
        lines = {
            "plain": "plain Adam, as many samples",
            "fromp": "all past tasks",
            "two tasks a step": "two drawn a step",
        }
        for k, (case, label) in enumerate(lines.items()):
            milliseconds = [1e3 * row["seconds"][case] for row in own]
            axes.plot(tasks, milliseconds, color=COLOURS[k], marker=MARKERS[k], label=label if place == 0 else None)
        axes.set_xticks(tasks)
        axes.set_xlabel(f"past tasks ({network})")
        axes.set_ylim(bottom=0)
        if place == 0:
            axes.set_ylabel("ms a step")
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2)
    return figure


@rc_context(STYLE)
def boundaries(values: Array, label: str, true: Sequence[int], found: Sequence[int]) -> Figure:
    """A detector's statistic over minibatches, the true changes of task and those found."""
    figure, axes = new()
    draw_statistic(axes, values, true, found)
    axes.set_ylabel(label)
    if len(true) or len(found):
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def draw_statistic(axes: Axes, values: Array, true: Sequence[int], found: Sequence[int]) -> None:
    """A band from the lowest to the highest value of each stretch, and a mark where a task was found to begin."""
    stretches = np.array_split(np.arange(len(values)), min(len(values), 300))
    middle = [stretch.mean() for stretch in stretches]
    axes.fill_between(
        middle, [values[stretch].min() for stretch in stretches], [values[stretch].max() for stretch in stretches],
        color=COLOURS[0], alpha=0.3, linewidth=0, step="mid",
    )  # fmt: skip
    axes.plot(middle, [values[stretch].mean() for stretch in stretches], color=COLOURS[0], linewidth=1.1)
    for place, start in enumerate(true):
        axes.axvline(start, color=INK, linewidth=0.8, linestyle=":", label=None if place else "a task begins")
    if len(found):
        axes.scatter(found, values[np.array(found)], s=22, color=COLOURS[3], zorder=4, label="found")
    axes.set_xlim(0, len(values))
    axes.set_xlabel("minibatches")


def new(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """An empty figure of one panel, transparent."""
    figure = Figure(figsize=size, facecolor="none", layout="constrained")
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    return figure, axes


def _stack(matrices: Sequence[Matrix]) -> Array:
    """Accuracy matrices of several runs as one array, nan where a task was not yet seen: (runs, i, j)."""
    num_tasks = len(matrices[0])
    stacked = np.full((len(matrices), num_tasks, num_tasks), np.nan)
    for run, matrix in enumerate(matrices):
        for i, row in enumerate(matrix):
            if row is not None:
                stacked[run, i, : i + 1] = row
    return stacked


def standard_error(values: Array) -> Array | None:
    """Of the mean over runs, the first axis; None for a single run."""
    return values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None


def _line(axes: Axes, x: NDArray[np.int64], values: Array, place: int, label: str) -> None:
    colour = COLOURS[place % len(COLOURS)]
    mean, error = values.mean(0), standard_error(values)
    axes.plot(
        x, mean, color=colour, linestyle=LINES[place // len(COLOURS) % len(LINES)],
        marker=MARKERS[(place + place // len(COLOURS)) % len(MARKERS)], label=label, zorder=3,
    )  # fmt: skip
    if error is not None and len(x) > 1:
        axes.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    elif error is not None:
        axes.vlines(x, mean - error, mean + error, color=colour, alpha=0.5)


def _bars(axes: Axes, values: Array) -> None:
    """A bar for each column of (runs, tasks), in the task's own colour."""
    tasks = np.arange(1, values.shape[1] + 1)
    colours = [COLOURS[(task - 1) % len(COLOURS)] for task in tasks]
    axes.bar(tasks, values.mean(0), width=0.62, color=colours, alpha=0.85)
    error = standard_error(values)
    if error is not None:
        axes.errorbar(tasks, values.mean(0), yerr=error, fmt="none", ecolor=INK, elinewidth=1.3, capsize=3)


def _accuracy_axis(axes: Axes, values: Array) -> None:
    """At least five points high, so that differences in the noise do not look like news."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    low = min(low, high - 5)
    pad = 0.05 * (high - low)
    axes.set_ylim(low - pad, min(high + pad, 100 + pad))
    axes.set_ylabel("accuracy, %")


def _task_axis(axes: Axes, tasks: NDArray[np.int64], label: str) -> None:
    axes.set_xticks(tasks)
    axes.set_xlim(tasks[0] - 0.5, tasks[-1] + 0.5)
    axes.set_xlabel(label)


def _short(percent: float) -> str:
    return "100" if percent >= 99.95 else f"{percent:.1f}"


def plain(name: str) -> str:
    """A name that matplotlib does not take for mathematics, nor hide because it starts with an underscore."""
    return name.lstrip("_").replace("$", r"\$")
