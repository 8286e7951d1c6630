"""Every method by the name it has in the paper's tables. A new one is a file beside this one and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fromp.likelihoods import Likelihood
from fromp.memory import Score, memorability, random_score
from fromp.methods.base import Method
from fromp.methods.fromp import FROMP
from fromp.methods.plain import Finetune, Joint, Separate
from fromp.methods.quadratic import DLP, EWC
from fromp.methods.si import SI
from fromp.prior import FullKernel, IdentityKernel, Kernel


def _fromp(kernel: type[Kernel], score: Score) -> Callable[..., Method]:
    def build(
        model: nn.Module,
        likelihood: Likelihood,
        tau: float,
        memory: int,
        prior_precision: float,
        jitter: float,
        tasks_per_step: int | None,
        seed: int,
    ) -> Method:
        return FROMP(
            model,
            likelihood,
            tau,
            memory,
            prior_precision,
            jitter,
            kernel=kernel,
            score=score,
            tasks_per_step=tasks_per_step,
            seed=seed,
        )

    return build


@dataclass(frozen=True)
class Entry:
    """A method, and what one has to know to choose it."""

    build: Callable[..., Method]  # called with the model, the likelihood, and those of the settings that it names
    source: str  # where it comes from
    stores: str  # what it keeps of the past
    step: str  # what a step costs beside that of plain training


_OURS = "Pan et al. 2020"

METHODS: dict[str, Entry] = {
    "fromp": Entry(
        _fromp(FullKernel, memorability),
        _OURS,
        "memorable points, a kernel a class and task",
        "a pass over all memory, times the kernels",
    ),
    "fromp-l2": Entry(_fromp(IdentityKernel, memorability), _OURS, "memorable points", "a pass over all memory"),
    "frorp": Entry(
        _fromp(FullKernel, random_score),
        _OURS,
        "random points, a kernel a class and task",
        "a pass over all memory, times the kernels",
    ),
    "frorp-l2": Entry(_fromp(IdentityKernel, random_score), _OURS, "random points", "a pass over all memory"),
    "ewc": Entry(
        EWC, "Kirkpatrick et al. 2017", "the sum of the Fisher diagonals, their centre", "a pass over the weights"
    ),
    "dlp": Entry(
        DLP, "Smola et al. 2003", "the sum of the Fisher diagonals, the last weights", "a pass over the weights"
    ),
    "si": Entry(SI, "Zenke et al. 2017", "an importance a weight, the last weights", "a few passes over the weights"),
    "finetune": Entry(Finetune, "the floor", "nothing", "nothing"),
    "separate": Entry(Separate, "no transfer, no forgetting", "a network a task", "nothing"),
    "joint": Entry(Joint, "the ceiling", "all data of all tasks", "nothing, but an epoch is as long as all tasks"),
}
