"""How well stated uncertainty agrees with what happens, on streams that FROMP has learned.

    python tools/uncertainty.py split-digits permuted-digits split-mnist sine diabetes --seeds 3

Held-out training data of the last task alone set the temperature and the noise, as in continual learning. Writes
results/uncertainty/STREAM.json and docs/figures/reliability.png; without a stream, only the figure is drawn again.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from fromp import FROMP, Gaussian, gp
from fromp.derivatives.model import Head, outputs
from fromp.foundation.inputs import Inputs
from fromp.lab.benchmarks import catalogue
from fromp.lab.benchmarks.streams import Stream
from fromp.lab.engine.run import Run
from fromp.lab.engine.tune import HELD_OUT
from fromp.lab.methods.base import Penalised
from fromp.lab.report.figures import style
from fromp.lab.results.environment import environment
from fromp.lab.results.format import seeds_of
from fromp.lab.results.plan import Plan
from fromp.likelihoods import moderated

ROOT = Path(__file__).parent.parent
POINTS = 60  # test points per task, and as many that belong to none
BINS = 10
FEWEST = 5  # answers in a bin that is drawn
SAMPLES = 200
LEVEL = 0.9
TEMPERATURES = [0.25 * 1.1**k for k in range(40)]
SCALES = [10.0 ** (k / 2) for k in range(-12, 3)]


class Part(NamedTuple):
    """One task: held-out training data, test data, and inputs that are of no class of its head."""

    head: Head
    held_x: Tensor
    held_y: Tensor
    x: Tensor
    y: Tensor
    foreign: Tensor


def classes(benchmark: str, seed: int, runs: Path) -> dict[str, dict]:
    """NLL, calibration error and AUROC of each way to state the probabilities of classes, averaged over tasks."""
    plan = Plan.of(benchmark, "fromp", validation=HELD_OUT)
    run = Run(plan, catalogue.benchmark(benchmark), seed, runs / benchmark / str(seed))
    run.complete()
    assert isinstance(run.method, Penalised)
    reg, model = run.method.regulariser, run.model.eval()
    assert isinstance(reg, FROMP)
    parts = _parts(run, Plan.of(benchmark, "fromp").make(seed)[0])
    head, held_x, held_y = parts[-1][:3]  # of the present task alone: those of earlier tasks are gone
    with torch.no_grad():
        f = outputs(model, held_x, head)
    temperature = min(TEMPERATURES, key=lambda t: _nll((f / t).softmax(-1), held_y))
    k = _own_variance(reg, held_x, head)
    scale = min(SCALES, key=lambda s: _nll(moderated(f, s * k).softmax(-1), held_y))
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, list[dict]] = {}
    of_heads = {head: reg.uncertainty(head) for head in dict.fromkeys(part.head for part in parts)}
    for part in parts:
        known = of_heads[part.head]
        (f, s2), (g, t2) = known.latent(part.x), known.latent(part.foreign)
        k, j = _own_variance(reg, part.x, part.head), _own_variance(reg, part.foreign, part.head)
        ways = {
            "softmax": (f.softmax(-1), g.softmax(-1)),
            "temperature": ((f / temperature).softmax(-1), (g / temperature).softmax(-1)),
            "precision, probit": (moderated(f, k).softmax(-1), moderated(g, j).softmax(-1)),
            "precision, probit, scaled": (moderated(f, scale * k).softmax(-1), moderated(g, scale * j).softmax(-1)),
            "memory, probit": (moderated(f, s2).softmax(-1), moderated(g, t2).softmax(-1)),
            "memory, sampled": (_sampled(f, s2, generator), _sampled(g, t2, generator)),
        }
        for name, (p, q) in ways.items():
            found.setdefault(name, []).append(_of_classes(p, q, part.y))
    chosen = {"temperature": temperature, "precision, probit, scaled": scale}
    return {name: _mean(of_tasks) | {"chosen": chosen.get(name)} for name, of_tasks in found.items()}


def regression(stream: str, seed: int, runs: Path) -> dict[str, dict]:
    """Coverage, width and NLL of 90 % intervals, where the model has learned and where it has not."""
    tasks, foreign = REGRESSIONS[stream](seed)
    noise, epochs = (0.01, 200) if stream == "sine" else (0.5, 40)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(tasks[0][0][0].shape[1], 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 1)
    )
    likelihood = Gaussian(1 / noise)
    reg = FROMP(model, likelihood, tau=1.0, memory_size=30, prior_precision=0.1, jitter=1e-3)
    for (x, y), _, _ in tasks:
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(60):
                loss = likelihood.nll(model(x[batch]), y[batch]).mean() + reg.penalty()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        reg.end_task(x, y)
    held_x, held_y = tasks[-1][1]
    with torch.no_grad():
        noise = float((model(held_x)[:, 0] - held_y).square().mean())
    x, y = (torch.cat(column) for column in zip(*(task[2] for task in tasks), strict=True))
    known = reg.uncertainty()

    def intervals(x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        f, s2 = (column[:, 0] for column in known.latent(x))
        own = reg.predict(x).variance[:, 0] - 1 / likelihood.noise_precision
        return {
            "held-out error": (f, torch.full_like(f, noise)), "precision": (f, own + noise), "memory": (f, s2 + noise)
        }  # fmt: skip

    found = {}
    outside = intervals(foreign[0])
    for name, inside in intervals(x).items():
        there = _of_intervals(*outside[name], foreign[1])
        found[name] = _of_intervals(*inside, y) | {f"foreign {key}": value for key, value in there.items()}
    return found


def sine(seed: int) -> tuple[list, tuple[Tensor, Tensor]]:
    """Three pieces of a curve, one per task; the gaps between them and what follows are foreign."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float, n: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(n, 1, generator=generator) * (high - low) + low
        return x, torch.sin(3 * x[:, 0]) + 0.3 * x[:, 0] + 0.1 * torch.randn(n, generator=generator)

    tasks = [[draw(*ends, n) for n in (120, 30, 200)] for ends in ((-3.0, -1.8), (-1.2, 0.0), (0.6, 1.8))]
    gaps = [draw(*ends, 100) for ends in ((-1.8, -1.2), (0.0, 0.6), (1.8, 3.0))]
    return tasks, (torch.cat([x for x, _ in gaps]), torch.cat([y for _, y in gaps]))


