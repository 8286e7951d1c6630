"""What each of FROMP's five approximations costs: each undone alone, on small streams.

    python tools/approximations.py split-digits --seeds 3        every variant; resumes where it was stopped
    python tools/approximations.py toy --seeds 3 --set batch_size=100 lr=0.01 --variants paper 5-kronecker
    python tools/approximations.py split-digits --points 4 10 20  which points are kept, and how many of each task
    python tools/approximations.py functional-prior              how far the two regularisers of appendix D are apart

Every variant has FROMP's own settings of the benchmark but for those named in VARIANTS. Accuracy, calibration error
and NLL are those of the softmax, on test data (on the toy training data), averaged over tasks. Seconds are of the
processor.
The two forms of VON choose their step and prior precision by NLL on a tenth of the training data, seed 0.
Writes results/approximations/BENCHMARK.json.
"""

import argparse
import copy
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fromp import Categorical
from fromp.derivatives.model import detached, evaluating, named_weights, outputs, trainable
from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import TensorExamples
from fromp.foundation.state import flatten
from fromp.lab.benchmarks import catalogue
from fromp.lab.engine.run import Run
from fromp.lab.methods.relaxed.covariance import Blocks
from fromp.lab.methods.relaxed.method import RelaxedMethod
from fromp.lab.methods.relaxed.points import POINTS
from fromp.lab.methods.relaxed.rows import Prior, linearised, means
from fromp.lab.results import metrics
from fromp.lab.results.environment import environment
from fromp.lab.results.format import Table
from fromp.lab.results.plan import Plan, parse_setting
from fromp.memory import remember

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "approximations"
METHOD = "fromp-relaxed"
BINS = 10
REGULARISERS = {
    "linear": "network made linear in its weights", "network": "the network", "jitter": "the network, the toy's jitter"
}  # fmt: skip
JITTER = 1e-9  # of the kernels of `functional_prior`, in units of their mean diagonal

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "1-sample": {"prior_samples": 1},
    "1-delta-1": {"prior_precision": 1.0},
    "1-sample-delta-1": {"prior_samples": 1, "prior_precision": 1.0},
    "2-trace": {"trace_directions": 1},
    "3-across-tasks": {"across_tasks": True},
    "3-across-classes": {"across_classes": True},
    "3-across-both": {"across_tasks": True, "across_classes": True},
    "4-von-mean": {"update": "von-mean"},
    "4-von": {"update": "von"},
    "5-layers": {"covariance": "layers"},
    "5-whole": {"covariance": "whole"},
    "5-whole-weaker": {"covariance": "whole", "tau": 0.01},
    "5-kronecker": {"covariance": "kronecker"},
    "5-last-layer": {"covariance": "whole", "weights": "last-layer"},
    "kernel-last-layer": {"weights": "last-layer"},
    "kernel-last-layer-weaker": {"weights": "last-layer", "tau": 0.01},
    "v-tenth": {"curvature_share": 0.1},
    "v-hundredth": {"curvature_share": 0.01},
}
TITLES = {
    "paper": "all five, as in the paper",
    "1-sample": "1: prior at a sample, not at the mean",
    "1-delta-1": "prior at the mean, delta = 1",
    "1-sample-delta-1": "1: prior at a sample, delta = 1",
    "2-trace": "2: with the trace and its derivative",
    "3-across-tasks": "3: one kernel across tasks",
    "3-across-classes": "one kernel across classes",
    "3-across-both": "3: one kernel across tasks and classes",
    "4-von-mean": "4: VON's covariance, w = mu",
    "4-von": "4: VON, w drawn",
    "5-layers": "5: covariance exact within layers",
    "5-whole": "5: covariance exact",
    "5-whole-weaker": "the same, tau = 0.01",
    "5-kronecker": "5: covariance Kronecker-factored",
    "5-last-layer": "5: exact, over the last layer alone",
    "kernel-last-layer": "diagonal, over the last layer alone",
    "kernel-last-layer-weaker": "the same, tau = 0.01",
    "v-tenth": "v from a tenth of the data",
    "v-hundredth": "v from a hundredth of the data",
}


def of_points(sizes: list[int]) -> dict[str, dict[str, Any]]:
    """The variants that differ in which points are kept, and how many; tau grows as they become fewer."""
    return {f"{points} {size}": {"points": points, "memory": size} for size in sizes for points in POINTS}


