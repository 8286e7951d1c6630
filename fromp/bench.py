"""What the method costs, as ratios measured in one run with interleaved repetitions."""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from fromp import figures, folder, gp
from fromp.curvature import ggn_diagonal
from fromp.data.images import Images
from fromp.examples import TensorExamples
from fromp.experiments import BENCHMARKS, Benchmark, settings_for
from fromp.likelihoods import Categorical
from fromp.machine import environment, keep_memory
from fromp.memory import Memory, assess, memorability
from fromp.methods import METHODS
from fromp.methods.base import Method, Part
from fromp.methods.fromp import PASS_BYTES
from fromp.model import detached, evaluating, trainable
from fromp.networks import cifar_cnn, initialise, mlp
from fromp.prior import Anchor, FullKernel, FunctionalPrior
from fromp.runs import Plan, Run, build_method
from fromp.tape import activation_bytes
from fromp.tasks import Permuted

POINTS, CLASSES = 200, 10


class Setting:
    """A network with its minibatch, as in the paper's experiments."""

    def __init__(self, name: str, batch_size: int, shape: tuple[int, ...], network: Callable[[], nn.Module]) -> None:
        self.name, self.batch_size, self.shape = name, batch_size, shape
        self.model = initialise(network, seed=0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-6, fused=True)
        self.generator = torch.Generator().manual_seed(0)

    def images(self, n: int) -> Tensor:
        """Random inputs of this network."""
        x = torch.rand(n, *self.shape, generator=self.generator)
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x

    def labels(self, n: int) -> Tensor:
        """Random labels."""
        return torch.randint(CLASSES, (n,), generator=self.generator)

    def points_per_pass(self) -> int:
        """As `FROMP` chooses it."""
        weights = detached(self.model, trainable(self.model))
        return max(1, PASS_BYTES // activation_bytes(self.model, weights, self.images(2), None))

    def prior(self, tasks: int) -> FunctionalPrior:
        """A prior on random memories, with kernels of the right size; a step's cost does not depend on their values."""
        anchors = []
        for _ in range(tasks):
            memory = Memory(self.images(POINTS), self.labels(POINTS), torch.zeros(POINTS), None)
            root = torch.randn(CLASSES, POINTS, POINTS, generator=self.generator) / POINTS
            with evaluating(self.model), torch.no_grad():
                mean = gp.mean(self.model, memory.inputs, Categorical()).T.contiguous()
            anchors.append(Anchor(memory, mean, FullKernel((root @ root.mT)[None])))
        return FunctionalPrior(anchors, Categorical(), CLASSES, self.points_per_pass())


SETTINGS: dict[str, Callable[[], Setting]] = {
    "mlp": lambda: Setting("mlp", 128, (784,), lambda: mlp(784, (100, 100), CLASSES)),
    "cnn": lambda: Setting("cnn", 256, (3, 32, 32), lambda: cifar_cnn(CLASSES)),
}
THREADS = {"mlp": 1, "cnn": torch.get_num_threads()}
PAST_TASKS = {"mlp": (1, 3, 5, 9, 20), "cnn": (1, 2, 3, 4, 5)}


def main(out: Path, quick: bool = False) -> dict[str, Any]:
    """Measure everything, print it as a table, and write out/bench.json."""
    keep_memory()
    report: dict[str, Any] = {"environment": environment(), "steps": [], "curvature": [], "memory": []}
    for name in SETTINGS:
        torch.set_num_threads(THREADS[name])
        tasks = PAST_TASKS[name][:2] if quick else PAST_TASKS[name]
        repetitions = 3 if quick else {"mlp": 40, "cnn": 7}[name]
        report["steps"] += step_costs(name, tasks, repetitions)
        report["curvature"].append(curvature_costs(name, 2 if quick else 5))
    report["profile"] = profile(1 if quick else 3)
    report["kept_memory"] = kept_memory(1 if quick else 5)
    if not quick:
        report["split_cifar"] = split_cifar_cost(report["steps"], report["curvature"])
    torch.set_num_threads(1)
    report["methods"] = method_costs(3 if quick else 40)
    report["engine"] = engine_cost(2 if quick else 15)
    for name in SETTINGS:
        # The slow twin's Jacobians take ten minutes on the CNN.
        cases = [case for case in CASES if (name, case) != ("cnn", "slow twin of it")]
        report["memory"].append({"network": name} | {case: peak_memory(name, case) for case in cases})
    out.mkdir(parents=True, exist_ok=True)
    folder.replace(out / "bench.json", (json.dumps(report, indent=1) + "\n").encode())
    figures.save(figures.step_cost(report["steps"]), out / "step-cost")
    print(table(report))
    print(f"written: {out / 'bench.json'}")
    return report


def step_costs(name: str, tasks: tuple[int, ...], repetitions: int) -> list[dict[str, Any]]:
    """A step with the penalty against a plain Adam step on as many samples, for several numbers of past tasks."""
    setting, rows = SETTINGS[name](), []
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)
    for past in tasks:
        prior = setting.prior(past)
        more = setting.batch_size + past * POINTS
        # As many samples in the fastest plain way: one batch for the MLP, batches of the usual size for the CNN.
        size = more if name == "mlp" else setting.batch_size
        chunks = list(zip(setting.images(more).split(size), setting.labels(more).split(size), strict=True))
        drawn = torch.tensor([0, past - 1]).unique()
        cases: dict[str, Callable[[], object]] = {
            "plain": lambda chunks=chunks: _plain_step(setting, chunks),  # type: ignore[misc]
            "fromp": lambda prior=prior: _fromp_step(setting, x, y, prior, None),  # type: ignore[misc]
            "two tasks a step": lambda prior=prior, d=drawn: _fromp_step(setting, x, y, prior, d),  # type: ignore[misc]
        }
        seconds = interleaved(cases, repetitions)
        if past in (1, 5) and name == "mlp":
            seconds |= interleaved({"slow twin": lambda prior=prior: _slow_step(setting, x, y, prior)}, 2)  # type: ignore[misc]
        row = {"network": name, "past_tasks": past, "seconds": seconds, "ratio": seconds["fromp"] / seconds["plain"]}
        row["ratio_two_tasks"] = seconds["two tasks a step"] / seconds["plain"]
        if "slow twin" in seconds:
            row["slow_twin_ratio"] = seconds["slow twin"] / seconds["fromp"]
        rows.append(row)
    return rows


