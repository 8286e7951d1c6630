"""Several processes that save to one folder and load from it all the time: each load is one of the saves, whole.

cd tools && python -m reliability.beside --seconds 60 --out ../results/reliability/beside.json
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from reliability.report import keep

FORKED: Any = multiprocessing.get_context("fork")
NUMBERS = 5000  # in the tensor that is saved


def write(folder: Path, number: int, seconds: float, results: Any) -> None:
    """Save states that tell which they are, until the time is over."""
    saves, wrong, stop = 0, dict[str, None](), time.monotonic() + seconds
    while time.monotonic() < stop:
        told = number + saves / 1e6
        try:
            storage.write(folder, "beside", {"told": told, "values": torch.full((NUMBERS,), told, dtype=torch.double)})
            saves += 1
        except Exception as error:
            wrong[f"a save: {type(error).__name__}: {error}"[:300]] = None
    results.put(("saves", saves, list(wrong)))


def read(folder: Path, seconds: float, results: Any) -> None:
    """Load, and look whether tensor and number are of one save."""
    loads, wrong, stop = 0, dict[str, None](), time.monotonic() + seconds
    while time.monotonic() < stop:
        try:
            found = storage.read(folder, "beside")
            loads += 1
            if not bool((found["values"] == found["told"]).all()):
                wrong[f"a load of two saves: {found['told']}"] = None
        except Exception as error:
            what = "refused" if isinstance(error, FrompError) else type(error).__name__
            wrong[f"a load: {what}: {error}"[:300]] = None
    results.put(("loads", loads, list(wrong)))


def campaign(seconds: float, writers: int = 2, readers: int = 2) -> tuple[dict[str, Any], list[str]]:
    """So many seconds of writers and readers at work in one folder."""
    counts, findings = {"saves": 0, "loads": 0}, list[str]()
    with tempfile.TemporaryDirectory() as scratch:
        folder, results = Path(scratch) / "folder", FORKED.Queue()
        storage.write(folder, "beside", {"told": 0.0, "values": torch.zeros(NUMBERS, dtype=torch.double)})
        jobs = [FORKED.Process(target=write, args=(folder, n + 1, seconds, results)) for n in range(writers)]
        jobs += [FORKED.Process(target=read, args=(folder, seconds, results)) for _ in range(readers)]
        for job in jobs:
            job.start()
        for _ in jobs:
            what, count, wrong = results.get(timeout=seconds + 300)
            counts[what] += count
            findings += wrong
        for job in jobs:
            job.join()
        if (left := len(list(folder.iterdir()))) != 3:
            findings.append(f"{left} files are left in the folder, not 3")
    return {"writers": writers, "readers": readers, **counts}, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    return keep(options.out, *campaign(options.seconds))


if __name__ == "__main__":
    sys.exit(main())
