"""Tables as plain text, no wider than their cells."""

from collections.abc import Mapping, Sequence
from typing import Any


def text_table(heads: Mapping[str, str], rows: Sequence[Mapping[str, Any]], title: str = "") -> str:
    """One line per row, numbers to the right; a column that is empty everywhere is left out."""
    cells = [[cell(row.get(key)) for key in heads] for row in rows]
    used = [place for place in range(len(heads)) if any(line[place] for line in cells)]
    lines = [[[*heads.values()][place] for place in used], *([line[place] for place in used] for line in cells)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = [all(_is_number(line[place]) for line in cells) for place in used]
    shown = ["  ".join(map(_aligned, line, widths, right)).rstrip() for line in lines]
    return "\n".join([title, *shown] if title else shown)


def cell(value: Any) -> str:
    """A value as a cell shows it; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.1f}" if abs(value) >= 1 else f"{value:.3f}"
    return str(value)


def _aligned(text: str, width: int, to_right: bool) -> str:
    return text.rjust(width) if to_right else text.ljust(width)


def _is_number(text: str) -> bool:
    return not text.strip("-.0123456789e+")