def run(benchmark: str, settings: dict[str, Any], seed: int) -> dict[str, float | int | None]:
    """One seed of a variant."""
    plan = Plan.of(benchmark, METHOD, **settings)
    with tempfile.TemporaryDirectory() as folder:
        one = Run(plan, catalogue.benchmark(benchmark), seed, Path(folder))
        began = time.process_time()
        result = one.complete()
        seconds = time.process_time() - began
    assert isinstance(one.method, RelaxedMethod)
    tensors, _ = flatten(one.method.state_dict())
    quality = []
    with evaluating(one.model), torch.no_grad():
        for task in map(one.stream.task, range(len(one.stream))):
            p = outputs(one.model, task.test.x, task.head).softmax(-1)
            quality.append([calibration_error(p, task.test.y), nll(p, task.test.y)])
    ece, mean_nll = torch.tensor(quality).mean(0).tolist()
    return {
        "seed": seed, "accuracy": result.average_accuracy, "backward_transfer": result.backward_transfer, "ece": ece,
        "nll": mean_nll, "gap": gap(one), "seconds": seconds,
        "kept_mib": sum(t.nbytes for t in tensors.values()) / 2**20,
    }  # fmt: skip


def calibration_error(p: Tensor, y: Tensor) -> float:
    """sum over bins of |stated - right|, by the share of examples."""
    confidence, label = p.max(-1)
    place = (confidence * BINS).long().clamp_max(BINS - 1)
    gaps = (confidence - (label == y).float()).double()
    return float(torch.zeros(BINS, dtype=torch.double).index_add_(0, place, gaps).abs().sum() / len(y))


def gap(one: Run) -> float:
    """How far an example is from the nearest kept one of its task and class, over how far it is from their mean."""
    found = []
    for task, memory in zip(one.stream, one.method.memories, strict=True):
        assert isinstance(task.train.x, Tensor)
        assert isinstance(memory.inputs, Tensor)
        for c in memory.labels.unique():
            x, z = (x[y == c].flatten(1) for x, y in ((task.train.x, task.train.y), (memory.inputs, memory.labels)))
            nearest = torch.cdist(x, z).amin(1)
            found.append(float(nearest.mean() / (x - x.mean(0)).norm(dim=1).mean()))
    return sum(found) / len(found)


def nll(p: Tensor, y: Tensor) -> float:
    """Minus the mean log of the label's probability."""
    return -float(p.clamp_min(1e-12).gather(1, y[:, None]).log().mean())


def functional_prior(seed: int) -> dict[str, Any]:
    """Eq. (7) over the weights' own regulariser, (w - mu)' Sigma^-1 (w - mu), by the number of points.

    For the network, and for the network made linear in its weights: the toy's second task, learned after the first
    without any penalty; the covariance is exact, and one kernel ties all rows.
    """
    plan = Plan.of("toy", METHOD, tasks=2, tau=0.0, batch_size=100, epochs=20)
    with tempfile.TemporaryDirectory() as folder:
        one = Run(plan, catalogue.benchmark("toy"), seed, Path(folder))
        for progress in one.learn():
            if progress.finished and progress.task == 1:
                before = copy.deepcopy(one.model).double()
    after, likelihood = one.model.double(), Categorical()
    train = one.stream.task(0).train
    assert isinstance(train.x, Tensor)
    task = TensorExamples(train.x.double(), train.y)
    weights = detached(before, trainable(before))
    w = torch.cat([(now - weights[name]).detach().flatten() for name, now in named_weights(after).items()])
    covariance = Blocks(weights, plan.settings.prior_precision, [list(weights)]).with_task(
        before, task, likelihood, None
    )
    true = float(w @ covariance.precision[0] @ w)
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {"seed": seed, "points": [2, 6, 20, 60, 200, 600], **{name: [] for name in REGULARISERS}}
    for points in found["points"]:
        memory = remember(task, torch.rand(len(task), generator=generator), task.y, points)
        m, gradients = linearised(before, weights, list(weights), memory, likelihood)
        root = covariance.root(gradients).double()
        rows, smallest = [torch.arange(len(m))], JITTER * float(root.square().sum(1).mean())
        exact, usual = (Prior.of(m, root, rows, jitter) for jitter in (smallest, plan.settings.jitter))
        linear = m + torch.cat([g.flatten(1) for g in gradients.values()], 1) @ w
        moved = means(after, [memory], likelihood).detach()
        for name, prior, there in zip(REGULARISERS, (exact, exact, usual), (linear, moved, moved), strict=True):
            found[name].append(float(prior.squared_distance(there)) / true)
    return found


def chosen_for_von(benchmark: str, settings: dict[str, Any], given: dict[str, Any]) -> list[dict[str, Any]]:
    """Every lr and prior precision that was tried on held-out training data, the best first."""
    tried = []
    for lr in (1e-3, 1e-2):
        for delta in (1.0, 100.0, 10000.0):
            own = {"lr": lr, "prior_precision": delta, "clip_norm": None}
            held_out = {**settings, **given, **own, "validation": 0.1}
            try:
                cost = run(benchmark, held_out, 0)["nll"]
            except FrompError:  # it diverged
                cost = None
            tried.append({**own, "nll": cost if cost is not None and math.isfinite(cost) else None})
    return sorted(tried, key=lambda one: math.inf if one["nll"] is None else one["nll"])


