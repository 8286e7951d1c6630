"""The figures of the paper that are not about a single run; their style is that of `fromp.lab.report.figures`."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from fromp.lab.methods import METHODS
from fromp.lab.report.figures.statistic import draw_statistic
from fromp.lab.report.figures.style import COLOURS, INK, MARKERS, STYLE, Array, new, plain, standard_error
from fromp.lab.results.format import seeds_of

UNTESTED = 10  # minibatches at the start that are not drawn: their statistics would set the scale


@rc_context(STYLE)
def task_bars(title: str, by_method: Mapping[str, Array], limits: Mapping[str, Array]) -> Figure:
    """The accuracy on each task after the last one, (seeds, tasks), and their average; limits as lines across."""
    every = [_with_average(values) for values in [*by_method.values(), *limits.values()]]
    labels = {method: _counted(method, [len(values)]) for method, values in {**by_method, **limits}.items()}
    groups = np.arange(every[0].shape[1], dtype=float)
    groups[-1] += 0.4  # the average stands apart
    figure, axes = new((8.0, 3.6))
    width = 0.8 / len(by_method)
    for place, (method, values) in enumerate(by_method.items()):
        at = groups + (place - (len(by_method) - 1) / 2) * width
        mean, error = _with_average(values).mean(0), standard_error(_with_average(values))
        axes.bar(at, mean, 0.9 * width, color=_colour(method, place), alpha=0.88, label=labels[method])
        if error is not None:
            axes.errorbar(at, mean, yerr=error, fmt="none", ecolor=INK, elinewidth=1.1, capsize=2)
    for method, values in limits.items():
        mean = _with_average(values).mean(0)
        line: Literal["solid", "dashed"] = "dashed" if METHODS[method].needs_task_at_test else "solid"
        left, right = groups - 0.45, groups + 0.45
        axes.hlines(
            mean, left, right, colors=INK, linestyles=line, linewidth=1.4, label=_counted(method, [len(values)])
        )
    axes.set_ylim(0, 100)  # a bar's length is the accuracy
    axes.set_title(title)
    axes.set_xticks(groups, [*(f"task {k + 1}" for k in range(len(groups) - 1)), "average"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("accuracy after the last task, %")
    shown = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = list(labels.values())
    figure.legend([shown[name] for name in order], order, loc="outside lower center", ncols=4, columnspacing=1.4)
    return figure


@rc_context(STYLE)
def against(title: str, by_method: Mapping[str, Mapping[float, Array]], label: str) -> Figure:
    """The average accuracy, (seeds,), against a setting on a logarithmic axis; bars are one standard error."""
    figure, axes = new((5.4, 3.8))
    for place, (method, by_value) in enumerate(by_method.items()):
        settings = sorted(by_value)
        mean = np.array([by_value[value].mean() for value in settings])
        errors = [standard_error(by_value[value]) for value in settings]
        spread = np.array([0.0 if error is None else float(error) for error in errors])
        axes.errorbar(
            settings, mean, yerr=spread, color=_colour(method, place), marker=MARKERS[place], capsize=2.5,
            elinewidth=1.2, label=_counted(method, [len(by_value[value]) for value in settings]),
        )  # fmt: skip
    ticks = sorted({value for by_value in by_method.values() for value in by_value})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, high - 1), high)  # at least a point high: less would be noise
    axes.set_ylabel("average accuracy, %")
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2)
    return figure


@rc_context(STYLE)
def memorable(title: str, most: Array, least: Array, columns: int = 5) -> Figure:
    """Two sets of pictures, (n, height, width, 3), beside each other."""
    rows, side, gap, top = -(-len(most) // columns), 0.56, 0.5, 0.62
    block = columns * side
    size = (2 * block + gap, rows * side + top)
    figure = Figure(figsize=size, facecolor="none")
    figure.text(0.5, 1 - 0.08 / size[1], title, ha="center", va="top", color=INK, fontsize=11)
    for left, pictures, text in ((0.0, most, "most memorable"), (block + gap, least, "least memorable")):
        for place, picture in enumerate(pictures):
            row, column = divmod(place, columns)
            bottom = (rows - 1 - row) * side
            axes = figure.add_axes(
                ((left + column * side + 0.02) / size[0], (bottom + 0.02) / size[1], (side - 0.04) / size[0],
                 (side - 0.04) / size[1])
            )  # fmt: skip
            axes.imshow(np.clip(picture, 0, 1), interpolation="nearest")
            axes.set_axis_off()
        figure.text((left + block / 2) / size[0], 1 - 0.38 / size[1], text, ha="center", va="top", color=INK)
    return figure


@rc_context(STYLE)
def entropies(title: str, by_task: Sequence[Sequence[Array]]) -> Figure:
    """Histograms of the entropies of the weights of each layer, a row, after each task, a column."""
    num_layers, num_tasks = len(by_task[0]), len(by_task)
    figure = Figure(figsize=(1.0 + 1.35 * num_tasks, 0.6 + 1.05 * num_layers), facecolor="none", layout="constrained")
    panels = figure.subplots(num_layers, num_tasks, sharex=True, sharey="row", squeeze=False)
    every = np.concatenate([layer for task in by_task for layer in task])
    bins = np.linspace(every.min(), every.max(), 31)
    for task, layers in enumerate(by_task):
        for layer, values in enumerate(layers):
            axes = panels[layer, task]
            axes.set_facecolor("none")
            axes.hist(values, bins, weights=np.full(len(values), 1 / len(values)), color=COLOURS[layer % len(COLOURS)])
            axes.axvline(float(np.median(values)), color=INK, linewidth=1.0, linestyle=":")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            if layer == 0:
                axes.set_title(f"after task {task + 1}")
            if task == 0:
                axes.set_ylabel(f"layer {layer + 1}")
    figure.suptitle(title, color=INK, fontsize=11)
    figure.supxlabel("entropy of a weight, nats; the dotted line is the median", color=INK, fontsize=9.5)
    return figure


@rc_context(STYLE)
def statistics(title: str, values: Mapping[str, Array], true: Sequence[int], found: Sequence[int]) -> Figure:
    """The paper's figure of task boundaries: each statistic over minibatches, where tasks begin and where found."""
    figure = Figure(figsize=(4.2 * len(values), 3.2), facecolor="none", layout="constrained")
    for place, (name, of_name) in enumerate(values.items()):
        axes = figure.add_subplot(1, len(values), place + 1, facecolor="none")
        draw_statistic(axes, of_name, true, found)
        low, high = of_name[UNTESTED:].min(), of_name[UNTESTED:].max()
        axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
        axes.set_title(name)
    figure.suptitle(title, color=INK, fontsize=11)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _with_average(values: Array) -> Array:
    return 100 * np.column_stack([values, values.mean(1)])


def _colour(method: str, place: int) -> str:
    own = METHODS[method].colour if method in METHODS else None  # the same in every figure
    return COLOURS[(place if own is None else own) % len(COLOURS)]


def _title(method: str) -> str:
    return plain(METHODS[method].title if method in METHODS else method)


def _counted(method: str, seeds: Sequence[int]) -> str:
    """A method's title with its number of seeds, or the fewest and the most where they differ."""
    return f"{_title(method)}, {seeds_of(seeds)}"
