"""Steps and task ends whose cost does not grow: what each way of having them costs in accuracy, and how level it is.

python -m fromp.lab.bench.level --out results/bench [SECTION ...]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp.foundation import storage
from fromp.foundation.examples import TensorExamples
from fromp.lab import data
from fromp.lab.bench.cases import SETTINGS, Case
from fromp.lab.bench.steps import fromp_step, plain_step
from fromp.lab.bench.ways import BATCH, DER, PLAN, POINTS, WAYS, Held, fromp
from fromp.lab.benchmarks.streams import Permuted
from fromp.lab.methods.rehearsal import DERpp
from fromp.lab.results.environment import environment
from fromp.lab.results.metrics import summarise
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical
from fromp.mixed_past import MixedPast
from fromp.protocol import penalty_at
from fromp.refresh import at_every_end, never, when_doubled
from fromp.regulariser import FROMP

BENCHMARK, TASKS, EPOCHS, SEEDS = "permuted-digits", 6, 10, 3
ROUNDS, STEPS = 20, 10  # of which the fastest round of a way counts, as a mean over its steps
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
        prior = setting.prior(past)
        held: dict[str, MixedPast | DERpp] = {
            "`MixedPast`": MixedPast(setting.model, Categorical(), points_per_step=setting.batch_size),
            "`MixedPast`, 256 points": MixedPast(setting.model, Categorical(), points_per_step=256),
            "DER++": DERpp(setting.model, Categorical(), 200, setting.batch_size, **DER, seed=0),
        }
        for _ in range(past):
            examples = TensorExamples(setting.images(200), setting.labels(200))
            for reg in held.values():
                reg.end_task(examples)
        drawn = torch.tensor([0, past - 1]).unique()
        ways: dict[str, Callable[[], None]] = {
            "plain training": partial(plain_step, setting, [(x, y)]),
            "all points": partial(fromp_step, setting, x, y, prior, None),
            "two tasks per step": partial(fromp_step, setting, x, y, prior, drawn),
            **{way: partial(_held_step, setting, x, y, reg) for way, reg in held.items()},
        }
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, step in ways.items():
                step()  # in training, a step finds in the caches what its like has left
                start = time.process_time()  # the machine may be busy
                for _ in range(STEPS):
                    step()
                spent[way].append((time.process_time() - start) / STEPS)
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
    reached = {row["way"]: _percent(row) for row in report["accuracy"]["rows"]}
    for way in dict.fromkeys([*reached, *(way for one in past for way in one["ratio"])]):
        cost = "".join(f" {one['ratio'][way]:.1f} x |" if way in one["ratio"] else " |" for one in past)
        lines.append(f"| {way} | {reached.get(way, '')} |{cost}")
    return "\n".join(lines)


def _row(way: str, values: list[float]) -> dict[str, Any]:
    print(way, values, flush=True)
    return {"way": way, "accuracy": values}


def _percent(row: dict[str, Any]) -> str:
    found = summarise(row["accuracy"])
    assert found is not None
    return f"{100 * found.mean:.1f} ± {100 * found.stderr:.1f} ({found.n})"


def _held_step(setting: Case, x: Tensor, y: Tensor, reg: MixedPast | DERpp) -> None:
    setting.optimizer.zero_grad()
    (F.cross_entropy(setting.model(x), y) + penalty_at(reg, lambda: x)).backward()
    setting.optimizer.step()


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
