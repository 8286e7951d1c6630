"""Where the time goes, and the memory: how near a step is to what the machine can do."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from fromp import gp
from fromp.derivatives.model import detached, trainable
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal
from fromp.lab.bench.cases import POINTS, SETTINGS, THREADS, Case
from fromp.lab.bench.steps import fromp_step, plain_step, slow_step
from fromp.lab.bench.timing import in_a_process, interleaved
from fromp.lab.engine.threads import keep_memory
from fromp.likelihoods import Categorical

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


def _case_plain(setting: Case) -> Callable[[], object]:
    x, y = setting.images(setting.batch_size), setting.labels(setting.batch_size)
    return lambda: plain_step(setting, [(x, y)])


def _case_fromp(setting: Case) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: fromp_step(setting, x, y, prior, None)


def _case_slow(setting: Case) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: slow_step(setting, x, y, prior)


def _case_ggn(setting: Case) -> Callable[[], object]:
    data = TensorExamples(setting.images(2000), setting.labels(2000))
    return lambda: ggn_diagonal(setting.model, trainable(setting.model), data, Categorical())


def _case_kernel(setting: Case) -> Callable[[], object]:
    x, names = setting.images(POINTS), trainable(setting.model)
    variance = {k: torch.ones_like(w).detach() for k, w in detached(setting.model, names).items()}
    return lambda: gp.kernel(setting.model, x, Categorical(), variance)


CASES: dict[str, Callable[[Case], Callable[[], object]]] = {
    "plain step": _case_plain,
    "fromp step, 5 past tasks": _case_fromp,
    "slow twin of it": _case_slow,
    "ggn, 2000 examples": _case_ggn,
    "kernel, 200 points": _case_kernel,
}
