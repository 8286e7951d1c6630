"""selection.json: the settings tried on a benchmark in one file, one row per candidate."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.lab.results import store
from fromp.lab.results.record import Experiment, SeedResult

FILE = "selection.json"


def write(out: Path, folder: Path) -> int:
    """Collect every results.json below `folder` into out/selection.json; returns the number of candidates.

    Settings that all candidates of a method have in common stand once, under `shared`. A row has the others and, for
    each finished seed, the accuracy on each task after the last, the backward transfer and the seconds.
    """
    found = [store.read(path.parent) for path in sorted(folder.rglob(store.RESULTS))]
    methods = dict.fromkeys(each.method for each in found)
    shared = {name: _shared([each.settings for each in found if each.method == name]) for name in methods}
    rows = [_row(each.path.relative_to(folder).as_posix(), each, shared[each.method]) for each in found]
    common = ",\n".join(f"{json.dumps(name)}: {json.dumps(settings)}" for name, settings in shared.items())
    candidates = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"shared": {{\n{common}\n}},\n"candidates": [\n{candidates}\n]}}\n'
    storage.replace(out / FILE, text.encode())
    return len(rows)


def read(file: Path) -> list[Experiment]:
    """The candidates of a selection.json; of each accuracy matrix, only the last row was kept."""
    return store.parsed(file, lambda found: list(_candidates(found, file.parent)), "restore it from a copy")


def _candidates(found: Any, folder: Path) -> Iterator[Experiment]:
    for row in found["candidates"]:
        seeds = [
            SeedResult.parse({"seed": seed, "accuracy": [None] * (len(last) - 1) + [last], "seconds": seconds})
            for seed, last, seconds in zip(row["seeds"], row["accuracy"], row["seconds"], strict=True)
        ]
        settings = {**row["settings"], **found["shared"][row["method"]]}  # what varies first
        yield Experiment(folder / row["name"], row["benchmark"], row["method"], settings, {}, seeds, row["name"])


def _row(name: str, found: Experiment, shared: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "benchmark": found.benchmark,
        "method": found.method,
        "settings": {key: value for key, value in found.settings.items() if key not in shared},
        "seeds": [seed.seed for seed in found.finished],
        "accuracy": [seed.last for seed in found.finished],
        "backward_transfer": [seed.backward_transfer for seed in found.finished],
        "seconds": [round(seed.seconds, 1) for seed in found.finished],
    }


def _shared(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """What all of them have, with the same value."""
    first, *others = settings
    return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}
