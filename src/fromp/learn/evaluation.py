"""How good the model is now on every month so far, or on given files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fromp.learn.files import digest, read_table
from fromp.learn.fitting import predicted
from fromp.learn.labels import Label
from fromp.learn.month import at_source, examples, score
from fromp.learn.saved import Saved
from fromp.learn.tables import text_table
from fromp.regulariser import FROMP


@dataclass(frozen=True)
class Evaluation:
    """One row per month or file; `rows` are plain dicts, None where something cannot be known."""

    label: Label
    rows: Sequence[dict[str, Any]]

    @property
    def metric(self) -> str:
        """What the scores are."""
        return self.label.metric

    @property
    def unit(self) -> str:
        """The unit of the scores."""
        return self.label.unit

    def __str__(self) -> str:
        heads = {
            "name": "month", "held_out": "rows", "score_when_learned": "when learned", "score": "now",
            "score_at_memory": "at memory", "drift": "drift", "note": "note",
        }  # fmt: skip
        title = f"{self.metric}, {self.unit}" if self.unit else self.metric
        scores = ("score_when_learned", "score", "score_at_memory")
        shown = [
            {**row, **{key: self.label.shown(row[key]) for key in scores if row[key] is not None}} for row in self.rows
        ]
        return text_table(heads, shown, title)


def evaluated(saved: Saved, reg: FROMP, files: Sequence[str], encoding: str) -> Evaluation:
    """Every month at the held-out part of its file, or each file: of a month's file its held-out part alone."""
    rows = [_of_file(saved, reg, file, encoding) for file in files] or list(_of_months(saved, reg))
    return Evaluation(saved.label, rows)


def _of_months(saved: Saved, reg: FROMP) -> Sequence[dict[str, Any]]:
    at_memory, rows = iter(scores_at_memory(saved.label, reg)), []
    for month, drift in zip(saved.months, saved.last_drift, strict=True):
        found = at_source(saved, month)
        rows.append({
            "name": month.name, "source": month.source, "held_out": month.held_out,
            "score_when_learned": month.scores[-1],
            "score": None if isinstance(found, str) else score(saved.label, reg, found),
            "score_at_memory": next(at_memory) if month.remembered else None,
            "drift": drift,
            "note": found if isinstance(found, str) else "" if month.remembered else "memory forgotten",
        })  # fmt: skip
    return rows


def _of_file(saved: Saved, reg: FROMP, file: str, encoding: str) -> dict[str, Any]:
    known = digest(file)
    month = next((one for one in saved.months if one.digest == known), None)
    found = examples(saved, read_table(file, encoding))
    if month is None:
        f = predicted(reg.model, found.x)[:, : saved.label.num_outputs]
        value, count = saved.label.score(f, found.y), len(found.y)
    else:
        value, count = score(saved.label, reg, found), month.held_out
    return {
        "name": month.name if month else file, "source": file, "held_out": count,
        "score_when_learned": month.scores[-1] if month else None, "score": value,
        "score_at_memory": None, "drift": None, "note": "held-out part" if month else "all rows",
    }  # fmt: skip


def scores_at_memory(label: Label, reg: FROMP) -> list[float]:
    """How good the model is at the examples that are remembered of each task."""
    return [
        label.score(predicted(reg.model, memory.inputs)[:, : label.num_outputs], memory.labels)
        for memory in reg.memories
    ]
