"""Where the time of a step on the CNN goes, what keeping freed memory gains, and what a run on Split CIFAR costs.

python tools/profile_step.py --bench results/bench/bench.json --out results/bench/profile.json

The costs of a whole run are put together from what `fromp bench` has measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fromp.foundation import storage
from fromp.lab.bench.cases import POINTS, SETTINGS, THREADS
from fromp.lab.bench.steps import fromp_step, plain_step
from fromp.lab.bench.timing import interleaved
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.threads import keep_memory
from fromp.lab.results.environment import environment

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
    """Where the time of a step on the CNN with five past tasks goes, and how near it is to what the cores can do."""
    setting, past = SETTINGS["cnn"](), 5
    prior = setting.prior(past)
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)

    def step() -> None:
        fromp_step(setting, x, y, prior, None)

    cases = {"step": step, **_at_full_rate(setting.generator)}
    flops = {name: _operations(case) for name, case in cases.items()}
    seconds = interleaved(cases, 2 * repetitions + 1)
    rates = {name: sum(flops[name].values()) / 1e9 / seconds[name] for name in cases}
    # The profiler's own buffers come between those of the step, which then asks for new memory once more.
    warming = torch.profiler.schedule(wait=0, warmup=3, active=repetitions, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=warming) as profiler:
        for _ in range(3 + repetitions):
            step()
            profiler.step()
    spent = dict.fromkeys([*OPERATORS, "the rest"], 0.0)
    for event in (event for event in profiler.key_averages() if not event.key.startswith("ProfilerStep")):
        matching = (kind for kind, parts in OPERATORS.items() if any(part in event.key.lower() for part in parts))
        spent[next(matching, "the rest")] += event.self_cpu_time_total
    convolutions = sum(count for operator, count in flops["step"].items() if "convolution" in operator)
    return {
        "past_tasks": past,
        "share": {kind: time / sum(spent.values()) for kind, time in spent.items()},
        "gflop": sum(flops["step"].values()) / 1e9,
        "gflop_convolutions": convolutions / 1e9,
        "gflops": rates.pop("step"),
        "gflops_at_full_rate": rates,
        "seconds": seconds,
    }


def _at_full_rate(generator: torch.Generator) -> dict[str, Callable[[], object]]:
    """What has little but arithmetic to do. Which is the fastest depends on the processor: they are two libraries'."""
    square = torch.rand(2048, 2048, generator=generator)
    images, filters = (torch.rand(*shape, generator=generator) for shape in ((64, 256, 16, 16), (256, 256, 3, 3)))
    images, filters = (one.contiguous(memory_format=torch.channels_last) for one in (images, filters))
    return {
        "a product of two large matrices": lambda: square @ square,
        "a convolution of 256 channels": lambda: F.conv2d(images, filters, padding=1),
    }


def _operations(case: Callable[[], object]) -> dict[str, int]:
    """Of floating point, by operator."""
    with FlopCounterMode(display=False) as counter:
        case()
    return {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}


def kept_memory(repetitions: int) -> dict[str, Any]:
    """A plain step of the CNN in a process that gives freed memory back to the system, against one that keeps it."""
    seconds: dict[str, list[float]] = {"given back": [], "kept": []}
    for _ in range(repetitions):
        for case, values in seconds.items():
            command = [sys.executable, __file__, "--step", case]
            values.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    median = {case: statistics.median(values) for case, values in seconds.items()}
    return {"seconds": median, "ratio": median["given back"] / median["kept"]}


def print_step(keep: bool) -> None:
    """Print the seconds of a plain step of the CNN, after the first few."""
    if keep:
        keep_memory()
    setting = SETTINGS["cnn"]()
    batch = [(setting.images(setting.batch_size), setting.labels(setting.batch_size))]
    for _ in range(4):
        plain_step(setting, batch)
    print(interleaved({"step": lambda: plain_step(setting, batch)}, 5)["step"])


