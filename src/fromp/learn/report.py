"""report.html of a state folder: how good the model is on every month, how far it has drifted, what is remembered."""

import io
import statistics
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from torch import Tensor

from fromp import __version__
from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.learn.charts import over_months
from fromp.learn.encoding import describe
from fromp.learn.inspection import inspected
from fromp.learn.labels import Classes
from fromp.learn.pages import address, fill
from fromp.learn.saved import Saved
from fromp.regulariser import FROMP

REPORT = "report.html"
SHOWN_ROWS, SHOWN_IMAGES = 8, 30  # per month
SHOWN_COLUMNS = 10
COLOUR_CHANNELS = 3


def write(folder: Path, saved: Saved, reg: FROMP) -> Path:
    """Write the report into the state folder, readable by the owner alone as the state is, and return where."""
    path = folder / REPORT
    try:
        storage.replace(path, render(saved, reg).encode(), private=True)
    except OSError as error:
        raise FrompError(
            f"the state in {folder} is saved, and its {REPORT} cannot be written ({error.strerror or error}); "
            "free some space, and what is learned or forgotten next writes it anew."
        ) from error
    return path


def render(saved: Saved, reg: FROMP) -> str:
    """The whole page as text."""
    label, months = saved.label, saved.months
    names, last = [month.name for month in months], months[-1]
    unit = f", {label.unit}" if label.unit else ""
    charts = [
        over_months(
            f"{label.metric.capitalize()}{unit}",
            "On the held-out part of each month, after each month was learned.",
            names, [month.scores for month in months], 100.0 if isinstance(label, Classes) else None,
        ),
        over_months(
            "Drift",
            "How far the answers had moved at what is remembered of a month, once a later one was learned (root mean "
            "square).",
            names, [month.drift for month in months],
        ),
    ]  # fmt: skip
    facts = [
        ("label", f"{label.name}, {_meaning(label)}"),
        ("network", str(saved.network)),
        ("epochs", str(last.epochs)),
    ]
    facts += [("columns", line) for line in describe(saved.encoding)]
    return fill(
        "stream.html", title=f"{label.name}, {last.name}", headline=f"{label.name}: {len(months)} months",
        lead=f"Learned one after another, the last one, {last.name}, on {last.date}.", tiles=_tiles(saved, reg),
        charts=[chart for chart in charts if chart], matrix=_matrix(saved), metric=f"{label.metric}{unit}",
        months=months,
        remembered=_remembered(saved, reg), facts=facts, version=__version__, today=date.today().isoformat(),
    )  # fmt: skip


def _meaning(label: Any) -> str:
    return f"classes {', '.join(label.names)}" if isinstance(label, Classes) else "a quantity"


def _tiles(saved: Saved, reg: FROMP) -> list[dict[str, str]]:
    now = saved.months[-1].scores
    known = [score for score in now if score is not None]
    lost = [month.scores[-1] - score for month, score in zip(saved.months[:-1], now, strict=False) if score is not None]  # type: ignore[operator]
    better = isinstance(saved.label, Classes)
    tiles = [
        {
            "label": saved.label.metric.capitalize(), "number": saved.label.shown(statistics.mean(known)),
            "unit": f" {saved.label.unit}",
            "below": f"mean over {len(known)} of {len(now)} months, held-out rows",
        },
        {
            "label": "Remembered", "number": str(sum(map(len, reg.memories))), "unit": " examples",
            "below": f"of {sum(month.rows for month in saved.months)} rows",
        },
    ]  # fmt: skip
    if lost:
        change = statistics.mean(lost) * (1 if better else -1)
        tiles.insert(1, {
            "label": "Forgotten", "number": saved.label.shown(change).replace("-", "−"),
            "unit": " points" if better else "",
            "below": "when learned minus now, mean over earlier months" if better else "now minus when learned, mean",
        })  # fmt: skip
    return tiles


def _matrix(saved: Saved) -> list[dict[str, Any]]:
    """One row per month that was learned, one cell per month that it was tested on."""
    return [
        {"name": month.name, "cells": ["?" if score is None else saved.label.shown(score) for score in month.scores]}
        for month in saved.months
    ]


def _remembered(saved: Saved, reg: FROMP) -> list[dict[str, Any]]:
    """Some examples of every class and month, the highest scores first: as images, or as rows of a table."""
    inspection, memories, found = inspected(saved, reg), iter(reg.memories), []
    for month, row in zip(saved.months, inspection.rows, strict=True):
        shown: dict[str, Any] = {
            "name": month.name,
            "points": row["points"],
            "rows": month.rows,
            "images": [],
            "table": [],
        }
        if month.remembered:
            inputs, several = next(memories).inputs, _in_turn(row["examples"])
            assert isinstance(inputs, Tensor)
            if saved.encoding.image(inputs[0]) is not None:
                shown["images"] = [
                    {
                        "picture": _picture(saved, inputs[one["index"]]),
                        "label": one["label"],
                        "score": one["score"],
                    }
                    for one in several[:SHOWN_IMAGES]
                ]
            else:
                columns = [*several[0]["inputs"]][:SHOWN_COLUMNS]
                shown["columns"] = [saved.label.name, *columns]
                shown["table"] = [
                    [one["label"], *(one["inputs"][name] for name in columns)] for one in several[:SHOWN_ROWS]
                ]
        found.append(shown)
    return found


def _in_turn(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One example of each class, then another of each, and so on."""
    seen: dict[str, int] = {}
    turns = []
    for one in examples:
        seen[one["label"]] = turn = seen.get(one["label"], 0) + 1
        turns.append((turn, one))
    return [one for _, one in sorted(turns, key=lambda entry: entry[0])]


def _picture(saved: Saved, example: Tensor) -> str:
    """An image as the address of a PNG; values that are no bytes are stretched over the range that they have."""
    from PIL import Image

    pixels = saved.encoding.image(example)
    assert pixels is not None
    low, high = float(pixels.min()), float(pixels.max())
    if low < -1 or high > 256 or high <= 2:
        pixels = (pixels - low) / max(high - low, 1e-9) * 255
    grey = len(pixels) < COLOUR_CHANNELS
    array = pixels[:COLOUR_CHANNELS].round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array[..., 0] if grey else array).save(file, format="PNG")
    return address("image/png", file.getvalue())
