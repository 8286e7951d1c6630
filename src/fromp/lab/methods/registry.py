"""Every method by its name on the command line. A new one is a file beside this one and a line here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import nn

from fromp.lab.methods.base import Method, Penalised
from fromp.lab.methods.bounds import Finetune, Joint, Separate
from fromp.lab.methods.frcl import FRCL
from fromp.lab.methods.quadratic import DLP, EWC
from fromp.lab.methods.rehearsal import DERpp, FunctionalL2, Replay
from fromp.lab.methods.si import SI, SIMethod
from fromp.lab.methods.vcl.coreset import Coreset, MemorableCoreset, RandomCoreset
from fromp.lab.methods.vcl.vcl import VCL
from fromp.likelihoods import Likelihood
from fromp.memory import Score, memorability, random_score
from fromp.prior import FullKernel, IdentityKernel, Kernel
from fromp.regulariser import FROMP


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
        return Penalised(
            FROMP(
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
        )

    return build


def _vcl(choose: Callable[..., Coreset | None]) -> Callable[..., Method]:
    def build(
        model: nn.Module,
        likelihood: Likelihood,
        prior_precision: float,
        initial_deviation: float,
        memory: int,
        coreset_epochs: int,
        batch_size: int,
        lr: float,
        start: str,
        base: Any,
        seed: int,
    ) -> Method:
        coreset = choose(model, likelihood, memory, base, seed)
        return VCL(
            model, likelihood, prior_precision, initial_deviation, seed, coreset, coreset_epochs, batch_size, lr, start
        )

    return build


def _frcl_random(
    model: nn.Module,
    likelihood: Likelihood,
    memory: int,
    prior_precision: float,
    jitter: float,
    initial_deviation: float,
    seed: int,
) -> Method:
    return FRCL(model, likelihood, memory, prior_precision, jitter, initial_deviation, search=0, seed=seed)


def _penalised(regulariser: Callable[..., Any]) -> Callable[..., Method]:
    """A regulariser as a method, built with the same arguments."""

    @wraps(regulariser)
    def build(*args: Any, **kwargs: Any) -> Method:
        return Penalised(regulariser(*args, **kwargs))

    return build


@wraps(SI)
def _si(*args: Any, **kwargs: Any) -> Method:
    return SIMethod(SI(*args, **kwargs))


@dataclass(frozen=True)
class Entry:
    """A method, and what one has to know to choose it."""

    build: Callable[..., Method]  # called with the model, the likelihood, and those of the settings that it names
    source: str  # where it comes from
    stores: str  # what it keeps of the past
    step: str  # what a step costs beside that of plain training
    told: bool = False  # whether a test has to say which task it is of, also where there is one head
    drawn: bool = False  # whether the points it keeps are random ones, whose scores tell nothing


_OURS = "Pan et al. 2020"

METHODS: dict[str, Entry] = {
    "fromp": Entry(
        _fromp(FullKernel, memorability),
        _OURS,
        "memorable points, a kernel a class and task, a precision a weight",
        "a pass over all memory, times the kernels",
    ),
    "fromp-l2": Entry(
        _fromp(IdentityKernel, memorability),
        _OURS,
        "memorable points, their outputs, a precision a weight",
        "a pass over all memory",
    ),
    "frorp": Entry(
        _fromp(FullKernel, random_score),
        _OURS,
        "random points, a kernel a class and task, a precision a weight",
        "a pass over all memory, times the kernels",
        drawn=True,
    ),
    "frorp-l2": Entry(
        _fromp(IdentityKernel, random_score),
        _OURS,
        "random points, their outputs, a precision a weight",
        "a pass over all memory",
        drawn=True,
    ),
    "ewc": Entry(
        _penalised(EWC),
        "Kirkpatrick et al. 2017",
        "the sum of the Fisher diagonals, their centre",
        "a pass over the weights",
    ),
    "dlp": Entry(
        _penalised(DLP),
        "Smola et al. 2003",
        "the sum of the Fisher diagonals, the last weights",
        "a pass over the weights",
    ),
    "si": Entry(_si, "Zenke et al. 2017", "an importance a weight, the last weights", "a few passes over the weights"),
    "vcl": Entry(
        _vcl(lambda *_: None),
        "Nguyen et al. 2018, Swaroop et al. 2019",
        "means and deviations of the weights, the last and the initial ones",
        "twice the maps, and a KL",
    ),
    "vcl-coreset": Entry(
        _vcl(lambda model, likelihood, memory, base, seed: RandomCoreset(likelihood, memory, seed)),
        "Nguyen et al. 2018, Swaroop et al. 2019",
        "those of vcl, a refined copy a head, random points",
        "twice the maps, and a KL; the coreset before each test",
        drawn=True,
    ),
    "vcl-memorable": Entry(
        _vcl(lambda model, likelihood, memory, base, seed: MemorableCoreset(model, likelihood, memory, base, seed)),
        "Pan et al. 2020",
        "those of vcl, a refined copy a head, all that FROMP keeps",
        "twice the maps, and a KL; the coreset before each test; a run of FROMP",
    ),
    "functional-l2": Entry(
        _penalised(FunctionalL2),
        "Benjamin et al. 2018",
        "random points, their outputs",
        "a pass over all memory",
        drawn=True,
    ),
    "replay": Entry(
        _penalised(Replay), "the first thing to try", "random points with labels", "a second minibatch", drawn=True
    ),
    "der++": Entry(
        _penalised(DERpp),
        "Buzzega et al. 2020",
        "random points with labels and outputs",
        "two more minibatches",
        drawn=True,
    ),
    "frcl-random": Entry(
        _frcl_random,
        "Titsias et al. 2020",
        "random points, the GP's posterior there a class and task",
        "a pass over all memory, a Cholesky factor a task, a covariance a class",
        told=True,
        drawn=True,
    ),
    "frcl-trace": Entry(
        FRCL,
        "Titsias et al. 2020",
        "points that leave little open, the GP's posterior there a class and task",
        "a pass over all memory, a Cholesky factor a task, a covariance a class",
        told=True,
    ),
    "finetune": Entry(Finetune, "the floor", "nothing", "nothing"),
    "separate": Entry(Separate, "no transfer, no forgetting", "a network a task", "nothing", told=True),
    "joint": Entry(Joint, "the ceiling", "all data of all tasks", "nothing, but an epoch is as long as all tasks"),
}