def method_costs(repetitions: int) -> dict[str, Any]:
    """A step of every method on the MLP, with five past tasks, against one of `finetune`."""
    setting = SETTINGS["mlp"]()
    past, size = 5, 1000
    tasks = [TensorExamples(setting.images(size), setting.labels(size)) for _ in range(past + 1)]
    batch: list[Part] = [(setting.images(setting.batch_size), setting.labels(setting.batch_size), None)]
    cases: dict[str, Callable[[], object]] = {}
    for name in METHODS:
        settings = settings_for("permuted-mnist", {}, name)
        method = build_method(Plan("permuted-mnist", name, settings), deepcopy(setting.model), 0)
        for task, examples in enumerate(tasks):
            method.begin_task(examples, None, [(one, None) for one in tasks[:task]])
            if task < past:
                method.end_task(examples)
        cases[name] = partial(_method_step, method, torch.optim.Adam(method.parameters(), 1e-6, fused=True), batch)
    seconds = interleaved(cases, repetitions)
    ratios = {name: value / seconds["finetune"] for name, value in seconds.items()}
    return {"past_tasks": past, "points": POINTS, "seconds": seconds, "ratio": ratios}


def curvature_costs(name: str, repetitions: int) -> dict[str, Any]:
    """The GGN pass and a task's kernels, each against as many plain backward passes as there are classes."""
    setting = SETTINGS[name]()
    n = {"mlp": 2000, "cnn": 256}[name]
    x, y, memory = setting.images(n), setting.labels(n), setting.images(POINTS)
    names = trainable(setting.model)
    variance = {k: torch.ones_like(w).detach() for k, w in detached(setting.model, names).items()}
    data = TensorExamples(x, y)
    seconds = interleaved(
        {
            "scores": lambda: assess(setting.model, data, Categorical(), setting.generator, None, memorability),
            "backward": lambda: _plain_backwards(setting.model, x),
            "ggn": lambda: ggn_diagonal(setting.model, names, data, Categorical()),
            "backward of memory": lambda: _plain_backwards(setting.model, memory),
            "kernel": lambda: gp.inverse(gp.kernel(setting.model, memory, Categorical(), variance), 1e-3),
        },
        repetitions,
    )
    return {
        "network": name,
        "examples": n,
        "seconds": seconds,
        "ggn_ratio": seconds["ggn"] / seconds["backward"],
        "kernel_ratio": seconds["kernel"] / seconds["backward of memory"],
    }


