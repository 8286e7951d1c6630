"""Fold the results of settings that were tried into one file per benchmark, and drop what runs can write again.

    python tools/migrate_results.py           once, in a clone with results/BENCHMARK/selection/**/results.json

results/BENCHMARK/selection.json gets one row per candidate, and the folders below results/BENCHMARK/selection/ go.
Every accuracy and every recorded setting is compared with its file before that file is deleted. A benchmark that
already has a selection.json is an error: nothing is folded twice, and nothing is changed then.
"""

import shutil
import sys
from pathlib import Path

from fromp.foundation.errors import CheckpointError
from fromp.lab.results import selection, store

RESULTS = Path(__file__).resolve().parent.parent / "results"


def migrate(results: Path) -> dict[str, int]:
    """The number of candidates of each benchmark that has been folded."""
    folders = [path for path in sorted(results.glob("*/selection")) if any(path.rglob("results.json"))]
    for folder in folders:
        if (folder.parent / selection.FILE).exists():
            raise CheckpointError(f"{folder.parent / selection.FILE} exists: the results were folded before.")
    if not folders:
        raise CheckpointError(f"{results} has no */selection/**/results.json; there is nothing to fold.")
    folded = {folder: selection.write(folder.parent, folder) for folder in folders}
    for folder in folders:
        _compare(folder)
    for folder in folders:
        shutil.rmtree(folder)
    for path in results.rglob("accuracy.csv"):
        path.unlink()
    return {folder.parent.name: count for folder, count in folded.items()}


def _compare(folder: Path) -> None:
    """Every candidate has the settings, seeds and accuracies of its file."""
    for found in selection.read(folder.parent / selection.FILE):
        kept = store.read(folder / found.name)
        if found.plan != kept.plan:
            raise CheckpointError(f"{folder / found.name}: the settings of selection.json differ.")
        if {seed.seed: seed.last for seed in found.finished} != {seed.seed: seed.last for seed in kept.finished}:
            raise CheckpointError(f"{folder / found.name}: the accuracies of selection.json differ.")


if __name__ == "__main__":
    try:
        for benchmark, candidates in migrate(RESULTS).items():
            print(f"{benchmark}: {candidates} candidates in {selection.FILE}")
    except CheckpointError as error:
        sys.exit(str(error))
