"""Every method by the name it has in the paper's tables. A new one is a file beside this one and a line here."""

from collections.abc import Callable

from torch import nn

from fromp.likelihoods import Likelihood
from fromp.memory import Score, memorability, random_score
from fromp.methods.base import Method
from fromp.methods.fromp import FROMP
from fromp.methods.plain import Finetune, Joint, Separate
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


# Each is called with the model, the likelihood, and those of the experiment's settings that it names.
METHODS: dict[str, Callable[..., Method]] = {
    "fromp": _fromp(FullKernel, memorability),
    "fromp-l2": _fromp(IdentityKernel, memorability),
    "frorp": _fromp(FullKernel, random_score),
    "frorp-l2": _fromp(IdentityKernel, random_score),
    "finetune": Finetune,
    "separate": Separate,
    "joint": Joint,
}
