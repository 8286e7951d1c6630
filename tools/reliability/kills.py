"""`kill -9` at random moments, again and again: what has been killed goes on and ends with the same bits.

cd tools && python -m reliability.kills --kills 200 --out ../results/reliability/kills.json

Runs of several methods, months of `fromp learn`, and a stream that two ranks learn together over gloo, of which one or
all are killed. Each process is forked from one that has imported everything, and so begins at once. After each kill
every folder that has a manifest must be readable; the rank that is left must end by itself. The same command goes on
from the kills that were counted.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError
from fromp.lab.engine import jobs
from fromp.lab.results import store
from fromp.lab.results.plan import Plan
from fromp.learn.console import PlainConsole
from reliability import ranks, writes
from reliability.report import keep, kept

METHODS = ("fromp", "frorp", "si", "vcl-coreset", "der++", "frcl-trace", "joint", "separate", "mixed-past")
SETTINGS: dict[str, Any] = {"tasks": 3, "epochs": 2, "batch_size": 100}  # of toy-less-data, saved after every step
FEW = {"vcl-coreset": {"coreset_epochs": 1}, "frcl-trace": {"search": 20}}
FORKED: Any = multiprocessing.get_context("fork")
PATIENCE = 90.0  # seconds in which a rank must notice that another one is gone
ENOUGH = 8  # kills of one work


@dataclass(frozen=True)
class Work:
    """What is killed: the processes that do it, or what is left of it, and what it has come to in the end."""

    begin: Callable[[Path], Sequence[BaseProcess]]
    outcome: Callable[[Path], Any]


def _process(do: Callable[[Path], object], folder: Path) -> list[BaseProcess]:
    process = FORKED.Process(target=_quietly, args=(do, folder))
    process.start()
    return [process]


def _quietly(do: Callable[[Path], object], folder: Path) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    sys.exit(int(bool(do(folder))))


def _run(method: str, folder: Path) -> int:
    """What `fromp run` does before it writes a report."""
    plan = Plan.of("toy-less-data", method, **SETTINGS, **FEW.get(method, {}))
    return jobs.learn(plan, [0], folder, jobs.Execution(quiet=True, checkpoint_seconds=0), PlainConsole())


def _of_run(folder: Path) -> Any:
    return _digest(folder / "seeds" / "0" / "checkpoint"), store.read(folder).seeds[0].accuracy


def _of_months(folder: Path) -> Any:
    return _digest(folder), writes._of_months(folder)


def _learn_months(folder: Path) -> None:
    writes._first_month(folder) if not (folder / storage.MANIFEST).exists() else None
    writes._second_month(folder)


def _of_ranks(folder: Path) -> Any:
    return [_digest(folder / str(ranks.TASKS - 1) / part) for part in ("weights", "memory")]


def _digest(folder: Path) -> str:
    manifest = json.loads((folder / storage.MANIFEST).read_text())
    return manifest["files"]["tensors"]["sha256"]


WORKS = {
    **{name: Work(partial(_process, partial(_run, name)), _of_run) for name in METHODS},
    "months": Work(partial(_process, _learn_months), _of_months),
    "two ranks": Work(partial(ranks.begun, size=2, way="fork"), _of_ranks),
}
SHARES = {"two ranks": 5, "months": 2}  # rounds, where the others have one


def unreadable(folder: Path) -> list[str]:
    """What cannot be read of the folders that say what they hold."""
    found = []
    for manifest in folder.rglob(storage.MANIFEST):
        try:
            storage.read(manifest.parent, str(storage.kind_and_format(manifest.parent)[0]))
        except CheckpointError as error:
            found.append(str(error))
    return found


def struck(processes: Sequence[BaseProcess], chance: random.Random, limit: float) -> int:
    """Kill one or all of the processes after a time; how many. 0 if they were done before."""
    start = time.monotonic()
    while any(process.is_alive() for process in processes) and time.monotonic() - start < limit:
        time.sleep(0.002)
    alive = [process for process in processes if process.is_alive()]
    chosen = alive if chance.random() < 0.5 else alive[: chance.randint(1, len(alive))] if alive else []
    for process in chosen:
        process.kill()
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"a rank has waited {PATIENCE:.0f} seconds for one that was killed")
    return len(chosen)


def killed_until_done(work: Work, folder: Path, chance: random.Random, seconds: float) -> tuple[int, list[str]]:
    """Begin it, kill it, and so on until it finishes by itself: how often it was killed, and what was wrong then."""
    kills, wrong = 0, list[str]()
    while True:
        processes = work.begin(folder)
        try:
            # On a busy machine a work may not get further between two kills: after enough of them it is let alone.
            died = struck(processes, chance, chance.uniform(0, 0.7 * seconds) if kills < ENOUGH else math.inf)
        except TimeoutError as error:
            return kills, [*wrong, str(error)]
        if not died:
            codes = [process.exitcode for process in processes]
            return kills, wrong + ([f"ended with {codes}"] if any(codes) else [])
        kills += 1
        wrong += unreadable(folder)


def campaign(
    kills: int, names: Sequence[str] = tuple(WORKS), done: dict[str, Any] | None = None, out: Path | None = None
) -> tuple[dict[str, Any], list[str]]:
    """So many kills in all, of each work in turn; what was counted, and what should not have been."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {"kills": 0, "works": {}, **({} if done is None else done)}
    findings: list[str] = list(found.pop("findings", []))
    before = found.get("seconds", 0)
    whole: dict[str, tuple[float, Any]] = {}
    rounds = [name for name in names for _ in range(SHARES.get(name, 1))]
    with tempfile.TemporaryDirectory() as scratch:
        while found["kills"] < kills or len(found["works"]) < len(names):
            number = sum(each["runs"] for each in found["works"].values())
            name = rounds[number % len(rounds)]
            work, folder = WORKS[name], Path(scratch) / str(number) / "work"
            if name not in whole:
                start, alone = time.monotonic(), Path(scratch) / "whole" / name
                alone.mkdir(parents=True)
                for process in work.begin(alone):
                    process.join()
                whole[name] = time.monotonic() - start, work.outcome(alone)
            folder.mkdir(parents=True)
            died, wrong = killed_until_done(work, folder, random.Random(number), whole[name][0])
            entry = found["works"].setdefault(name, {"kills": 0, "runs": 0, "equal": 0, "unreadable": 0})
            equal = not wrong and work.outcome(folder) == whole[name][1]
            findings += [f"{name}, run {number}: {each}"[:300] for each in wrong]
            findings += [] if equal or wrong else [f"{name}, run {number}: another end than without a kill"]
            for key, value in {"kills": died, "runs": 1, "equal": equal, "unreadable": len(wrong)}.items():
                entry[key] += int(value)
            found["kills"] += died
            shutil.rmtree(folder.parent)
            print(f"{found['kills']} kills, {name}: {entry}, {len(findings)} findings so far", flush=True)
            if out is not None:
                keep(out, _figure(found), findings, quiet=True, before=before)
    return _figure(found), findings


def _figure(found: dict[str, Any]) -> dict[str, Any]:
    return {"run": ["toy-less-data", SETTINGS], "kills": found["kills"], "works": found["works"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--works", nargs="*", default=list(WORKS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = kept(options.out)
    done = done if "works" in done else {}
    found, findings = campaign(options.kills, options.works, done, options.out)
    return keep(options.out, found, findings, before=done.get("seconds", 0))


if __name__ == "__main__":
    sys.exit(main())
