"""Tables of the paper, filled with what was measured beside what the paper reports."""

from collections.abc import Mapping, Sequence
from typing import Literal

from fromp.lab.methods import METHODS
from fromp.lab.paper.required import Required, ResultsFolder, total
from fromp.lab.results import published
from fromp.lab.results.format import Table, about, deviation, percent
from fromp.lab.results.metrics import Summary
from fromp.lab.results.record import Metric

Side = Literal["method", "benchmark"]
REPORTED: Mapping[Metric, Mapping[tuple[str, str], published.Reported]] = {
    "average_accuracy": published.AVERAGE_ACCURACY,
    "forward_transfer": published.FORWARD_TRANSFER,
    "backward_transfer": published.BACKWARD_TRANSFER,
}


def pivot(
    kept: ResultsFolder, runs: Sequence[Required], down: Side, show: Sequence[Metric], separate: Sequence[Required]
) -> Table:
    """One row per method or benchmark; as columns the other of the two, or, if several are shown, the metrics.

    `separate` are the networks trained on each task alone, which forward transfer is measured against.
    """
    alone = {required.benchmark: required for required in separate}
    cells: dict[str, dict[str, Sequence[str]]] = {}
    for required in runs:
        titles = {"method": method_title(required), "benchmark": benchmark_title(required.benchmark)}
        row = cells.setdefault(titles.pop(down), {})
        (other,) = titles.values()
        for metric in show:
            column = other if len(show) == 1 else metric.replace("_", " ")
            row[column] = _cells(kept, required, metric, alone.get(required.benchmark))
    columns = dict.fromkeys(column for row in cells.values() for column in row)
    heads = [head for column in columns for head in (column, "deviation", "seeds", "paper")]
    rows = [
        [title, *(text for column in columns for text in row.get(column, [""] * 4))] for title, row in cells.items()
    ]
    return Table([down, *heads], rows)


def _cells(kept: ResultsFolder, required: Required, metric: Metric, separate: Required | None) -> Sequence[str]:
    """What was measured, or what it would take; and what the paper reports."""
    if not METHODS[required.method].sequential and metric != "average_accuracy":
        return [""] * 4
    found = measured(kept, required, metric, separate)
    reported = REPORTED[metric].get((required.benchmark, required.method))
    paper = "" if reported is None else str(reported)
    if found is not None:
        return percent(found), deviation(found), f"{found.n}", paper
    needed = [required, *([separate] if separate and metric == "forward_transfer" else [])]
    missing = [kept.state(one) for one in needed if kept.experiment(one) is None]
    seconds = total(missing)
    return "not run" if seconds is None else f"not run: {about(seconds)}" if missing else "", "", "", paper


def measured(
    kept: ResultsFolder, required: Required, metric: Metric, separate: Required | None = None
) -> Summary | None:
    """A number over the finished seeds; None if there are none."""
    found = kept.experiment(required)
    if found is not None and metric == "forward_transfer":
        found = found.with_forward_transfer(None if separate is None else kept.experiment(separate))
    return None if found is None else found.summary(metric)


def method_title(required: Required) -> str:
    """The paper's name, which differs for some methods on the toy."""
    title = METHODS[required.method].title
    return published.TOY_TITLES.get(required.method, title) if required.benchmark.startswith("toy") else title


def benchmark_title(benchmark: str) -> str:
    """As the paper calls it."""
    return published.BENCHMARK_TITLES.get(benchmark, benchmark)