def split_cifar_cost(steps: list[dict[str, Any]], curvature: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole run of FROMP on Split CIFAR against plain training on as many images, memory's included.

    Put together from the parts measured in this run: the steps of each task, the scores, the GGN and the kernels.
    """
    settings = BENCHMARKS["split-cifar"].settings
    rows = {row["past_tasks"]: row["seconds"] for row in steps if row["network"] == "cnn"}
    (once,) = [row for row in curvature if row["network"] == "cnn"]
    batch = settings.batch_size
    plain = statistics.median(seconds["plain"] / (batch + past * POINTS) for past, seconds in rows.items())
    images, stepping, ending = 0, 0.0, 0.0
    for past in range(settings.tasks):
        examples = 5_000 if past else 50_000
        count = settings.epochs * -(-examples // batch)
        images += count * (batch + past * POINTS)
        stepping += count * (rows[past]["fromp"] if past else batch * plain)
        ending += examples / once["examples"] * (once["seconds"]["scores"] + once["seconds"]["ggn"])
        ending += (past + 1) * once["seconds"]["kernel"]
    return {"images": images, "steps": stepping, "ends": ending, "ratio": images * plain / (stepping + ending)}


# The operators of a step on the CNN, by what they are for; the first whose name occurs in the operator's counts.
OPERATORS = {
    "convolutions": ("convolution",),
    "linear layers": ("addmm", "aten::mm"),
    "K^-1 (m - m0)": ("bmm", "baddbmm"),
    "Adam": ("adam",),
    "dropout": ("dropout", "bernoulli"),
    "pooling": ("max_pool",),
    "ReLU": ("clamp", "relu", "threshold"),
}


def profile(repetitions: int) -> dict[str, Any]:
    """Where the time of a step on the CNN with five past tasks goes, and how near it is to a matrix product's rate."""
    setting, past = SETTINGS["cnn"](), 5
    prior = setting.prior(past)
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)
    square = torch.rand(2048, 2048, generator=setting.generator)

    def step() -> None:
        _fromp_step(setting, x, y, prior, None)

    with FlopCounterMode(display=False) as counter:
        step()
    seconds = interleaved({"step": step, "product": lambda: square @ square}, 2 * repetitions + 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(repetitions):
            step()
    spent = dict.fromkeys([*OPERATORS, "the rest"], 0.0)
    for event in profiler.key_averages():
        matching = (kind for kind, parts in OPERATORS.items() if any(part in event.key.lower() for part in parts))
        spent[next(matching, "the rest")] += event.self_cpu_time_total
    flops = counter.get_flop_counts()["Global"]
    convolutions = sum(count for operator, count in flops.items() if "convolution" in str(operator))
    return {
        "past_tasks": past,
        "share": {kind: time / sum(spent.values()) for kind, time in spent.items()},
        "gflop": sum(flops.values()) / 1e9,
        "gflop_convolutions": convolutions / 1e9,
        "gflops": sum(flops.values()) / 1e9 / seconds["step"],
        "gflops_product": 2 * 2048**3 / 1e9 / seconds["product"],
        "seconds": seconds,
    }


def kept_memory(repetitions: int) -> dict[str, Any]:
    """A plain step of the CNN in a process that gives freed memory back to the system, against one that keeps it."""
    seconds: dict[str, list[float]] = {"given back": [], "kept": []}
    for _ in range(repetitions):
        for case, values in seconds.items():
            values.append(_in_a_process(f"print_step({case == 'kept'})"))
    median = {case: statistics.median(values) for case, values in seconds.items()}
    return {"seconds": median, "ratio": median["given back"] / median["kept"]}


def print_step(keep: bool) -> None:
    """Print the seconds of a plain step of the CNN, after the first few."""
    if keep:
        keep_memory()
    setting = SETTINGS["cnn"]()
    batch = [(setting.images(setting.batch_size), setting.labels(setting.batch_size))]
    for _ in range(4):
        _plain_step(setting, batch)
    print(interleaved({"step": lambda: _plain_step(setting, batch)}, 5)["step"])


def engine_cost(repetitions: int) -> dict[str, Any]:
    """A whole `finetune` run, with its tests, checkpoints and results, against a loop written by hand."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (14_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(CLASSES, (14_000,), generator=generator)
    images = Images(pixels[:12_000], labels[:12_000], pixels[12_000:], labels[12_000:], ())
    stream = Permuted(images, 3, CLASSES, seed=0)
    settings = replace(BENCHMARKS["permuted-mnist"].settings, tasks=3, epochs=5, clip=None)
    benchmark = Benchmark("random pictures", lambda seed: stream, BENCHMARKS["permuted-mnist"].network, settings)

    def engine() -> None:
        with tempfile.TemporaryDirectory() as path:
            Run(Plan("permuted-mnist", "finetune", settings), benchmark, 0, Path(path)).learn(lambda moment: None)

    def by_hand() -> None:
        model = initialise(lambda: mlp(784, settings.hidden, CLASSES), 0)
        for place in range(3):
            x, y = stream.task(place).train.x, stream.task(place).train.y
            optimizer = torch.optim.Adam(model.parameters(), settings.lr, fused=True)
            for _ in range(settings.epochs):
                for chosen in torch.randperm(len(y)).split(settings.batch_size):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                    optimizer.step()
            with torch.no_grad():
                for test in (stream.task(seen).test for seen in range(place + 1)):
                    (model(test.x).argmax(1) == test.y).float().mean().item()

    seconds = interleaved({"by hand": by_hand, "engine": engine}, repetitions)
    return {"seconds": seconds, "ratio": seconds["engine"] / seconds["by hand"]}


def interleaved(cases: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median seconds of each case, taken in turn, so that a busy moment of the machine falls on all of them.

    The order changes from turn to turn: behind a large case, another one finds its data gone from the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        for name in random.Random(repetition).sample(list(cases), len(cases)):
            start = time.perf_counter()
            cases[name]()
            if repetition:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_memory(name: str, case: str) -> float:
    """How many MB the process grows by in the named case, measured in a process of its own."""
    return _in_a_process(f"print_growth({name!r}, {case!r})")


def _in_a_process(call: str) -> float:
    """The number that a function of this module prints, called in a process of its own."""
    command = [sys.executable, "-c", f"from fromp import bench; bench.{call}"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_growth(name: str, case: str) -> None:
    """Print the growth of the peak memory, in MB, when `case` runs once."""
    torch.set_num_threads(THREADS[name])
    setting = SETTINGS[name]()
    prepared = CASES[case](setting)
    before = _peak(reset=True)
    prepared()
    print((_peak() - before) / 1024)


def _peak(reset: bool = False) -> int:
    """The highest resident memory so far in kB; after a reset it counts anew."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _case_plain(setting: Setting) -> Callable[[], object]:
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)
    return lambda: _plain_step(setting, [(x, y)])


