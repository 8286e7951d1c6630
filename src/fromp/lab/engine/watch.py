"""Progress a person can read: a live line in a terminal, a plain line now and then elsewhere."""

import time
from types import TracebackType
from typing import Any, Self

from rich import progress as bars
from rich.console import Console
from rich.table import Table as RichTable

from fromp.lab.engine.run import Progress
from fromp.lab.methods import METHODS
from fromp.lab.results.format import Table

EVERY_SECONDS = 30.0  # time between plain lines within a task
REFRESH_SECONDS = 0.2  # time between updates of the live line


class Watcher:
    """Shows where a run stands. Used as `with Watcher(...) as show: for progress in run.learn(): show(progress)`."""

    def __init__(self, console: Console, live: bool, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._live = live and not quiet
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=24),
            bars.TextColumn("{task.percentage:>3.0f}%"), bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[state]}"), console=console, transient=True,
        )  # fmt: skip
        self._line = self._bar.add_task("", total=1.0, state="", visible=False)
        self._last = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        if progress.finished:
            self._console.print(_task_line(progress), highlight=False)
            self._last = time.monotonic()
        elif time.monotonic() - self._last > (REFRESH_SECONDS if self._live else EVERY_SECONDS):
            self._last = time.monotonic()
            if self._live:
                whole = (progress.task + progress.step / progress.num_steps) / progress.num_tasks
                self._bar.update(
                    self._line,
                    completed=whole,
                    visible=True,
                    description=f"seed {progress.seed}",
                    state=_state(progress),
                )
            else:
                self._console.print(f"  seed {progress.seed}  {_state(progress)}", highlight=False)


class NowAndThen:
    """Shows where one run of many stands, if it takes long: a plain line with its place among them."""

    def __init__(self, console: Console, name: str, quiet: bool = False) -> None:
        self._console, self._name, self._quiet = console, name, quiet
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if not (self._quiet or progress.finished) and time.monotonic() - self._last > EVERY_SECONDS:
            self._last = time.monotonic()
            self._console.print(f"  {self._name:>7}  {_state(progress)}", highlight=False)


def boundaries_line(found: dict[str, Any]) -> str:
    """Where a run found that a new task had begun, and how right it was."""
    begins, true = [begin for begin, _ in found["found"]], found["true"]
    missed, false = found["misses"], found["false_alarms"]
    verdict = "" if missed == false == 0 else f" ({missed} missed, {false} false)"
    said = f"new tasks found at minibatch {_first(begins)}" if begins else "no new task found"
    return f"{said}; they began at {_first(true)}{verdict}" if true else f"{said}; there was none{verdict}"


def _first(numbers: list[int], count: int = 12) -> str:
    return ", ".join(map(str, numbers[:count])) + (", ..." if len(numbers) > count else "")


def methods_table() -> RichTable:
    """Every method: where it comes from, what it keeps, and what its step costs."""
    heads = ("", "from", "keeps of the past", "cost of a step, beside plain training", "task label at test time")
    rows = [
        (name, card.paper, card.keeps, card.step_cost, "always" if card.needs_task_at_test else "only for multi-head")
        for name, card in METHODS.items()
    ]
    return Table(heads, rows).terminal("methods", numbers=False)


def _task_line(progress: Progress) -> str:
    row = progress.accuracy[-1]
    if row is None:
        return f"  seed {progress.seed}  task {progress.task}/{progress.num_tasks}: not trained"
    values = " ".join(f"{100 * value:5.1f}" for value in row)
    mean = 100 * sum(row) / len(row)
    where = f"  seed {progress.seed}  after task {progress.task}/{progress.num_tasks}:"
    return f"{where}  {values}   average {mean:.2f} %   {progress.seconds:.0f} s"


def _state(progress: Progress) -> str:
    epoch = min(progress.num_epochs, 1 + progress.step * progress.num_epochs // progress.num_steps)
    text = f"task {progress.task + 1}/{progress.num_tasks}  epoch {epoch}/{progress.num_epochs}"
    text += f"  loss {float(progress.loss.data):.4f}  penalty {float(progress.loss.penalty):.4f}"
    if progress.accuracy and (row := progress.accuracy[-1]):
        text += f"  average so far {100 * sum(row) / len(row):.1f} %"
    left = progress.seconds / max(1, progress.step) * (progress.num_steps - progress.step)
    return f"{text}  task ends in {left:.0f} s"
