"""What the end of a task takes at the least `memory_budget` that it accepts, over a grid of models.

cd tools && python -m reliability.budgets --out ../results/reliability/budgets.json

Each case runs in a process of its own, whose peak of resident memory is compared with the budget. The allocator has
pages of its own: up to `OWN` more is no finding.
"""

import argparse
import multiprocessing
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fromp import FROMP, Categorical, FrompError, FullKernel, IdentityKernel
from fromp.lab.bench.memory import _peak
from reliability.report import keep

FORKED: Any = multiprocessing.get_context("fork")
MIB = 2**20
OWN = 16  # MiB
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
KERNELS = {"full": FullKernel, "K = I": IdentityKernel}
CASES = [(name, kernel, *size) for name in MODELS for kernel in KERNELS for size in ((10, 100), (10, 400), (50, 100))]


def used(name: str, kernel: str, classes: int, points: int, results: Any) -> None:
    """The least budget that the second task's end accepts, and what the process grows by: MiB."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    small, few = _mlp(4, 2)
    FROMP(small, Categorical(), memory_size=2).end_task((few[:4], torch.arange(4) % 2))  # what is imported on first use
    model, x = MODELS[name](classes)
    y = torch.arange(len(x)) % classes
    reg = FROMP(model, Categorical(), memory_size=points, kernel=KERNELS[kernel])
    reg.end_task((x, y))
    reg.memory_budget = 1
    try:
        reg.end_task((x, y))
        results.put((0.0, 0.0))
        return
    except FrompError as error:
        said = re.search(r"memory_budget of .* \((\d+)\)", str(error))
    assert said is not None
    reg.memory_budget = int(said[1])
    before = _peak(reset=True)
    reg.end_task((x, y))
    results.put((reg.memory_budget / MIB, (_peak() - before) / 1024))


def campaign(cases: list[tuple[str, str, int, int]] = CASES) -> tuple[dict[str, Any], list[str]]:
    """Every case; the rows, and which of them take more than they were allowed."""
    rows, findings = [], []
    for case in cases:
        results = FORKED.Queue()
        process = FORKED.Process(target=used, args=(*case, results))
        process.start()
        budget, took = results.get(timeout=3600)
        process.join()
        name, kernel, classes, points = case
        row = {"model": name, "kernel": kernel, "classes": classes, "points": points}
        rows.append({**row, "budget_mib": round(budget, 1), "used_mib": round(took, 1)})
        if not 0 < took < budget + OWN:
            findings.append(f"{case}: {took:.1f} MiB of {budget:.1f}")
        print(rows[-1], flush=True)
    return {"allowed_on_top_mib": OWN, "rows": rows}, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    return keep(parser.parse_args().out, *campaign())


if __name__ == "__main__":
    sys.exit(main())
