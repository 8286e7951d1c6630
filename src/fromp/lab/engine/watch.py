"""Progress a person can read: one live line per seed in a terminal, a plain line now and then elsewhere."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from rich import progress as bars
from rich.console import Console
from rich.table import Table as RichTable

from fromp.foundation import storage
from fromp.lab.engine.run import Progress
from fromp.lab.methods import METHODS
from fromp.lab.results.format import Table

EVERY_SECONDS = 30.0  # time between plain lines within a task
REFRESH_SECONDS = 0.2  # time between updates of a live line
POST_SECONDS = 0.5  # time between the reports of a worker
POST = ".progress"  # a worker's report, in the folder of its seed
BAR_WIDTH = 16
BESIDE = BAR_WIDTH + 6  # columns of a line that are the bar's and the percentage's


class Pace:
    """How long a task still takes, from the steps that were seen: none before they tell."""

    SECONDS = 2.0  # after which they tell

    def __init__(self) -> None:
        self._task, self._from = -1, (0, 0.0)

    def left(self, progress: Progress) -> float | None:
        """Seconds until the task's last step."""
        if progress.finished:  # it counts as of the next task
            return None
        now = time.monotonic()
        if progress.task != self._task:  # what came before its first step, or before the run was resumed, tells nothing
            self._task, self._from = progress.task, (progress.step, now)
        steps, seconds = progress.step - self._from[0], now - self._from[1]
        if not steps or seconds < self.SECONDS:
            return None
        return seconds / steps * (progress.num_steps - progress.step)


class Bars:
    """One live line per seed, cut to the terminal's width, and lines above them that stay."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (
            bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=BAR_WIDTH),
            bars.TextColumn("{task.percentage:>3.0f}%"), bars.TextColumn("{task.fields[state]}"),
        )  # fmt: skip
        self._bars = bars.Progress(*columns, console=console, transient=True)
        self._lines: dict[str, bars.TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, name: str, done: float, parts: Sequence[str]) -> None:
        """A line's share that is done, and what else there is to say, the most important first."""
        if name not in self._lines:
            self._lines[name] = self._bars.add_task(name, total=1.0, state="")
        state = fitting(parts, self.console.width - BESIDE - len(name) - 2)
        self._bars.update(self._lines[name], completed=done, state=state)


def fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts, from the first on, as fit into a width."""
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


class Watcher:
    """Shows where a run stands. Used as `with Watcher(...) as show: for progress in run.learn(): show(progress)`."""

    def __init__(self, console: Console, live: bool, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._bars = Bars(console) if live and not quiet else None
        self._pace, self._last = Pace(), 0.0

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.__exit__(kind, value, trace)

    def __call__(self, progress: Progress) -> None:
        if self._quiet:
            return
        left = self._pace.left(progress)
        if progress.finished:
            self._console.print(task_line(progress), highlight=False)
            self._last = time.monotonic()
        elif time.monotonic() - self._last > (EVERY_SECONDS if self._bars is None else REFRESH_SECONDS):
            self._last = time.monotonic()
            if self._bars is not None:
                self._bars.show(f"seed {progress.seed}", whole(progress), parts(progress, left))
            else:
                self._console.print(f"  seed {progress.seed}  {'  '.join(parts(progress, left))}", highlight=False)


class Posting:
    """Leaves where a worker's run stands in the folder of its seed, for the `Board` of the process that started it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / POST
        self._pace, self._last = Pace(), 0.0
        self._lines: list[str] = []

    def __call__(self, progress: Progress) -> None:
        left = self._pace.left(progress)
        if progress.finished:
            self._lines.append(task_line(progress))
        elif time.monotonic() - self._last < POST_SECONDS:
            return
        self._last = time.monotonic()
        post = {"done": whole(progress), "parts": parts(progress, left), "lines": self._lines}
        storage.replace(self._path, json.dumps(post).encode())


class Board:
    """Live lines for workers in other processes, one per seed, from what they post."""

    def __init__(self, console: Console, folders: Mapping[int, Path]) -> None:
        self._bars, self._folders = Bars(console), folders
        self._printed = dict.fromkeys(folders, 0)
        self._over, self._thread = Event(), Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        for folder in self._folders.values():
            (folder / POST).unlink(missing_ok=True)  # an earlier run may have left it
        self._bars.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        self._bars.__exit__(kind, value, trace)
        for folder in self._folders.values():
            (folder / POST).unlink(missing_ok=True)

    def _follow(self) -> None:
        while not self._over.wait(POST_SECONDS):
            self._look()

    def _look(self) -> None:
        for seed, folder in self._folders.items():
            try:
                post = json.loads((folder / POST).read_text())
            except (OSError, ValueError):  # nothing yet
                continue
            for line in post["lines"][self._printed[seed] :]:
                self._bars.console.print(line, highlight=False)
            self._printed[seed] = len(post["lines"])
            self._bars.show(f"seed {seed}", post["done"], post["parts"])


class NowAndThen:
    """Shows where one run of many stands, if it takes long: a plain line with its place among them."""

    def __init__(self, console: Console, name: str, quiet: bool = False) -> None:
        self._console, self._name, self._quiet = console, name, quiet
        self._pace, self._last = Pace(), time.monotonic()

    def __call__(self, progress: Progress) -> None:
        left = self._pace.left(progress)
        if not (self._quiet or progress.finished) and time.monotonic() - self._last > EVERY_SECONDS:
            self._last = time.monotonic()
            self._console.print(f"  {self._name:>7}  {'  '.join(parts(progress, left))}", highlight=False)


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
    heads = ("", "keeps of the past", "a step costs, beside plain training")
    rows = [
        (
            f"{name}\n{card.paper}",
            card.keeps + ("; needs the task label at test time" if card.needs_task_at_test else ""),
            card.step_cost,
        )
        for name, card in METHODS.items()
    ]
    return Table(heads, rows).terminal("methods", numbers=False)


def task_line(progress: Progress) -> str:
    """The accuracy on each task so far, once a task is learned."""
    row = progress.accuracy[-1]
    if row is None:
        return f"  seed {progress.seed}  task {progress.task}/{progress.num_tasks}: not trained"
    values = " ".join(f"{100 * value:5.1f}" for value in row)
    mean = 100 * sum(row) / len(row)
    where = f"  seed {progress.seed}  after task {progress.task}/{progress.num_tasks}:"
    return f"{where}  {values}   average {mean:.2f} %   {progress.seconds:.0f} s"


def whole(progress: Progress) -> float:
    """The share of the stream that is done."""
    begun = 0.0 if progress.finished else progress.step / progress.num_steps
    return (progress.task + begun) / progress.num_tasks


def parts(progress: Progress, left: float | None) -> list[str]:
    """What there is to say of a run, the most important first."""
    if progress.finished:
        return [f"task {progress.task}/{progress.num_tasks}", "done"]
    epoch = min(progress.num_epochs, 1 + progress.step * progress.num_epochs // progress.num_steps)
    said = [f"task {progress.task + 1}/{progress.num_tasks}", f"epoch {epoch}/{progress.num_epochs}"]
    if left is not None:
        said.append(f"{_clock(left)} left in task")
    if progress.accuracy and (row := progress.accuracy[-1]):
        said.append(f"so far {100 * sum(row) / len(row):.1f} %")
    said.append(f"loss {float(progress.loss.data):.3f}")
    said.append(f"penalty {float(progress.loss.penalty):.3f}")
    return said


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