def _case_fromp(setting: Setting) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: _fromp_step(setting, x, y, prior, None)


def _case_slow(setting: Setting) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: _slow_step(setting, x, y, prior)


def _case_ggn(setting: Setting) -> Callable[[], object]:
    data = TensorExamples(setting.images(2000), setting.labels(2000))
    return lambda: ggn_diagonal(setting.model, trainable(setting.model), data, Categorical())


def _case_kernel(setting: Setting) -> Callable[[], object]:
    x, names = setting.images(POINTS), trainable(setting.model)
    variance = {k: torch.ones_like(w).detach() for k, w in detached(setting.model, names).items()}
    return lambda: gp.kernel(setting.model, x, Categorical(), variance)


CASES: dict[str, Callable[[Setting], Callable[[], object]]] = {
    "plain step": _case_plain,
    "fromp step, 5 past tasks": _case_fromp,
    "slow twin of it": _case_slow,
    "ggn, 2000 examples": _case_ggn,
    "kernel, 200 points": _case_kernel,
}


def _plain_step(setting: Setting, chunks: list[tuple[Tensor, Tensor]]) -> None:
    setting.model.train()
    setting.optimizer.zero_grad()
    total = sum(len(y) for _, y in chunks)
    for x, y in chunks:
        (F.cross_entropy(setting.model(x), y) * (len(y) / total)).backward()
    setting.optimizer.step()


def _fromp_step(setting: Setting, x: Tensor, y: Tensor, prior: FunctionalPrior, tasks: Tensor | None) -> None:
    setting.model.train()
    setting.optimizer.zero_grad()
    loss = F.cross_entropy(setting.model(x), y) + 0.5 * prior.squared_distance(setting.model, tasks)
    loss.backward()
    setting.optimizer.step()


def _method_step(method: Method, optimizer: torch.optim.Optimizer, batch: list[Part]) -> None:
    method.model.train()
    optimizer.zero_grad()
    loss = method.loss(batch)
    (loss.data + loss.penalty).backward()
    optimizer.step()
    method.after_step()