def split_cifar_cost(steps: list[dict[str, Any]], curvature: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole run of FROMP on Split CIFAR against plain training on as many images, memory's included.

    Put together from the parts measured in this run: the steps of each task, the scores, the GGN and the kernels.
    """
    benchmark = BENCHMARKS["split-cifar"]
    settings = benchmark.training
    rows = {row["past_tasks"]: row["seconds"] for row in steps if row["network"] == "cnn"}
    (once,) = [row for row in curvature if row["network"] == "cnn"]
    samples = {past: settings.batch_size + past * POINTS for past in rows}
    plain = statistics.median(seconds["plain"] / samples[past] for past, seconds in rows.items())
    images, stepping, ending = 0, 0.0, 0.0
    for past in range(benchmark.tasks):
        seen = images_of(settings, past, benchmark.memory)
        images += seen
        stepping += seen * (rows[past]["fromp"] / samples[past] if past else plain)
        ending += examples_of(past) / once["examples"] * (once["seconds"]["scores"] + once["seconds"]["ggn"])
        ending += (past + 1) * once["seconds"]["kernel"]
    return {"images": images, "steps": stepping, "ends": ending, "ratio": images * plain / (stepping + ending)}


def examples_of(past: int) -> int:
    """Of a task of Split CIFAR, by the number of those before it."""
    return 5_000 if past else 50_000


def images_of(settings: Training, past: int, memory: int) -> int:
    """That the steps of a task of Split CIFAR look at, with so many of each past task in each step."""
    steps_an_epoch = -(-examples_of(past) // settings.batch_size)
    return settings.epochs * (examples_of(past) + steps_an_epoch * past * memory)


def text(found: dict[str, Any]) -> str:
    """The report as Markdown, for docs/library/scaling.md."""
    profiled = found["profile"]
    lines = [f"| a step of the cnn with {profiled['past_tasks']} past tasks | share of its time |", "|---|---:|"]
    lines += [f"| {kind} | {100 * share:.1f} % |" for kind, share in profiled["share"].items()]
    rate, (fastest, limit) = profiled["gflops"], max(profiled["gflops_at_full_rate"].items(), key=lambda of: of[1])
    convolutions = profiled["gflop_convolutions"] / (profiled["share"]["convolutions"] * profiled["gflop"] / rate)
    kept, run = found["kept_memory"], found["split_cifar"]
    return "\n".join(lines) + (
        f"\n\nIt is {profiled['gflop']:.0f} billion operations at {rate:.0f} billion a second; "
        f"{profiled['gflop_convolutions']:.0f} of them are convolutions', which run at {convolutions:.0f}. The most "
        f"that was seen of these cores is {limit:.0f}, in {fastest}: the step takes {limit / rate:.1f} times what "
        "its arithmetic alone would."
        f"\n\nA plain step of the cnn takes {kept['ratio']:.2f} x as long where what it frees is given back to the "
        "system, and not kept as `fromp run` keeps it."
        f"\n\nA whole run of FROMP on Split CIFAR sees {run['images'] / 1e6:.1f} million images, those of memory "
        f"included, at {run['ratio']:.2f} x the images per second of plain training: {run['steps'] / 60:.0f} "
        f"minutes in steps, {run['ends'] / 60:.0f} at the ends of tasks."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Profile a step on the CNN.")
    parser.add_argument("--bench", type=Path, default=Path("results/bench/bench.json"), help="what `fromp bench` wrote")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/profile.json"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--step", choices=["kept", "given back"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print_step(options.step == "kept")
        return
    bench = json.loads(options.bench.read_text())
    keep_memory()
    torch.set_num_threads(THREADS["cnn"])
    report = {
        "environment": environment(),
        "profile": profile(options.repetitions),
        "kept_memory": kept_memory(options.repetitions),
        "split_cifar": split_cifar_cost(bench["steps"], bench["curvature"]),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    storage.replace(options.out, (json.dumps(report, indent=1) + "\n").encode())
    print(text(report))
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
