"""What a regulariser holds, as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fromp.derivatives.model import Head
from fromp.foundation.state import State, flatten
from fromp.likelihoods import Likelihood
from fromp.memory import Memory

WIDEST_HEAD = 16  # characters, so that a row fits 80 columns


@final
@dataclass(frozen=True)
class Inspection:
    """What is held of each past task, as `rows` of plain values; as text, a table."""

    rows: Sequence[Mapping[str, Any]]
    precision_bytes: int

    def __str__(self) -> str:
        heads = ("task", "points", "classes", "head", "scores", "drift", "size")
        cells = [
            (
                str(row["task"]), str(row["points"]), str(row["classes"]), _ranges(row["head"]),
                f"{row['lowest_score']:.3g} to {row['highest_score']:.3g}", f"{row['drift']:.3g}", _size(row["bytes"]),
            )
            for row in self.rows
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        lines = ["  ".join(map(str.rjust, line, widths)) for line in (heads, *cells)]
        points, kept = sum(row["points"] for row in self.rows), sum(row["bytes"] for row in self.rows)
        tasks = "1 task" if len(self.rows) == 1 else f"{len(self.rows)} tasks"
        total = f"{tasks}, {points} points, {_size(kept)}, and {_size(self.precision_bytes)} of precision"
        return "\n".join([*lines, total])


def inspect(
    memories: Sequence[Memory],
    drift: Sequence[float],
    likelihood: Likelihood,
    kept: Sequence[State],
    precision_bytes: int,
) -> Inspection:
    """One row per task: what is kept, how far the means have drifted there, and the bytes that all of it takes."""
    rows = []
    for task, (memory, moved, state) in enumerate(zip(memories, drift, kept, strict=True)):
        tensors, _ = flatten(state)
        rows.append(
            {
                "task": task,
                "points": len(memory),
                "classes": int(likelihood.classes(memory.labels).unique().numel()),
                "head": None if memory.head is None else list(memory.head),
                "lowest_score": float(memory.scores.min()),
                "highest_score": float(memory.scores.max()),
                "drift": moved,
                "bytes": sum(value.nbytes for value in tensors.values()),
            }
        )
    return Inspection(rows, precision_bytes)


def _ranges(head: Head) -> str:
    """A head in a few characters: 0-4,7."""
    if head is None:
        return "all"
    runs: list[list[int]] = []
    for index in head:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return text if len(text) <= WIDEST_HEAD else text[: WIDEST_HEAD - 3] + "..."


def _size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
