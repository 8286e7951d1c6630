"""Accuracy, forgetting and cost, of one experiment or several."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fromp.lab.report.figures.style import (
    COLOURS,
    INK,
    SHADES,
    SIZE,
    STYLE,
    Array,
    Look,
    look,
    new,
    plain,
    standard_error,
)
from fromp.lab.results.metrics import Matrix


@rc_context(STYLE)
def accuracy_matrix(matrices: Sequence[Matrix], lowest: float = 90.0) -> Figure:
    """R_ij, the mean over seeds: row i after training on task i, column j the accuracy on task j.

    lowest: the accuracy, in percent, whose shade is the palest; the same in figures that are to be compared.
    """
    mean = 100 * _stack(matrices).mean(0)
    num_tasks = len(mean)
    figure, axes = new((max(4.6, 0.52 * num_tasks), 1.5 + 1.9 * min(1.0, num_tasks / 3)))
    low = min(lowest, float(np.nanmin(mean)))
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
def accuracy_over_time(matrices: Sequence[Matrix], lowest: float = 100.0) -> Figure:
    """The accuracy on each task as later ones are learned: mean over seeds, and a band of one standard error.

    lowest: an accuracy, in percent, that the axis reaches down to; the same in figures that are to be compared.
    """
    values = 100 * _stack(matrices)
    num_tasks = values.shape[1]
    figure, axes = new()
    after = np.arange(1, num_tasks + 1)
    for task in range(num_tasks):
        _line(axes, after[task:], values[:, task:, task], look(task), f"task {task + 1}")
    average = np.stack([np.nanmean(values[:, i, :], axis=1) for i in range(num_tasks)], axis=1)
    axes.plot(after, average.mean(0), color=INK, linewidth=2.4, alpha=0.55, label="average", zorder=1)
    _accuracy_axis(axes, np.append(values, lowest))
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
def average_over_time(by_name: Mapping[str, Sequence[Matrix]], looks: Mapping[str, Look]) -> Figure:
    """The average accuracy over the tasks so far, a line for each method."""
    columns = min(3, len(by_name))
    rows = -(-len(by_name) // columns)
    figure, axes = new((SIZE[0], SIZE[1] + 0.18 * (rows - 1)))
    every, longest = [], 1
    for name, matrices in by_name.items():
        average = np.array([[100 * np.mean(row) if row else np.nan for row in matrix] for matrix in matrices])
        every.append(average.ravel())
        longest = max(longest, average.shape[1])
        _line(axes, np.arange(1, average.shape[1] + 1), average, looks[name], plain(name))
    _accuracy_axis(axes, np.concatenate(every))
    axes.set_ylabel("average accuracy so far, %")
    _task_axis(axes, np.arange(1, longest + 1), "tasks learned")
    figure.legend(loc="outside lower center", ncols=columns, columnspacing=1.2)
    return figure


@rc_context(STYLE)
def step_costs(by_name: Mapping[str, float], looks: Mapping[str, Look]) -> Figure:
    """Milliseconds per step, one bar per method."""
    figure, axes = _rows(by_name, 0.3, "ms per step")
    places = np.arange(len(by_name))
    axes.barh(places, list(by_name.values()), height=0.6, color=[looks[n].colour for n in by_name], alpha=0.85)
    for index, value in enumerate(by_name.values()):
        axes.annotate(f"{value:.3g}", (value, index), (3, 0), textcoords="offset points", va="center", color=INK)
    axes.set_xlim(0, 1.12 * max(by_name.values()))
    return figure


@rc_context(STYLE)
def final_accuracy(
    by_name: Mapping[str, tuple[float, float]], paper: Mapping[str, tuple[float, float]], looks: Mapping[str, Look]
) -> Figure:
    """The average accuracy after the last task, mean and standard error, beside the paper's, all in percent."""
    figure, axes = _rows(by_name, 0.36, "average accuracy, %", SIZE[1])
    places = np.arange(len(by_name))
    means, errors = np.array(list(by_name.values())).T
    colours = [looks[name].colour for name in by_name]
    axes.hlines(places, means - errors, means + errors, colors=colours, linewidth=2.2)
    axes.scatter(means, places, color=colours, s=44, zorder=3, label="measured")
    shown = [(index + 0.26, *paper[name]) for index, name in enumerate(by_name) if name in paper]
    if shown:
        below, values, spreads = zip(*shown, strict=True)
        axes.errorbar(values, below, xerr=spreads, fmt="D", color=INK, markersize=4, elinewidth=1, label="paper")
        figure.legend(loc="outside lower center", ncols=2)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure


def _rows(names: Iterable[str], height: float, label: str, least: float = 0.0) -> tuple[Figure, Axes]:
    """An empty figure with one row per name, the first on top, and at least so many inches high."""
    shown = [plain(name) for name in names]
    figure, axes = new((SIZE[0], max(0.9 + height * len(shown), least)))
    axes.set_yticks(np.arange(len(shown)), shown)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.grid(True, axis="x")
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
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


def _line(axes: Axes, x: NDArray[np.int64], values: Array, look: Look, label: str) -> None:
    mean, error = values.mean(0), standard_error(values)
    axes.plot(x, mean, color=look.colour, linestyle=look.line, marker=look.marker, label=label, zorder=3)
    if error is not None and len(x) > 1:
        axes.fill_between(x, mean - error, mean + error, color=look.colour, alpha=0.2, linewidth=0)
    elif error is not None:
        axes.vlines(x, mean - error, mean + error, color=look.colour, alpha=0.5)


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
