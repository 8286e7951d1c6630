"""What `fromp bench` measured of a step."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from fromp.lab.report.figures.style import COLOURS, MARKERS, STYLE

TITLES = {"mlp": "MLP, two layers of 100, minibatch of 128", "cnn": "CNN of Split CIFAR, minibatch of 256"}


@rc_context(STYLE)
def step_cost(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Milliseconds of a step against the number of past tasks: all of them, two drawn per step, and plain training."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(figsize=(4.0 * len(networks), 3.1), facecolor="none", layout="constrained")
    for index, network in enumerate(networks):
        axes = figure.add_subplot(1, len(networks), index + 1, facecolor="none")
        own = [row for row in rows if row["network"] == network]
        tasks = [row["past_tasks"] for row in own]
        lines = {
            "plain": "plain Adam, as many samples",
            "fromp": "FROMP, all past tasks",
            "two tasks a step": "FROMP, two tasks per step",
        }
        for k, (case, label) in enumerate(lines.items()):
            milliseconds = [1e3 * row["seconds"][case] for row in own]
            axes.plot(tasks, milliseconds, color=COLOURS[k], marker=MARKERS[k], label=label if index == 0 else None)
        axes.set_xticks(tasks)
        axes.set_title(TITLES.get(network, network))
        axes.set_xlabel("past tasks, 200 points each")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("ms per step, median")
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.2)
    return figure
