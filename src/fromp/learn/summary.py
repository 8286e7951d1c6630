"""What was learned last, in a few lines for a person."""

from pathlib import Path

from fromp.learn.encoding import describe
from fromp.learn.labels import Classes
from fromp.learn.report import REPORT
from fromp.learn.saved import Month, Saved

SHOWN_COLUMNS = 3


def last_month(folder: Path, saved: Saved) -> str:
    """The month, what was done with its columns, and the scores on the held-out part of every month so far."""
    month, label, first = saved.months[-1], saved.label, len(saved.months) == 1
    lines = [f"{month.name}: {month.rows} rows, {month.held_out} of them held out for testing"]
    if first:
        lines += [f"  {line}" for line in describe(saved.encoding)]
        lines.append(f"  network: {saved.network}")
    if isinstance(label, Classes) and month.new_classes:
        of = "" if label.name == "class" else f" of {label.name}"
        lines.append(f"  {'classes' if first else 'new classes'}{of}: {', '.join(month.new_classes)}")
    lines += [f"  cells {what}: {_counted(columns)}" for what, columns in month.replaced.items()]
    lines.append(f"  learned in {month.epochs} epochs{'' if first else f', tau {month.tau:g}'}{_tried(month)}")
    scores = [
        f"{one.name} {'?' if score is None else label.shown(score)}"
        for one, score in zip(saved.months, month.scores, strict=True)
    ]
    unit = f", {label.unit}" if label.unit else ""
    return "\n".join(
        [*lines, f"{label.metric} on held-out rows{unit}: {', '.join(scores)}", f"report: {folder / REPORT}"]
    )


def _tried(month: Month) -> str:
    """Which lengths, or which tau, were compared on held-out rows."""
    for index in (0, 1):
        values = [f"{one[index]:g}" for one in month.tried]
        if len(set(values)) > 1:
            return f" (the best of {', '.join(values)} on held-out rows)"
    return ""


def _counted(columns: dict[str, int]) -> str:
    """The columns with the most cells first, and how many further ones there are."""
    most = sorted(columns, key=lambda name: -columns[name])
    shown = ", ".join(f"{name} {columns[name]}" for name in most[:SHOWN_COLUMNS])
    return shown + (f", and {len(most) - SHOWN_COLUMNS} more columns" if len(most) > SHOWN_COLUMNS else "")
