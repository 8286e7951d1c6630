"""What is remembered of each month: how much, and which examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fromp.foundation.errors import FrompError
from fromp.foundation.state import flatten
from fromp.learn.saved import Saved
from fromp.learn.tables import text_table
from fromp.memory import Memory
from fromp.regulariser import FROMP

SHOWN_CLASSES = 4


@dataclass(frozen=True)
class Inspection:
    """One row per month, with its examples, as plain dicts."""

    rows: Sequence[dict[str, Any]]

    def examples(self, month: str) -> str:
        """The examples kept of one month as a table, the highest score first."""
        row = next((row for row in self.rows if row["name"] == month), None)
        if row is None:
            raise FrompError(f"there is no month {month!r}; there are {', '.join(row['name'] for row in self.rows)}.")
        shown = [
            {"index": one["index"], "label": one["label"], "score": one["score"], **one["inputs"]}
            for one in row["examples"]
        ]
        return text_table({key: key for key in shown[0]}, shown) if shown else f"nothing is remembered of {month}"

    def __str__(self) -> str:
        heads = {
            "name": "month", "rows": "rows", "points": "kept", "classes": "classes", "scores": "scores",
            "drift": "drift", "kib": "KiB",
        }  # fmt: skip
        shown = [
            {
                **row,
                "classes": _counted(row["classes"]),
                "scores": "{:.2f} to {:.2f}".format(*row["scores"]) if row["scores"] else "",
                "kib": row["bytes"] / 1024,
            }
            for row in self.rows
        ]
        return text_table(heads, shown)


def inspected(saved: Saved, reg: FROMP) -> Inspection:
    """Each month with the examples kept of it, the highest score first, in the units of its file."""
    memories, rows = iter(reg.memories), []
    states = iter(reg.state_dict()["tasks"])
    for month, drift in zip(saved.months, saved.last_drift, strict=True):
        row: dict[str, Any] = {
            "name": month.name,
            "rows": month.rows,
            "points": 0,
            "classes": {},
            "scores": [],
            "drift": drift,
        }
        if month.remembered:
            memory, tensors = next(memories), flatten(next(states))[0]
            labels = saved.label.written(memory.labels)
            row |= {
                "points": len(memory),
                "scores": [float(memory.scores.min()), float(memory.scores.max())],
                "classes": dict(Counter(labels)) if memory.labels.ndim == 1 else {},
                "bytes": sum(tensor.nbytes for tensor in tensors.values()),
                "examples": _examples(saved, memory, labels),
            }  # fmt: skip
        rows.append(row)
    return Inspection(rows)


def _examples(saved: Saved, memory: Memory, labels: Sequence[str]) -> list[dict[str, Any]]:
    assert isinstance(memory.inputs, Tensor)
    found = []
    for index in memory.scores.argsort(descending=True, stable=True).tolist():
        inputs = saved.encoding.written(memory.inputs[index])
        found.append({"index": index, "label": labels[index], "score": float(memory.scores[index]), "inputs": inputs})
    return found


def _counted(classes: dict[str, int]) -> str:
    shown = [f"{name} {count}" for name, count in [*classes.items()][:SHOWN_CLASSES]]
    return ", ".join(shown) + (f", {len(classes) - SHOWN_CLASSES} more" if len(classes) > SHOWN_CLASSES else "")
