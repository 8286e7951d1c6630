"""Where the time goes, and the memory: how near a step is to what the machine can do."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fromp import gp
from fromp.bench.setting import POINTS, SETTINGS, THREADS, Setting
from fromp.bench.steps import fromp_step, plain_step, slow_step
from fromp.bench.timing import in_a_process, interleaved
from fromp.curvature import ggn_diagonal
from fromp.examples import TensorExamples
from fromp.likelihoods import Categorical
from fromp.machine import keep_memory
from fromp.model import detached, trainable

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
        fromp_step(setting, x, y, prior, None)

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
            values.append(in_a_process(f"print_step({case == 'kept'})"))
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


def peak_memory(name: str, case: str) -> float:
    """How many MB the process grows by in the named case, measured in a process of its own."""
    return in_a_process(f"print_growth({name!r}, {case!r})")


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
    return lambda: plain_step(setting, [(x, y)])


def _case_fromp(setting: Setting) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: fromp_step(setting, x, y, prior, None)


def _case_slow(setting: Setting) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: slow_step(setting, x, y, prior)


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
