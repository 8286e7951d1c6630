"""How much memory a step and the end of a task need."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fromp import gp
from fromp.derivatives.budget import MEMORY_BUDGET
from fromp.derivatives.model import detached, trainable
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal
from fromp.lab.bench.cases import POINTS, SETTINGS, THREADS, Case
from fromp.lab.bench.steps import fromp_step, one_graph_step, plain_step, slow_step
from fromp.lab.bench.timing import in_a_process
from fromp.learn.networks import initialise, mlp
from fromp.likelihoods import Categorical
from fromp.metrics.full_kernel import FullKernel


def peak_memory(name: str, case: str) -> float:
    """How many MB the process grows by in the named case, measured in a process of its own."""
    return in_a_process(f"print_growth({name!r}, {case!r})")


def print_growth(name: str, case: str) -> None:
    """Print the growth of the peak memory, in MB, when `case` runs once."""
    torch.set_num_threads(THREADS[name])
    setting = SETTINGS[name]()
    prepared = (CASES | ONCE)[case](setting)
    before = _peak(reset=True)
    prepared()
    print((_peak() - before) / 1024)


def print_growth_of_kernels(outputs: int, points: int, memory_budget: int = MEMORY_BUDGET) -> None:
    """Print the growth while the kernels of so many outputs are computed, as `FullKernel` keeps them, on the MLP."""
    torch.set_num_threads(1)
    x = torch.rand(points, 784)

    def kept(outputs: int, x: Tensor) -> FullKernel:
        model = initialise(lambda: mlp(784, (100, 100), outputs), seed=0)
        variance = {name: torch.ones_like(w).detach() for name, w in model.named_parameters()}
        k = partial(gp.kernels, model, x, Categorical(), variance, memory_budget=memory_budget)
        return FullKernel.of(k, 1e-3, torch.float32)

    kept(2, x[:2])  # what is loaded on first use is not counted
    before = _peak(reset=True)
    found = kept(outputs, x)
    print((_peak() - before) / 1024)
    del found


def _peak(reset: bool = False) -> int:
    """The highest resident memory in kB since the last reset."""
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


def _case_one_graph(setting: Case) -> Callable[[], object]:
    x, y, prior = setting.images(setting.batch_size), setting.labels(setting.batch_size), setting.prior(5)
    return lambda: one_graph_step(setting, x, y, prior)


CASES: dict[str, Callable[[Case], Callable[[], object]]] = {
    "plain step": _case_plain,
    "fromp step, 5 past tasks": _case_fromp,
    "slow twin of it": _case_slow,
    "ggn, 2000 examples": _case_ggn,
    "kernel, 200 points": _case_kernel,
}
ONCE: dict[str, Callable[[Case], Callable[[], object]]] = {"fromp step in one graph": _case_one_graph}  # no column
