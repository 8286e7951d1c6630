"""What the end of a task takes at the least `memory_budget` that it accepts, over a grid of models.

cd tools && python -m reliability.budgets --out ../results/reliability/budgets.json

Each case runs in a process of its own, whose peak of resident memory is compared with the budget, while the allocator
gives back at once what is freed: up to `OWN` more is no finding. Left alone, glibc keeps freed blocks for later: that
peak stands beside it.
"""

import argparse
import ctypes
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fromp import FROMP, Categorical, FrompError, FullKernel, IdentityKernel
from fromp.lab.bench.memory import _peak
from reliability.report import keep, kept

FORKED: Any = multiprocessing.get_context("fork")
MIB = 2**20
OWN = 4  # MiB
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
Made = tuple[nn.Module, Tensor]


def _mlp(width: int, classes: int) -> Made:
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, classes)), torch.randn(1000, 10)


def _cnn(channels: int, classes: int) -> Made:
    layers = (nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(16 * channels, classes)), torch.randn(500, 3, 16, 16)


def _norms(width: int, classes: int) -> Made:
    layers = (nn.Linear(10, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width), nn.GELU())
    return nn.Sequential(*layers, nn.Linear(width, classes)), torch.randn(1000, 10)


def _words(width: int, classes: int) -> Made:
    return nn.Sequential(nn.Embedding(200, width), nn.Flatten(), nn.Linear(20 * width, classes)), torch.randint(
        200, (1000, 20)
    )


MODELS: dict[str, Callable[[int], Made]] = {
    "MLP, 100 units": lambda classes: _mlp(100, classes),
    "MLP, 1000 units": lambda classes: _mlp(1000, classes),
    "convolutions, 32 channels": lambda classes: _cnn(32, classes),
    "norms, 256 units": lambda classes: _norms(256, classes),
    "embedding of 64": lambda classes: _words(64, classes),
}
KERNELS: dict[str, Any] = {"full": FullKernel, "K = I": IdentityKernel}
CASES = [(name, kernel, *size) for size in ((10, 400), (50, 100)) for kernel in KERNELS for name in MODELS]


def least(name: str, kernel: str, classes: int, points: int, results: Any) -> None:
    """The least budget that the end of the second task accepts: bytes."""
    reg, data = _regulariser(name, kernel, classes, points)
    reg.end_task(data)
    reg.memory_budget = 1
    try:
        reg.end_task(data)
        results.put(0)
    except FrompError as error:
        said = re.search(r"memory_budget of .* \((\d+)\)", str(error))
        results.put(int(said[1]) if said else 0)


def used(name: str, kernel: str, classes: int, points: int, budget: int, at_once: bool, results: Any) -> None:
    """What a process grows by that ends two tasks with this budget: MiB. at_once: freed memory goes back at once."""
    libc = ctypes.CDLL(None)
    if at_once:
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            libc.mallopt(option, 2**16)
    warm, data = _regulariser(name, kernel, classes, points)
    for _ in range(2):
        warm.end_task(data)  # what is loaded and set up on first use
    del warm
    reg, data = _regulariser(name, kernel, classes, points)
    reg.memory_budget = budget
    libc.malloc_trim(0)
    before = _peak(reset=True)
    for _ in range(2):
        reg.end_task(data)
    results.put((_peak() - before) / 1024)


def _regulariser(name: str, kernel: str, classes: int, points: int) -> tuple[FROMP, tuple[Tensor, Tensor]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    small, few = _mlp(4, 2)
    FROMP(small, Categorical(), memory_size=2).end_task((few[:4], torch.arange(4) % 2))  # what is imported on first use
    model, x = MODELS[name](classes)
    reg = FROMP(model, Categorical(), memory_size=points, kernel=KERNELS[kernel])
    return reg, (x, torch.arange(len(x)) % classes)


def _in_a_process(do: Callable[..., None], *given: Any) -> Any:
    results = FORKED.Queue()
    process = FORKED.Process(target=do, args=(*given, results))
    process.start()
    found = results.get(timeout=3600)
    process.join()
    return found


def campaign(
    cases: Sequence[tuple[str, str, int, int]] = CASES, done: dict[str, Any] | None = None,
    after_case: Callable[[dict[str, Any], list[str]], Any] = lambda *_: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Every case that is not there yet; the rows, and which of them take more than they were allowed."""
    rows, findings = list((done or {}).get("rows", [])), list((done or {}).get("findings", []))
    found = {"allowed_on_top_mib": OWN, "rows": rows}
    for case in cases[len(rows) :]:
        budget = _in_a_process(least, *case)
        took, resident = (_in_a_process(used, *case, budget, at_once) for at_once in (True, False))
        row = dict(zip(("model", "kernel", "classes", "points"), case, strict=True))
        sizes = {"budget_mib": budget / MIB, "used_mib": took, "resident_mib": resident}
        rows.append(row | {what: round(size, 1) for what, size in sizes.items()})
        if not took < budget / MIB + OWN:
            findings.append(f"{case}: {took:.1f} MiB of {budget / MIB:.1f}")
        after_case(found, findings)
        print(rows[-1], flush=True)
    return found, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    done = kept(out)
    before = done.get("seconds", 0)
    return keep(out, *campaign(CASES, done, partial(keep, out, quiet=True, before=before)), before=before)


if __name__ == "__main__":
    sys.exit(main())
