"""What the penalty costs each of several ranks: with the whole memory on each of them, and with the memory split.

torchrun --nproc-per-node=2 -m fromp.lab.bench.ranks --out results/bench
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fromp.foundation import storage
from fromp.foundation.collectives import ALONE, Ranks, Together
from fromp.lab.bench.cases import SETTINGS
from fromp.lab.engine.threads import keep_memory
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table

TASKS = {"mlp": 9, "cnn": 5}
WAYS = {"whole": "the whole memory on each rank", "split": "the memory split over the ranks"}


def costs(name: str, ranks: Ranks, repetitions: int) -> dict[str, Any]:
    """Seconds that the penalty and its gradient take in each way: medians over repetitions, of the slowest rank.

    `process` counts what a rank computes, however busy the machine is; `wall` also what it waits for.
    """
    case = SETTINGS[name]()
    prior = case.prior(TASKS[name])
    with torch.no_grad():
        for p in case.model.parameters():
            p += 0.01 * torch.randn(p.shape, generator=case.generator)

    def step(of: Ranks) -> Callable[[], None]:
        return lambda: prior.squared_distance(case.model, None, of).backward()

    ways = {"whole": step(ALONE), "split": step(ranks)}
    taken: dict[str, list[list[float]]] = {way: [] for way in ways}
    for repetition in range(repetitions + 1):
        for way, work in ways.items():
            case.model.zero_grad()
            ranks.exchange(None)  # all of them begin together
            wall, process = time.perf_counter(), time.process_time()
            work()
            spent = [time.process_time() - process, time.perf_counter() - wall]
            slowest = [max(times) for times in zip(*ranks.exchange(spent), strict=True)]
            if repetition:  # the first warms up
                taken[way].append(slowest)
    found = {
        way: dict(zip(("process", "wall"), map(statistics.median, zip(*each, strict=True)), strict=True))
        for way, each in taken.items()
    }
    return {"network": name, "tasks": TASKS[name], "ranks": ranks.size, "repetitions": repetitions, "seconds": found}


def table(found: dict[str, Any]) -> str:
    """One row per network: milliseconds of computing per rank, and their ratio."""
    rows = []
    for row in found["rows"]:
        whole, split = (row["seconds"][way]["process"] for way in WAYS)
        numbers = [f"{1000 * whole:.1f} ms", f"{1000 * split:.1f} ms", f"{split / whole:.2f}"]
        rows.append([row["network"].upper(), str(row["tasks"]), str(row["ranks"]), *numbers])
    return Table(["network", "past tasks", "ranks", *WAYS.values(), "ratio"], rows).markdown()


def main(out: Path, repetitions: int) -> None:
    """Measure both networks, and write them to out/ranks.json beside what other numbers of ranks took."""
    torch.set_num_threads(1)
    keep_memory()
    dist.init_process_group("gloo")
    ranks = Together(dist.group.WORLD, torch.device("cpu"))
    rows = [costs(name, ranks, repetitions) for name in SETTINGS]
    if ranks.rank == 0:
        path = out / "ranks.json"
        known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
        rows = sorted(
            [*(row for row in known if row["ranks"] != ranks.size), *rows],
            key=lambda row: (list(SETTINGS).index(row["network"]), row["ranks"]),
        )
        out.mkdir(parents=True, exist_ok=True)
        report = {"environment": environment(), "threads": 1, "rows": rows}
        storage.replace(path, (json.dumps(report, indent=1) + "\n").encode())
        print(table(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--repetitions", type=int, default=20)
    given = parser.parse_args()
    main(given.out, given.repetitions)
