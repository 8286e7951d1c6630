"""Steps and task ends whose cost does not grow: what each way of having them costs in accuracy, and how level it is.

python -m fromp.lab.bench.level --out results/bench [SECTION ...]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp.composed import Composed
from fromp.contexts.remembered import Remembered
from fromp.foundation import storage
from fromp.foundation.examples import TensorExamples
from fromp.holding import Hold
from fromp.lab import data
from fromp.lab.bench.cases import SETTINGS
from fromp.lab.bench.steps import fromp_step, plain_step
from fromp.lab.benchmarks.streams import Permuted
from fromp.lab.methods.fromp import CARD
from fromp.lab.results.environment import environment
from fromp.lab.results.metrics import summarise
from fromp.lab.results.plan import Plan
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical
from fromp.metrics.full_kernel import FullKernel
from fromp.metrics.logits import Logits
from fromp.mixed_past import MixedPast
from fromp.protocol import no_penalty
from fromp.refresh import at_every_end, never, when_doubled
from fromp.regulariser import FROMP

BENCHMARK, TASKS, EPOCHS, SEEDS, POINTS, BATCH = "permuted-digits", 6, 10, 3, 50, 32
PLAN = Plan.of(BENCHMARK, CARD.name).flat()


class Held(Protocol):
    """What a loop needs of a regulariser."""

    def penalty(self) -> Tensor: ...
    def end_task(self, data: Any) -> None: ...


def fromp(model: nn.Module, **changes: Any) -> FROMP:
    """FROMP with the preset of the benchmark, and some settings changed."""
    own: dict[str, Any] = {name: PLAN[name] for name in ("tau", "prior_precision", "jitter")} | changes
    return FROMP(model, Categorical(), memory_size=POINTS, **own)


class Drawn:
    """Points drawn within every task, in turns: `BATCH` of them per step over all tasks, scaled up to all points.

    own_kernels: whether the kernel is that of the drawn points (S-FSVI's way), which is inverted in each step, or that
    of all points, of which those that are not drawn keep the deviation that they had when they last were.
    """

    def __init__(self, reg: FROMP, own_kernels: bool) -> None:
        self._reg, self._own_kernels = reg, own_kernels
        self._generator = torch.Generator().manual_seed(0)

    def end_task(self, data: Any) -> None:
        self._reg.end_task(data)
        anchors = self._reg._anchors()
        self._x = torch.stack([a.memory.inputs for a in anchors])  # type: ignore[misc]
        self._mean = torch.stack([a.mean for a in anchors])
        self._inverse = torch.cat([a.kernel.inverse for a in anchors if isinstance(a.kernel, FullKernel)])
        self._kernel = torch.linalg.inv(self._inverse.double()) if self._own_kernels else self._inverse
        self._d, self._u = torch.zeros_like(self._mean), torch.zeros_like(self._mean)
        self._order = torch.empty(len(anchors), 0, dtype=torch.long)

    def penalty(self) -> Tensor:
        if not self._reg.memories:
            return no_penalty(self._reg.model)
        t, c, i = self._mean.shape
        k = max(1, BATCH // t)
        if self._order.shape[1] < k:
            self._order = torch.rand(t, i, generator=self._generator).argsort(1)
        drawn, self._order = self._order[:, :k], self._order[:, k:]
        m = self._reg.likelihood.mean(self._reg.model(self._x[torch.arange(t)[:, None], drawn].flatten(0, 1)))
        places = drawn[:, None].expand(t, c, k)
        d = m.view(t, k, c).mT - self._mean.gather(2, places)
        rows = self._kernel.gather(2, drawn[:, None, :, None].expand(t, c, k, i))
        if self._own_kernels:
            factor = torch.linalg.cholesky(rows.gather(3, drawn[:, None, None].expand(t, c, k, k))).to(d.dtype)
            distance = torch.linalg.solve_triangular(factor, d[..., None], upper=False).square().sum()
            return 0.5 * self._reg.tau * i / k * distance
        with torch.no_grad():
            self._u += torch.einsum("tcki,tck->tci", rows, d - self._d.gather(2, places))
            self._d.scatter_(2, places, d.detach())
        return self._reg.tau * i / k * (self._u.gather(2, places) * d).sum()


class EveryFourth:
    """The whole penalty at every fourth step, four times as strong."""

    def __init__(self, reg: FROMP) -> None:
        self._reg, self._step, self.end_task = reg, 0, reg.end_task

    def penalty(self) -> Tensor:
        self._step += 1
        return no_penalty(self._reg.model) if self._step % 4 else 4 * self._reg.penalty()


WAYS: dict[str, tuple[bool, Callable[[nn.Module], Held] | None]] = {  # whether its gradient is clipped, as FROMP's is
    "plain training": (False, None),
    "all points": (True, fromp),
    "two tasks per step": (True, partial(fromp, tasks_per_step=2)),
    "points of every task, their own kernel": (True, lambda model: Drawn(fromp(model), True)),
    "points of every task, deviations remembered": (True, lambda model: Drawn(fromp(model), False)),
    "every fourth step, times four": (True, lambda model: EveryFourth(fromp(model))),
    "`Composed`: remembered points, logits": (
        False, lambda m: Composed(m, Categorical(), [Hold(Remembered(BATCH), Logits(), 0.03)], POINTS)
    ),
    "`MixedPast`": (
        False, lambda m: MixedPast(m, Categorical(), POINTS, 0.03, 0.02, points_per_step=BATCH, metric=Logits())
    ),
}  # fmt: skip
RULES = {rule.__name__: rule for rule in (at_every_end, when_doubled, never)}


def learn(make: Callable[[nn.Module], Held] | None, clipped: bool, seed: int) -> tuple[float, Held | None]:
    """The average accuracy after all tasks, and what held the network."""
    stream = Permuted(data.load("digits"), TASKS, 10, seed)
    model = initialise(lambda: mlp(64, (100, 100), 10), seed)
    reg, draws = make(model) if make else None, torch.Generator().manual_seed(seed)
    for place in range(TASKS):
        x, y = _tensors(stream.task(place).train)
        optimizer = torch.optim.Adam(model.parameters(), PLAN["lr"], fused=True)
        batches = [b for _ in range(EPOCHS) for b in torch.randperm(len(y), generator=draws).split(BATCH)]
        for step, chosen in enumerate(batches):
            optimizer.param_groups[0]["lr"] = PLAN["lr"] * (1 - step / len(batches))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[chosen]), y[chosen])
            (loss + reg.penalty() if reg else loss).backward()
            if clipped:
                nn.utils.clip_grad_norm_(model.parameters(), PLAN["clip_norm"])
            optimizer.step()
        if reg is not None:
            reg.end_task((x, y))
    with torch.no_grad():
        tests = (_tensors(stream.task(place).test) for place in range(TASKS))
        return sum(float((model(x).argmax(1) == y).double().mean()) for x, y in tests) / TASKS, reg


def accuracy() -> list[dict[str, Any]]:
    """What each way of having a level step costs."""
    seeds = range(SEEDS)
    return [_row(way, [learn(make, clipped, seed)[0] for seed in seeds]) for way, (clipped, make) in WAYS.items()]


def refresh() -> list[dict[str, Any]]:
    """What it costs to keep kernels as they were, at the preset's strength and at a quarter of it."""
    rows = []
    for share in (1.0, 0.25):
        for name, rule in RULES.items():
            tau = share * PLAN["tau"]
            make = partial(fromp, refresh=rule, tau=tau)
            rows.append(_row(name, [learn(make, True, seed)[0] for seed in range(SEEDS)]) | {"tau": tau})
    return rows


def ages() -> list[dict[str, Any]]:
    """By how much a kept kernel is off after so many further tasks: in the gradient of its task's share, by age."""
    found: dict[int, list[tuple[float, float, float]]] = {}
    for seed in range(SEEDS):
        _, kept = learn(partial(fromp, refresh=never), True, seed)
        assert isinstance(kept, FROMP)
        prior = kept._prior_at(kept.memories, kept.precision, kept.ranks)
        d = 0.01 * torch.randn(10, POINTS, generator=torch.Generator().manual_seed(seed))
        for place, (one, other) in enumerate(zip(kept._anchors(), prior.anchors, strict=True)):
            a, b = (anchor.kernel.solve(d[None]).flatten() for anchor in (one, other))
            scale = float(a @ b / b.square().sum())
            found.setdefault(TASKS - 1 - place, []).append(
                (float((a - b).norm() / b.norm()), scale, float((a @ b) / (a.norm() * b.norm())))
            )
    columns = ("difference", "scale", "cosine")
    return [
        {"age": age} | dict(zip(columns, (sum(v) / len(v) for v in zip(*values, strict=True)), strict=True))
        for age, values in sorted(found.items())
    ]


def steps() -> list[dict[str, Any]]:
    """A step on the MLP of Permuted MNIST against a plain one, minibatch 128 and 200 points per task, by past tasks."""
    rows, setting = [], SETTINGS["mlp"]()
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)
    for past in (1, 9, 50):
        prior, mixed = setting.prior(past), MixedPast(setting.model, Categorical(), points_per_step=setting.batch_size)
        for _ in range(past):
            mixed.end_task(TensorExamples(setting.images(200), setting.labels(200)))

        def mixed_step(mixed: MixedPast = mixed) -> None:
            setting.optimizer.zero_grad()
            (F.cross_entropy(setting.model(x), y) + mixed.penalty(x)).backward()
            setting.optimizer.step()

        ways: dict[str, Callable[[], None]] = {
            "plain training": partial(plain_step, setting, [(x, y)]),
            "all points": partial(fromp_step, setting, x, y, prior, None),
            "`MixedPast`": mixed_step,
        }
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(20):
            for way, step in ways.items():
                start = time.process_time()  # the machine may be busy, and a plain step is short
                step()
                spent[way].append(time.process_time() - start)
        seconds = {way: min(values) for way, values in spent.items()}
        ratio = {way: value / seconds["plain training"] for way, value in seconds.items()}
        rows.append({"past_tasks": past, "seconds": seconds, "ratio": ratio})
    return rows


