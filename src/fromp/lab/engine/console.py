"""A bar of a download."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console


@contextmanager
def download_bar(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is updated with the bytes done and the total."""
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(line, completed=done, total=total or None)
