"""What a task's end costs at sizes that nobody has tried: a model of it, checked at larger ones than it is fitted at.

python -m fromp.lab.bench.scaling --out results/bench
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fromp import gp
from fromp.curvature import ExactGGN, SignGGN
from fromp.derivatives.budget import MEMORY_BUDGET
from fromp.derivatives.model import trainable
from fromp.foundation import storage
from fromp.foundation.examples import TensorExamples
from fromp.lab.bench.timing import in_a_process
from fromp.lab.results.environment import environment
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical

FORWARD, BACKWARD = 1 / 3, 2 / 3  # of a training pass over an example


@dataclass(frozen=True)
class Size:
    """A task of a stream, and how its end is taken."""

    examples: int
    points: int
    outputs: int  # that have kernels: those of the task's head
    columns: int  # backward passes per example for the GGN
    kernels: float  # computed when a task ends

    def passes(self) -> dict[str, float]:
        """Training passes over an example, by what they are for."""
        return {
            "GGN": self.examples * (FORWARD + self.columns * BACKWARD),
            "kernels": self.kernels * self.points * (FORWARD + self.outputs * BACKWARD),
        }

    def pairs(self) -> float:
        """Pairs of points whose gradients are multiplied; all outputs share most of that work."""
        return self.kernels * self.points**2

    def kernel_bytes(self) -> int:
        """What K^-1 of one task takes in single precision."""
        return 4 * self.outputs * self.points**2


PARTS = "GGN", "kernels"  # that are measured by themselves
SMALL = Size(examples=1000, points=50, outputs=10, columns=9, kernels=1)
FITTED = SMALL, replace(SMALL, points=200)
CHECKED = {
    "10,000 examples, 100 points, 10 outputs": replace(SMALL, examples=10_000, points=100),
    "the same with one sign per example": replace(SMALL, examples=10_000, points=100, columns=1),
    "1,000 examples, 200 points, 100 outputs, one sign": replace(SMALL, points=200, outputs=100, columns=1),
    "1,000 examples, 50 points, 1,000 outputs, one sign": replace(SMALL, outputs=1000, columns=1),
}
GROWTH, GROWTH_POINTS = (10, 1000), 100  # outputs whose kernels the growth of memory is measured with
IMAGENET = Size(examples=12_812, points=200, outputs=1000, columns=999, kernels=50.5)  # the mean over 100 tasks
LORA = Size(examples=10_000, points=200, outputs=4, columns=3, kernels=10.5)
PREDICTED = {
    "ImageNet-1k in 100 tasks, one head of 1,000: exact": IMAGENET,
    "the same with `SignGGN()` and `when_doubled`": replace(IMAGENET, columns=1, kernels=2),
    "the same with a head of 10 outputs per task": replace(IMAGENET, outputs=10, columns=1, kernels=2),
    "20 tasks of 4 classes, LoRA: exact": LORA,
    "the same with `SignGGN()` and `when_doubled`, LoRA": replace(LORA, columns=1, kernels=2),
}


def measured(size: Size, repetitions: int) -> dict[str, float]:
    """Seconds of the processor for each part, and for one training pass over an example: MLP 784-100-100-outputs."""
    generator = torch.Generator().manual_seed(0)
    model = initialise(lambda: mlp(784, (100, 100), size.outputs), seed=0)
    x, y = torch.rand(size.examples, 784, generator=generator), torch.arange(size.examples) % size.outputs
    names, curvature = trainable(model), SignGGN(size.columns) if size.columns < size.outputs - 1 else ExactGGN()
    variance = {name: torch.ones_like(w).detach() for name, w in model.named_parameters()}

    def training() -> None:
        for start in range(0, 1000, 100):
            model.zero_grad()
            F.cross_entropy(model(x[start : start + 100]), y[start : start + 100]).backward()

    def kernels() -> None:
        for k in gp.inverses(gp.kernels(model, x[: size.points], Categorical(), variance), 1e-3):
            k.float()

    cases: dict[str, Callable[[], object]] = {
        "GGN": lambda: gp.ggn_diagonal(model, names, TensorExamples(x, y), Categorical(), curvature=curvature),
        "kernels": kernels,
        "pass": training,
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repetitions):
        for name, case in cases.items():
            start = time.process_time()
            case()
            seconds[name].append(time.process_time() - start)
    best = {name: min(values) for name, values in seconds.items()}
    return best | {"pass": best["pass"] / 1000}


def fitted(few: dict[str, float], many: dict[str, float]) -> dict[str, float]:
    """What a pass for the GGN, one for kernels and a pair of points take, in training passes, from two sizes."""
    one, four = ([found[part] / found["pass"] for part in PARTS] for found in (few, many))
    passes, pairs = ([f(size) for size in FITTED] for f in (lambda size: size.passes()["kernels"], Size.pairs))
    both = torch.tensor([passes, pairs], dtype=torch.double).T
    of_passes, of_pairs = torch.linalg.solve(both, torch.tensor([one[1], four[1]], dtype=torch.double)).tolist()
    return {"GGN": one[0] / SMALL.passes()["GGN"], "kernels": of_passes, "pairs": of_pairs}


def predicted(size: Size, factor: dict[str, float]) -> dict[str, float]:
    """Each part in training passes over an example."""
    passes = size.passes()
    return {
        "GGN": factor["GGN"] * passes["GGN"],
        "kernels": factor["kernels"] * passes["kernels"] + factor["pairs"] * size.pairs(),
    }


def main(out: Path) -> None:
    """Measure at a small size, predict larger ones, compare, and write out/scaling.json."""
    torch.set_num_threads(1)
    factor = fitted(*(measured(size, 3) for size in FITTED))
    checks = []
    for name, size in CHECKED.items():
        found = measured(size, 1 if size.outputs > 10 else 3)
        checks.append(
            {
                "case": name,
                "predicted": predicted(size, factor),
                "measured": {part: found[part] / found["pass"] for part in PARTS},
            }
        )
        print(json.dumps(checks[-1]), flush=True)
    grown = {str(outputs): in_a_process(f"print_growth_of_kernels({outputs}, {GROWTH_POINTS})") for outputs in GROWTH}
    report: dict[str, Any] = {"environment": environment(), "factor": factor, "checks": checks, "MB": grown}
    out.mkdir(parents=True, exist_ok=True)
    storage.replace(out / "scaling.json", (json.dumps(report, indent=1) + "\n").encode())
    print(table(report))


def table(report: dict[str, Any]) -> str:
    """The model's error and what it predicts, as Markdown, for docs/library/scaling.md."""
    factor = report["factor"]
    lines = ["| MLP, checked at | GGN, predicted / measured | kernels, predicted / measured |\n|---|---:|---:|"]
    for row in report["checks"]:
        ratios = (row["predicted"][part] / row["measured"][part] for part in PARTS)
        lines.append(f"| {row['case']} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    lines.append(
        f"\nFitted at 1,000 examples, 50 and 200 points and 10 outputs: the GGN takes {factor['GGN']:.2f} times the "
        f"passes that are counted for it, kernels {factor['kernels']:.1f} times, and a pair of points "
        f"{factor['pairs']:.2f} training passes of this small network."
    )
    kept = Size(0, GROWTH_POINTS, GROWTH[1], 1, 1).kernel_bytes() / 2**20
    few, many = (report["MB"][str(outputs)] for outputs in GROWTH)
    lines.append(
        f"\nThe process grows by {few:.0f} MB for the kernels of {GROWTH[0]} outputs and {GROWTH_POINTS} points, and "
        f"by {many:.0f} MB for those of {GROWTH[1]:,}, of which {kept:.0f} MB are the inverses that it keeps; the "
        f"budget for the work beside them is {MEMORY_BUDGET / 2**20:.0f} MB."
    )
    lines.append("\n| predicted, in epochs of training on the task | GGN | kernels | kept per task |")
    lines.append("|---|---:|---:|---:|")
    for name, size in PREDICTED.items():
        epochs = {part: n / size.examples for part, n in size.passes().items()}
        cells = [f"{factor[part] * epochs[part]:,.1f}" for part in PARTS]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {size.kernel_bytes() / 2**20:,.1f} MB |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    main(parser.parse_args().out)