def diabetes(seed: int) -> tuple[list, tuple[Tensor, Tensor]]:
    """Patients in four groups by body mass: one task each for three of them, the heaviest are foreign."""
    x, y = (torch.tensor(column).float() for column in load_diabetes(return_X_y=True))
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    generator, groups = torch.Generator().manual_seed(seed), x[:, 2].argsort().tensor_split(4)
    tasks = []
    for group in groups[:3]:
        mixed = group[torch.randperm(len(group), generator=generator)]
        parts = mixed.tensor_split([int(0.6 * len(mixed)), int(0.75 * len(mixed))])
        tasks.append([(x[part], y[part]) for part in parts])
    return tasks, (x[groups[3]], y[groups[3]])


REGRESSIONS: dict[str, Callable[[int], tuple[list, tuple[Tensor, Tensor]]]] = {"sine": sine, "diabetes": diabetes}


def _parts(run: Run, tests: Stream) -> list[Part]:
    """Each task's data. Foreign are the test images of the other tasks, or, where all share one head, a new order."""
    found, count = [], len(run.stream)
    tested = [(_images(task.test.x), task.test.y) for task in tests]
    for place in range(count):
        task, (x, y) = run.stream.task(place), tested[place]
        if task.head is not None:
            some = POINTS // (count - 1)
            foreign = torch.cat([other[:some] for index, (other, _) in enumerate(tested) if index != place])
        else:
            order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(-1))
            foreign = x[:POINTS, order]
        found.append(Part(task.head, _images(task.test.x), task.test.y, x[:POINTS], y[:POINTS], foreign))
    return found


def _images(x: Inputs) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _own_variance(reg: FROMP, x: Tensor, head: Head) -> Tensor:
    """k(x, x) of the outputs under the precision of all data, Eq. (4), without what the memory says."""
    return gp.marginals(reg.model, x, Gaussian(), reg.variance(tuple(reg.precision)), head)[1]


