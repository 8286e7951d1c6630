"""Numbers and tables as text: for the terminal, the report, the paper's tables and the documents."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table as RichTable

from fromp.foundation import storage
from fromp.lab.results.metrics import Matrix, Summary
from fromp.lab.results.published import AVERAGE_ACCURACY
from fromp.lab.results.record import Experiment


@dataclass(frozen=True)
class Table:
    """Headings and rows of text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self, numbers: bool = True) -> str:
        """For a document; columns of numbers are aligned at the right."""
        side = "---:|" if numbers else "---|"
        lines = ["| " + " | ".join(self.heads) + " |", "|---|" + side * (len(self.heads) - 1)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)])

    def terminal(self, title: str, numbers: bool = True) -> RichTable:
        """For a terminal."""
        table = RichTable(
            title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=0,
            pad_edge=False, show_edge=False,
        )  # fmt: skip
        for index, head in enumerate(self.heads):
            right = numbers and index > 0
            cells = [*head.split(), *(row[index] for row in self.rows)]  # headings may wrap, numbers may not
            width = max(map(len, cells)) if right else None
            table.add_column(head, justify="right" if right else "left", width=width)
        for row in self.rows:
            table.add_row(*row)
        return table

    def csv(self) -> str:
        """For a spreadsheet."""
        return as_csv([self.heads, *self.rows])

    def save(self, path: Path) -> list[Path]:
        """As Markdown and CSV at `path` with those suffixes; a directory that is missing is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = {"csv": self.csv(), "md": self.markdown() + "\n"}
        for suffix, text in written.items():
            storage.replace(path.with_name(f"{path.name}.{suffix}"), text.encode())
        return [path.with_name(f"{path.name}.{suffix}") for suffix in written]


def as_csv(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def percent(summary: Summary | None) -> str:
    """Mean and standard error in percent; a single seed has no error."""
    if summary is None:
        return ""
    mean = points(summary.mean)
    return mean if summary.n < 2 else f"{mean} ± {points(summary.stderr)}"


def deviation(summary: Summary | None) -> str:
    """The standard deviation in percent; a single seed has none."""
    return "" if summary is None or summary.n < 2 else points(summary.std)


def points(fraction: float) -> str:
    """A fraction in percent, without a sign before zero."""
    text = f"{100 * fraction:.2f}"
    return "0.00" if text == "-0.00" else text


def seeds_of(counts: Sequence[int]) -> str:
    """How many seeds, or the fewest and the most of them where they differ."""
    fewest, most = min(counts), max(counts)
    return f"{fewest} to {most} seeds" if fewest < most else "1 seed" if most == 1 else f"{most} seeds"


def duration(seconds: float) -> str:
    """A time that was measured."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 60 else f"{hours:.1f} h"


def about(seconds: float) -> str:
    """An estimated time."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.0f} h"


def results_table(experiments: Sequence[Experiment], names: Sequence[str] | None = None) -> Table:
    """One row per experiment: accuracy beside the paper's, transfers and forgetting where known, seeds and time."""
    rows = []
    for name, one in zip(names or [one.name for one in experiments], experiments, strict=True):
        seconds, reported = one.summary("seconds"), AVERAGE_ACCURACY.get((one.benchmark, one.method))
        rows.append(
            [
                name, percent(one.summary("average_accuracy")), "" if reported is None else str(reported),
                percent(one.summary("backward_transfer")), percent(one.summary("forward_transfer")),
                percent(one.summary("forgetting")), f"{len(one.finished)}", duration(seconds.mean) if seconds else "",
            ]
        )  # fmt: skip
    heads = (
        "method", "average accuracy", "paper", "backward transfer", "forward transfer", "forgetting", "seeds",
        "time per seed",
    )  # fmt: skip
    shown = [column for column in range(len(heads)) if column < 2 or any(row[column] for row in rows)]
    return Table([heads[column] for column in shown], [[row[column] for column in shown] for row in rows])


def matrix_table(accuracy: Matrix) -> Table:
    """The accuracy matrix of one run, in percent; a task at which nothing was trained has an empty row."""
    rows = []
    for i, row in enumerate(accuracy):
        cells = [f"{100 * value:.1f}" for value in row or ()]
        average = f"{100 * sum(row) / len(row):.2f}" if row else ""
        rows.append([f"task {i + 1}", *cells, *[""] * (len(accuracy) - len(cells)), average])
    return Table(["after", *(f"task {j + 1}" for j in range(len(accuracy))), "average"], rows)