def ends() -> list[dict[str, Any]]:
    """`end_task` with 10 and 150 tasks, MLP of Permuted MNIST, 2,000 examples, 40 points per task: mean of 8 ends."""
    rows = []
    for name, rule in RULES.items():
        generator = torch.Generator().manual_seed(0)
        model = initialise(lambda: mlp(784, (100, 100), 10), seed=0)
        reg, seconds = FROMP(model, Categorical(), memory_size=40, jitter=1e-3), {}
        windows = {tasks: range(tasks - 4, tasks + 4) for tasks in (10, 150)}
        for tasks in range(1, 154):
            x, y = torch.rand(2000, 784, generator=generator), torch.arange(2000) % 10
            reg.refresh = rule if any(tasks in window for window in windows.values()) else never  # to get there soon
            start = time.process_time()  # the machine may be busy, and a task ends only once
            reg.end_task((x, y))
            seconds[tasks] = time.process_time() - start
        at = {str(tasks): sum(seconds[n] for n in window) / len(window) for tasks, window in windows.items()}
        rows.append({"refresh": name, "seconds": at, "ratio": at["150"] / at["10"]})
        print(rows[-1], flush=True)
    return rows


def table(report: dict[str, Any]) -> str:
    """All sections as Markdown, for docs/library/scaling.md."""
    lines: list[str] = []
    if "ends" in report:
        lines.append("| `refresh` | `end_task` with 10 tasks | with 150 tasks | ratio |\n|---|---:|---:|---:|")
        for row in report["ends"]["rows"]:
            at = [f"{1e3 * row['seconds'][tasks]:.0f} ms" for tasks in ("10", "150")]
            lines.append(f"| `{row['refresh']}` | {at[0]} | {at[1]} | {row['ratio']:.1f} |")
        lines.append("")
    lines.append("| `refresh` | tau | accuracy, mean ± standard error |\n|---|---:|---:|")
    lines += [f"| `{row['way']}` | {row['tau']:g} | {_percent(row)} |" for row in report["refresh"]["rows"]]
    lines.append("\n| tasks since K was computed | K^-1 d is off by | times as large | cosine |")
    lines.append("|---:|---:|---:|---:|")
    for row in report["ages"]["rows"]:
        lines.append(f"| {row['age']} | {100 * row['difference']:.0f} % | {row['scale']:.2f} | {row['cosine']:.3f} |")
    past = report["steps"]["rows"] if "steps" in report else []
    heads = "".join(f" step, {row['past_tasks']} past tasks |" for row in past)
    lines.append(f"\n| penalty | accuracy, mean ± standard error |{heads}\n|---|---:|" + "---:|" * len(past))
    for row in report["accuracy"]["rows"]:
        cost = "".join(f" {one['ratio'][row['way']]:.1f} x |" if row["way"] in one["ratio"] else " |" for one in past)
        lines.append(f"| {row['way']} | {_percent(row)} |{cost}")
    return "\n".join(lines)