def _slow_step(setting: Setting, x: Tensor, y: Tensor, prior: FunctionalPrior) -> None:
    """g_FR of Algorithm 1 to the letter: the M x P matrix H for every task and class, then H K^-1 (m - m0)."""
    model = setting.model
    setting.optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    weights = {name: w.detach() for name, w in model.named_parameters()}
    model.eval()

    def mean(weights: dict[str, Tensor], x: Tensor, c: int) -> Tensor:
        return functional_call(model, weights, (x[None],))[0].softmax(-1)[c]

    for anchor in prior.anchors:
        points = anchor.memory.inputs
        assert isinstance(points, Tensor)
        assert isinstance(anchor.kernel, FullKernel)
        for c in range(CLASSES):
            h = vmap(grad(lambda w, x, c=c: mean(w, x, c)), in_dims=(None, 0))(weights, points)
            with torch.no_grad():
                d = model(points).softmax(-1)[:, c] - anchor.mean[c]
                u = anchor.kernel.inverse[0, c] @ d
            for name, w in model.named_parameters():
                assert w.grad is not None
                w.grad += torch.einsum("iw,i->w", h[name].flatten(1), u).view_as(w)
    setting.optimizer.step()


def _plain_backwards(model: nn.Module, x: Tensor) -> None:
    """One forward pass and one ordinary backward pass for each class."""
    model.eval()
    f, parameters = model(x), list(model.parameters())
    for c in range(CLASSES):
        torch.autograd.grad(f[:, c].sum(), parameters, retain_graph=True)


def table(report: dict[str, Any]) -> str:
    """The report as Markdown, for the terminal and for docs/scaling.md."""
    lines = [
        "| network | past tasks | step / plain Adam, as many samples | two past tasks a step | slow twin / step |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in report["steps"]:
        slow = f"{row['slow_twin_ratio']:.0f} x" if "slow_twin_ratio" in row else ""
        drawn = f"{row['ratio_two_tasks']:.2f} x ({1e3 * row['seconds']['two tasks a step']:.1f} ms)"
        lines.append(
            f"| {row['network']} | {row['past_tasks']} | {row['ratio']:.2f} x ({1e3 * row['seconds']['fromp']:.1f} ms) "
            f"| {drawn} | {slow} |"
        )
    lines += [
        "",
        "| network | GGN / one backward pass a class over its examples | kernels of a task / the same over memory |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {row['network']} | {row['ggn_ratio']:.2f} x "
        f"| {row['kernel_ratio']:.1f} x ({row['seconds']['kernel']:.2f} s) |"
        for row in report["curvature"]
    ]
    if methods := report.get("methods"):  # a report from before they were measured has none
        lines += ["", f"| {methods['past_tasks']} past tasks of {methods['points']} points, mlp | step / `finetune` |"]
        lines += ["|---|---:|"]
        lines += [
            f"| `{name}` | {ratio:.2f} x ({1e3 * methods['seconds'][name]:.2f} ms) |"
            for name, ratio in methods["ratio"].items()
        ]
    if found := report.get("profile"):
        lines += ["", f"| a step of the cnn with {found['past_tasks']} past tasks | share of its time |", "|---|---:|"]
        lines += [f"| {kind} | {100 * share:.1f} % |" for kind, share in found["share"].items()]
        rate, limit = found["gflops"], found["gflops_product"]
        lines += [
            "",
            f"It is {found['gflop']:.0f} billion operations, {found['gflop_convolutions']:.0f} of them convolutions', "
            f"at {rate:.0f} billion a second. A product of two large matrices, the most that these cores can do, runs "
            f"at {limit:.0f}: the step takes {limit / rate:.1f} times what its arithmetic alone would.",
        ]
    if found := report.get("kept_memory"):
        lines += [
            "",
            f"A plain step of the cnn takes {found['ratio']:.2f} x as long where what it frees is given back to the "
            "system, and not kept as `fromp run` keeps it.",
        ]
    if found := report.get("split_cifar"):
        lines += [
            "",
            f"A whole run of FROMP on Split CIFAR sees {found['images'] / 1e6:.1f} million images, those of memory "
            f"included, at {found['ratio']:.2f} x the images per second of plain training: {found['steps'] / 60:.0f} "
            f"minutes in steps, {found['ends'] / 60:.0f} at the ends of tasks.",
        ]
    engine = report["engine"]
    lines += ["", f"A whole `finetune` run takes {engine['ratio']:.2f} x a loop written by hand on the same tensors."]
    lines += ["", "| growth of peak memory, MB | " + " | ".join(CASES) + " |", "|---|" + "---:|" * len(CASES)]
    lines += [
        f"| {row['network']} | " + " | ".join(f"{row[case]:.0f}" if case in row else "" for case in CASES) + " |"
        for row in report["memory"]
    ]
    return "\n".join(lines)
