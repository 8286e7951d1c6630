"""results.json: every seed of a plan in one file, rewritten whenever one of them finishes a task; and as CSV."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.lab.results.environment import environment
from fromp.lab.results.format import as_csv
from fromp.lab.results.plan import Plan
from fromp.lab.results.record import Experiment, SeedResult, refused, seed_folder

RESULTS = "results.json"
HEADS = ("seed", "after_task", "task", "accuracy")
T = TypeVar("T")


def read(folder: Path) -> Experiment:
    """The experiment in a folder."""
    if not (folder / RESULTS).exists():
        raise CheckpointError(f"{folder} holds no {RESULTS}; name a folder that `fromp run` wrote.")
    way_out = "restore it from a copy, or choose another folder"
    return parsed(folder / RESULTS, lambda found: Experiment.parse(found, folder), way_out)


def read_seed(folder: Path, seed: int) -> SeedResult | None:
    """What one seed has recorded so far in its own file; None if it has not."""
    path = _own_file(folder, seed)
    return parsed(path, SeedResult.parse, "remove it to learn that seed again") if path.exists() else None


def find(root: Path) -> list[Experiment]:
    """The experiment in a folder, or those in its subfolders, the most accurate first."""
    if (root / RESULTS).exists():
        return [read(root)]
    found = [read(path.parent) for path in sorted(root.glob(f"*/{RESULTS}"))]
    if not found:
        raise CheckpointError(
            f"{root} holds no {RESULTS}, nor does a folder in it; name one that `fromp run` or `fromp compare` wrote."
        )
    if len({experiment.method for experiment in found}) < len(found):
        found = [replace(experiment, name=experiment.path.name) for experiment in found]
    return sorted(found, key=_mean_accuracy, reverse=True)


def record(folder: Path, plan: Plan, seed: SeedResult) -> None:
    """Put a seed's present state into its own file, and all of them into results.json."""
    _write_seed(folder, seed)
    with FileLock(folder / ".results.lock"):
        numbers = sorted(int(path.parent.name) for path in folder.glob("seeds/*/run.json"))
        seeds = [found for number in numbers if (found := read_seed(folder, number))]
        _write(Experiment(folder, **json.loads(json.dumps(plan.as_json())), environment=environment(), recorded=seeds))


def unfold(folder: Path) -> None:
    """Put each seed that only results.json has into a file of its own, so that `record` does not lose it."""
    for seed in read(folder).recorded if (folder / RESULTS).exists() else ():
        if not _own_file(folder, seed.seed).exists():
            _write_seed(folder, seed)


def add_forward_transfer(folder: Path, separate: Path) -> None:
    """Put FWT into the seeds that were also learned by networks trained on each task alone."""
    found = read(folder).with_forward_transfer(read(separate))
    for seed in found.recorded:
        _write_seed(folder, seed)
    _write(found)


def _write(experiment: Experiment) -> None:
    runs = [seed.as_json() for seed in experiment.recorded]
    found = {**experiment.plan, "environment": experiment.environment, "runs": runs, "summary": experiment.summaries()}
    storage.replace(experiment.path / RESULTS, (json.dumps(found, indent=1) + "\n").encode())
    storage.replace(experiment.path / "accuracy.csv", as_csv([HEADS, *experiment.cells()]).encode())


def _write_seed(folder: Path, seed: SeedResult) -> None:
    path = _own_file(folder, seed.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.replace(path, json.dumps(seed.as_json()).encode())


def _own_file(folder: Path, seed: int) -> Path:
    return seed_folder(folder, seed) / "run.json"


def parsed(path: Path, parse: Callable[[Any], T], way_out: str) -> T:
    """The content of a JSON file, or our error with its name."""
    try:
        with storage.open_file(path) as file:
            return parse(json.loads(file.read().decode()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refused(path, error, way_out) from error


def _mean_accuracy(experiment: Experiment) -> float:
    summary = experiment.summary("average_accuracy")
    return -1.0 if summary is None else summary.mean
