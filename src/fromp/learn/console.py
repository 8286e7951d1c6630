"""Where the commands print: standard output, every text taken as it is."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline


def printable(text: str) -> str:
    """The text without control characters: a file's name may hold some, and a terminal would obey them."""
    return _CONTROL.sub("", text)


class PlainConsole(Console):
    """A console for which `[b]` and `:cat:` in a name are letters, not markup."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else 120)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


@contextmanager
def steps_bar(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar that is updated with what is done and its share; it goes when all is done, and needs a terminal."""
    console = Console(stderr=True)
    columns = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(30), bars.TaskProgressColumn())
    with bars.Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        line = bar.add_task("reading", total=1.0)
        yield lambda what, share: bar.update(line, description=what, completed=share)