def measure(benchmark: str, variants: dict[str, dict[str, Any]], seeds: int, given: dict[str, Any], file: Path) -> None:
    """Run what is not yet in the file, which is written after each run."""
    found: dict[str, Any] = (
        json.loads(file.read_text()) if file.exists() else {"benchmark": benchmark, "given": given, "variants": {}}
    )
    if found["given"] != given:
        raise FrompError(f"{file} holds runs with {found['given']}; remove it, or give the same --set.")
    for name, settings in variants.items():
        entry = found["variants"].setdefault(name, {"settings": settings, "runs": []})
        if "update" in settings and "tried" not in entry:
            entry["tried"] = chosen_for_von(benchmark, settings, given)
            best = {key: value for key, value in entry["tried"][0].items() if key != "nll"}
            entry["settings"] = {**settings, **best}
        for seed in range(len(entry["runs"]), seeds):
            entry["runs"].append(run(benchmark, {**given, **entry["settings"]}, seed))
            found["environment"] = environment()
            KEPT.mkdir(parents=True, exist_ok=True)
            storage.replace(file, json.dumps(found, indent=1).encode())
            print(name, entry["runs"][-1], flush=True)


def table(found: dict[str, Any]) -> str:
    """One row per variant: mean and standard error over seeds."""
    rows = []
    for name, title in TITLES.items():
        runs = found["variants"].get(name, {}).get("runs", [])
        if runs:
            cells = [_over_seeds(runs, key, factor, digits) for key, factor, digits in COLUMNS]
            own = found["variants"][name]["settings"]
            chosen = f" (lr {own['lr']:g}, delta {own['prior_precision']:g})" if "update" in own else ""
            rows.append([title + chosen, *cells, str(len(runs))])
    heads = ("accuracy", "BWT", "ECE", "NLL", "seconds", "MiB kept", "seeds")
    return Table([f"`{found['benchmark']}`", *heads], rows).markdown()


def prior_table(found: dict[str, Any]) -> str:
    """The functional regulariser over that of the weights, by the number of points: mean and standard error."""
    rows = []
    for place, points in enumerate(found["runs"][0]["points"]):
        cells = [metrics.summarise([one[kind][place] for one in found["runs"]]) for kind in REGULARISERS]
        rows.append([str(points), *(f"{cell.mean:.3g} ± {cell.stderr:.1g}" for cell in cells if cell)])
    return Table(["points", *REGULARISERS.values()], rows).markdown()


def points_table(found: dict[str, Any]) -> str:
    """Average accuracy by the choice of points and their number, and how far examples are from them."""
    seeds = max(len(entry["runs"]) for entry in found["variants"].values())
    complete = {name: entry["runs"] for name, entry in found["variants"].items() if len(entry["runs"]) == seeds}
    runs = {tuple(name.split()): own for name, own in complete.items()}
    sizes = [size for size in dict.fromkeys(size for _, size in runs) if all((name, size) in runs for name in POINTS)]
    rows = []
    for name in POINTS:
        cells = [runs[name, size] for size in sizes]
        accuracy = [_over_seeds(one, "accuracy", 100, 1) for one in cells]
        gaps = [f"{sum(r['gap'] for r in one) / len(one):.2f}" for one in cells]
        rows.append([f"`{name}`", *accuracy, *gaps])
    heads = [f"{size} points" for size in sizes] + [f"gap, {size}" for size in sizes]
    return Table([f"`{found['benchmark']}`, {seeds} seeds", *heads], rows).markdown()


COLUMNS = (
    ("accuracy", 100, 1), ("backward_transfer", 100, 1), ("ece", 100, 1), ("nll", 1, 3), ("seconds", 1, 0),
    ("kept_mib", 1, 1),
)  # fmt: skip


def _over_seeds(runs: list[dict[str, Any]], key: str, factor: float, digits: int) -> str:
    summary = metrics.summarise([factor * one[key] for one in runs])
    assert summary is not None
    if key in ("seconds", "kept_mib"):
        return f"{summary.mean:.{digits}f}"
    return f"{summary.mean:.{digits}f} ± {summary.stderr:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", help="or functional-prior")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--points", nargs="+", type=int, metavar="SIZE", help="compare choices of so many points")
    parser.add_argument("--set", nargs="*", type=parse_setting, default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.benchmark == "functional-prior":
        both = {"runs": [functional_prior(seed) for seed in range(asked.seeds)], "environment": environment()}
        KEPT.mkdir(parents=True, exist_ok=True)
        storage.replace(KEPT / "functional-prior.json", json.dumps(both, indent=1).encode())
        print(prior_table(both))
        return
    given = dict(asked.set)
    if asked.points:
        measure(asked.benchmark, of_points(asked.points), asked.seeds, given, KEPT / f"{asked.benchmark}-points.json")
    else:
        variants = {name: VARIANTS[name] for name in asked.variants}
        measure(asked.benchmark, variants, asked.seeds, given, KEPT / f"{asked.benchmark}.json")


if __name__ == "__main__":
    main()
