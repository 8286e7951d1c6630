"""The paper's method and its three ablations."""

from torch import nn

from fromp.lab.methods.base import Method, Penalised
from fromp.lab.methods.card import CLASSES, DOMAIN, MethodCard, register
from fromp.lab.settings import AtLeastOne, NotNegative, Positive, settings
from fromp.likelihoods import Likelihood
from fromp.memory import Score, memorability, random_score
from fromp.metrics.full_kernel import FullKernel
from fromp.metrics.identity_kernel import IdentityKernel
from fromp.metrics.kernel import Kernel
from fromp.regulariser import FROMP


@settings
class Settings:
    """What FROMP is built with."""

    tau: NotNegative = 0.5
    """Strength of the penalty beside the mean loss: the paper's tau divided by N."""
    memory: AtLeastOne
    """Points kept of each task."""
    prior_precision: Positive = 1e-5
    """delta, the precision of each weight before any data."""
    jitter: NotNegative = 1e-5
    """Added to the kernel's diagonal."""
    tasks_per_step: AtLeastOne | None = None
    """Past tasks drawn for each penalty; all of them if none is given."""


def _card(name: str, title: str, kernel: type[Kernel], score: Score, colour: int) -> MethodCard:
    points = "memorable" if score is memorability else "random"
    values = "one kernel per task and class" if kernel is FullKernel else "their outputs"

    def build(model: nn.Module, likelihood: Likelihood, s: Settings, seed: int) -> Method:
        given = s.tau, s.memory, s.prior_precision, s.jitter
        drawn = s.tasks_per_step
        return Penalised(FROMP(model, likelihood, *given, kernel=kernel, score=score, tasks_per_step=drawn, seed=seed))

    return MethodCard(
        name=name,
        title=title,
        paper="Pan et al. 2020",
        keeps=f"{points} points; {values}; one precision per weight",
        step_cost="one pass over all memory" + (", times the kernels" if kernel is FullKernel else ""),
        settings=Settings,
        build=build,
        random_memory=score is random_score,
        colour=colour,
        presets={
            "toy*": {"tau": 0.1, "prior_precision": 1e-4, "jitter": 1e-2},
            "split-mnist*": {"tau": 10.0, "prior_precision": 1e-3, "jitter": 1e-6},
            "split-mnist-small": {"tau": 3.0},
            "split-mnist-domain": {**DOMAIN, "tau": 0.1},
            "split-mnist-class": {**CLASSES, "tau": 1.0},
            "split-digits": {"tau": 10.0, "prior_precision": 1e-3, "jitter": 1e-4},
            "permuted-digits": {"tau": 5.0, "jitter": 1e-4},
            "split-cifar*": {"tau": 10.0, "prior_precision": 1e-4, "jitter": 1e-6},
        },
        grows_with={"clip_norm": "tau"},  # the released code clips the gradient divided by tau
        shrinks_with={"tau": "memory"},  # appendix, "Fewer memorable past examples"
    )


CARD = _card("fromp", "FROMP", FullKernel, memorability, 0)
register(CARD)
register(_card("fromp-l2", "FROMP-L2", IdentityKernel, memorability, 2))
register(_card("frorp", "FRORP", FullKernel, random_score, 1))
register(_card("frorp-l2", "FRORP-L2", IdentityKernel, random_score, 6))
