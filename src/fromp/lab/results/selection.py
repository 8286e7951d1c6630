"""selection.json: the settings tried on a benchmark in one file, one row per candidate."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.lab.results import metrics, store
from fromp.lab.results.record import Experiment

FILE = "selection.json"


def write(out: Path, folder: Path) -> int:
    """Collect every results.json below `folder` into out/selection.json; returns the number of candidates.

    Settings that all candidates of a method have in common stand once, under `shared`. A row has the others and, for
    each finished seed, the accuracy on each task after the last, the backward transfer and the seconds.
    """
    found = {path.parent: json.loads(path.read_text()) for path in sorted(folder.rglob("results.json"))}
    methods = dict.fromkeys(results["method"] for results in found.values())
    shared = {
        name: _shared([each["settings"] for each in found.values() if each["method"] == name]) for name in methods
    }
    rows = [
        _row(path.relative_to(folder).as_posix(), results, shared[results["method"]]) for path, results in found.items()
    ]
    common = ",\n".join(f"{json.dumps(name)}: {json.dumps(settings)}" for name, settings in shared.items())
    candidates = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"shared": {{\n{common}\n}},\n"candidates": [\n{candidates}\n]}}\n'
    storage.replace(out / FILE, text.encode())
    return len(rows)


def read(file: Path) -> list[Experiment]:
    """The candidates of a selection.json; of each accuracy matrix, only the last row was kept."""
    found = json.loads(file.read_text())
    experiments = []
    for row in found["candidates"]:
        columns = row["seeds"], row["accuracy"], row["backward_transfer"], row["seconds"]
        runs = [
            {
                "seed": seed, "accuracy": [accuracy], "average_accuracy": metrics.average_accuracy([accuracy]),
                "backward_transfer": transfer, "seconds": seconds,
            }
            for seed, accuracy, transfer, seconds in zip(*columns, strict=True)
        ]  # fmt: skip
        settings = {**found["shared"][row["method"]], **row["settings"]}
        place, benchmark, method = file.parent / row["name"], row["benchmark"], row["method"]
        experiments.append(Experiment(place, row["name"], benchmark, method, settings, {}, runs, store.summary(runs)))
    return experiments


def _row(name: str, results: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    runs = store.finished(results["runs"])
    return {
        "name": name,
        "benchmark": results["benchmark"],
        "method": results["method"],
        "settings": {key: value for key, value in results["settings"].items() if key not in shared},
        "seeds": [run["seed"] for run in runs],
        "accuracy": [run["accuracy"][-1] for run in runs],
        "backward_transfer": [run["backward_transfer"] for run in runs],
        "seconds": [round(run["seconds"], 1) for run in runs],
    }


def _shared(settings: list[dict[str, Any]]) -> dict[str, Any]:
    """What all of them have, with the same value."""
    first, *others = settings
    return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}
