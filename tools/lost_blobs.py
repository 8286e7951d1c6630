"""Why points at the boundary alone fail on the toy at some seeds: the first task, before and after the second.

    python tools/lost_blobs.py --seeds 8

FROMP at a learning rate of 0.01, with three choices of its points. An example is lost if it was right at the end of its
own task and is wrong later. Writes results/approximations/toy-lost.json, in about two minutes per seed.
"""

import argparse
import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fromp import Categorical, gp
from fromp.derivatives.model import Weights, evaluating
from fromp.foundation import storage
from fromp.lab.benchmarks import catalogue
from fromp.lab.engine.run import Run
from fromp.lab.methods.base import Penalised
from fromp.lab.methods.relaxed.covariance import Diagonal
from fromp.lab.methods.relaxed.regulariser import Relaxed
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table
from fromp.lab.results.plan import Plan

FILE = Path(__file__).resolve().parent.parent / "results" / "approximations" / "toy-lost.json"
SETTINGS = {"tasks": 2, "lr": 0.01}
POINTS = ("trace", "random", "mixed")


def measure(points: str, seed: int) -> dict[str, Any]:
    """The kernel beside the jitter, when the first task ended, at its examples that were kept and that are lost."""
    plan = Plan.of("toy", "fromp-relaxed", points=points, **SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        one = Run(plan, catalogue.benchmark("toy"), seed, Path(folder))
        ends = [(copy.deepcopy(one.model), _variance(one)) for progress in one.learn() if progress.finished]
        accuracy = one.result().accuracy[-1]
    assert accuracy is not None
    (before, variance), (after, _) = ends[0], ends[-1]
    task, kept = one.stream.task(0).train, one.method.memories[0].inputs
    x, y = task.take(torch.arange(len(task)))
    assert isinstance(kept, Tensor)
    assert isinstance(x, Tensor)
    lost = x[(_means(before, x).argmax(1) == y) & (_means(after, x).argmax(1) != y)]
    found: dict[str, Any] = {"points": points, "seed": seed, "accuracy": accuracy, "lost_share": len(lost) / len(x)}
    for name, where in (("kept", kept), ("lost", lost)):
        if len(where):
            k = gp.marginals(before, where, Categorical(), variance)[1]
            found[name] = {"kernel": float(k.amax(1).median()) / plan.settings.jitter}
    return found


def _variance(one: Run) -> Weights:
    assert isinstance(one.method, Penalised)
    assert isinstance(one.method.regulariser, Relaxed)
    assert isinstance(one.method.regulariser.covariance, Diagonal)
    return one.method.regulariser.covariance.variance


def table(found: dict[str, Any]) -> str:
    """One row per seed and choice of points."""
    rows = []
    for one in sorted(found["runs"], key=lambda one: int(one["seed"])):
        kernels = [f"{one[place]['kernel']:.1g}" if place in one else "" for place in ("kept", "lost")]
        accuracies = [f"{100 * accuracy:.1f}" for accuracy in one["accuracy"]]
        rows.append([f"`{one['points']}`", str(one["seed"]), *accuracies, *kernels])
    heads = ("points", "seed", "task 1", "task 2", "K / jitter at what was kept", "K / jitter at what is lost")
    return Table(heads, rows).markdown()


def _means(model: nn.Module, x: Tensor) -> Tensor:
    with evaluating(model), torch.no_grad():
        return torch.as_tensor(model(x)).softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[8])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"settings": SETTINGS, "runs": []}
    for seed in asked.seeds:
        for points in POINTS:
            found["runs"].append(measure(points, seed))
            print(found["runs"][-1], flush=True)
    storage.replace(FILE, json.dumps({**found, "environment": environment()}, indent=1).encode())
    print(table(found))


if __name__ == "__main__":
    main()