def _row(way: str, values: list[float]) -> dict[str, Any]:
    print(way, values, flush=True)
    return {"way": way, "accuracy": values}


def _percent(row: dict[str, Any]) -> str:
    found = summarise(row["accuracy"])
    assert found is not None
    return f"{100 * found.mean:.1f} ± {100 * found.stderr:.1f} ({found.n})"


def _tensors(examples: TensorExamples) -> tuple[Tensor, Tensor]:
    x, y = examples.take(torch.arange(len(examples)))
    assert isinstance(x, Tensor)
    return x, y


SECTIONS: dict[str, Callable[[], Any]] = {
    "accuracy": accuracy, "refresh": refresh, "ages": ages, "steps": steps, "ends": ends
}  # fmt: skip


def main(out: Path, sections: Sequence[str]) -> None:
    """Measure some sections, and write them to out/level.json beside those it has."""
    torch.set_num_threads(1)
    path = out / "level.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    settings = {"benchmark": BENCHMARK, "tasks": TASKS, "epochs": EPOCHS, "points": POINTS, "batch_size": BATCH}
    for name in sections:
        report[name] = {"environment": environment(), "settings": settings, "rows": SECTIONS[name]()}
        out.mkdir(parents=True, exist_ok=True)
        storage.replace(path, (json.dumps(report, indent=1) + "\n").encode())
        print(name, json.dumps(report[name]["rows"]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"among {', '.join(SECTIONS)}; default all")
    arguments = parser.parse_args()
    main(arguments.out, arguments.sections or list(SECTIONS))
