"""Tables of the paper, filled with what was measured, as Markdown and as CSV."""

from collections.abc import Callable, Mapping, Sequence

from fromp.lab.paper.required import Required, ResultsFolder
from fromp.lab.results import published
from fromp.lab.results.format import Table, about, deviation, percent
from fromp.lab.results.metrics import Summary
from fromp.lab.results.record import Metric

LEARN_APART = ("separate", "joint")  # a network for each task, or one for all of them: nothing is carried over

REPORTED = {
    "average_accuracy": published.AVERAGE_ACCURACY,
    "forward_transfer": published.FORWARD_TRANSFER,
    "backward_transfer": published.BACKWARD_TRANSFER,
}


def by_method(kept: ResultsFolder, needed: Sequence[Required]) -> Table:
    """A row a method, and for each benchmark what was measured and what the paper reports."""
    return _pivot(kept, needed, "method", method_title, lambda runs: benchmark_title(runs.benchmark))


def by_benchmark(kept: ResultsFolder, needed: Sequence[Required]) -> Table:
    """A row a benchmark, and for each method what was measured and what the paper reports."""
    return _pivot(kept, needed, "benchmark", lambda runs: benchmark_title(runs.benchmark), method_title)


def _pivot(
    kept: ResultsFolder,
    needed: Sequence[Required],
    name: str,
    down: Callable[[Required], str],
    across: Callable[[Required], str],
) -> Table:
    cells = {(down(runs), across(runs)): runs for runs in needed}
    columns = list(dict.fromkeys(column for _, column in cells))
    rows = []
    for row in dict.fromkeys(row for row, _ in cells):
        of_row = [cells.get((row, column)) for column in columns]
        rows.append([row, *(text for runs in of_row for text in _beside(kept, runs, "average_accuracy", None))])
    return Table([name, *(head for column in columns for head in _heads(column))], rows)


def transfer(kept: ResultsFolder, needed: Sequence[Required]) -> Table:
    """Forward and backward transfer of FROMP, a row a benchmark."""
    shown = [runs for runs in needed if runs.method == "fromp"]
    return _metrics(kept, needed, "benchmark", {benchmark_title(runs.benchmark): runs for runs in shown}, _TRANSFER)


def all_metrics(kept: ResultsFolder, needed: Sequence[Required]) -> Table:
    """Accuracy and transfer, a row a method."""
    names: dict[str, Metric] = {"average accuracy": "average_accuracy", **_TRANSFER}
    return _metrics(kept, needed, "method", {method_title(runs): runs for runs in needed}, names)


_TRANSFER: dict[str, Metric] = {"forward transfer": "forward_transfer", "backward transfer": "backward_transfer"}


def _heads(column: str) -> tuple[str, ...]:
    return column, "deviation", "seeds", "paper"


def _metrics(
    kept: ResultsFolder, needed: Sequence[Required], what: str, shown: dict[str, Required], names: Mapping[str, Metric]
) -> Table:
    alone = {runs.benchmark: runs for runs in needed if runs.method == "separate"}
    rows = [
        [title, *(t for name in names.values() for t in _beside(kept, runs, name, alone.get(runs.benchmark)))]
        for title, runs in shown.items()
    ]
    return Table([what, *(head for name in names for head in _heads(name))], rows)


def _beside(kept: ResultsFolder, runs: Required | None, name: Metric, separate: Required | None) -> tuple[str, ...]:
    """What was measured, or what it would take; and what the paper reports."""
    if runs is None or (runs.method in LEARN_APART and name != "average_accuracy"):
        return ("",) * len(_heads(""))
    found = measured(kept, runs, name, separate)
    reported = printed(REPORTED[name].get((runs.benchmark, runs.method)))
    if found is None:
        needed = [runs, separate] if name == "forward_transfer" and separate else [runs]
        seconds = sum(kept.state(one).seconds for one in needed if kept.experiment(one) is None)
        return f"not run: {about(seconds)}" if seconds else "", "", "", reported
    return percent(found), deviation(found), f"{found.n}", reported


def measured(kept: ResultsFolder, runs: Required, name: Metric, separate: Required | None) -> Summary | None:
    """A number over the finished seeds; None where it says nothing."""
    found = kept.experiment(runs)
    if found is not None and name == "forward_transfer":
        found = found.with_forward_transfer(None if separate is None else kept.experiment(separate))
    return None if found is None else found.summary(name)


def printed(reported: published.Reported | None) -> str:
    """As the paper has it."""
    return "" if reported is None else str(reported)


def method_title(runs: Required) -> str:
    """As the paper calls it, which has other names for some methods on the toy."""
    titles = published.TOY_TITLES if runs.benchmark.startswith("toy") else published.METHOD_TITLES
    return titles.get(runs.method, runs.method)


def benchmark_title(benchmark: str) -> str:
    """As the paper calls it."""
    return published.BENCHMARK_TITLES.get(benchmark, benchmark)