def _sampled(f: Tensor, variance: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(SAMPLES, *f.shape, generator=generator)
    return (f + variance.sqrt() * noise).softmax(-1).mean(0)


def _nll(p: Tensor, y: Tensor) -> float:
    return -float(p.clamp_min(1e-12).gather(1, y[:, None]).log().mean())


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.clamp_min(1e-12).log()).sum(-1)


def _of_classes(p: Tensor, foreign: Tensor, y: Tensor) -> dict:
    confidence, label = p.max(-1)
    place = (confidence * BINS).long().clamp_max(BINS - 1)
    bins = []
    for k in range(BINS):
        of = place == k
        bins.append([float(confidence[of].sum()), float((label == y)[of].sum()), int(of.sum())])
    error = sum(abs(stated - right) for stated, right, _ in bins) / len(y)
    return {"nll": _nll(p, y), "ece": error, "auroc": _auroc(_entropy(p), _entropy(foreign)), "bins": bins}


def _auroc(inside: Tensor, foreign: Tensor) -> float:
    """How often a foreign input has the higher score, ties counted half."""
    above = (foreign[:, None] > inside).double() + 0.5 * (foreign[:, None] == inside).double()
    return float(above.mean())


def _of_intervals(f: Tensor, variance: Tensor, y: Tensor) -> dict[str, float]:
    z = 2**0.5 * float(torch.erfinv(torch.tensor(LEVEL)))
    error = (y - f).abs()
    return {
        "coverage": float((error <= z * variance.sqrt()).double().mean()),
        "width": float(2 * z * variance.sqrt().mean()),
        "nll": float((0.5 * (2 * math.pi * variance).log() + 0.5 * error.square() / variance).mean()),
    }


def _mean(of_tasks: list[dict]) -> dict:
    found = {key: sum(one[key] for one in of_tasks) / len(of_tasks) for key in ("nll", "ece", "auroc")}
    return found | {"bins": torch.tensor([one["bins"] for one in of_tasks]).sum(0).tolist()}


@rc_context(style.STYLE)
def figure(results: Path, path: Path) -> None:
    """Reliability: the share of right answers over the stated probability, summed over seeds and tasks."""
    files = [file for file in sorted(results.glob("*.json")) if "softmax" in json.loads(file.read_text())["runs"][0]]
    shown = Figure(figsize=(3.4 * len(files), 3.8), layout="constrained")
    for index, file in enumerate(files):
        axes, runs = shown.add_subplot(1, len(files), index + 1), json.loads(file.read_text())["runs"]
        axes.plot([0, 1], [0, 1], color=style.INK, alpha=0.4, linewidth=1)
        for place, name in enumerate(("softmax", "temperature", "memory, probit")):
            bins = torch.tensor([run[name]["bins"] for run in runs]).sum(0)
            bins = bins[bins[:, 2] >= FEWEST]
            look = style.look(place)
            axes.plot(
                bins[:, 0] / bins[:, 2], bins[:, 1] / bins[:, 2], color=look.colour, marker=look.marker, label=name
            )
        axes.set(title=f"{file.stem}, {seeds_of([len(runs)])}", xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
        axes.set_xlabel("stated probability of the predicted class")
        if index == 0:
            axes.set_ylabel("share of right answers")
    shown.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    shown.savefig(path, dpi=style.PIXELS / shown.get_figwidth())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "uncertainty")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "uncertainty")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for stream in given.streams:
        measure = regression if stream in REGRESSIONS else classes
        found = [measure(stream, seed, given.runs) for seed in range(given.seeds)]
        settings = {"points": POINTS, "bins": BINS, "samples": SAMPLES, "level": LEVEL, "held_out": HELD_OUT}
        text = {"stream": stream, "settings": settings, "environment": environment(), "runs": found}
        (given.out / f"{stream}.json").write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
        print(stream, "done", flush=True)
    figure(given.out, ROOT / "docs" / "figures" / "reliability.png")


if __name__ == "__main__":
    main()
