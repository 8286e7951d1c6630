"""Functional regularisation of memorable past: continual learning for any PyTorch model.

The public names are imported at their first use, so that `fromp --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fromp.composed import Composed
    from fromp.contexts.mixtures import Mixtures
    from fromp.contexts.present_batch import PresentBatch
    from fromp.contexts.remembered import Remembered
    from fromp.contexts.unlabelled import Unlabelled
    from fromp.curvature import ExactGGN, SignGGN
    from fromp.foundation.collectives import Alone
    from fromp.foundation.errors import CheckpointError, DataError, DerivativeError, FrompError, KernelError
    from fromp.foundation.examples import TaskData
    from fromp.gp import Prediction
    from fromp.holding import Hold
    from fromp.likelihoods import GLM, Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Tokens
    from fromp.memory import Memory, least_memorable, memorability, per_class, random_score, top
    from fromp.metrics.data_wide import DataWide
    from fromp.metrics.divergence import Divergence
    from fromp.metrics.full_kernel import FullKernel
    from fromp.metrics.half_kernel import HalfKernel
    from fromp.metrics.identity_kernel import IdentityKernel
    from fromp.metrics.labels import Labels
    from fromp.metrics.logits import Logits
    from fromp.metrics.means import Means
    from fromp.metrics.output_hessian import OutputHessian
    from fromp.mixed_past import MixedPast
    from fromp.protocol import Regulariser
    from fromp.refresh import at_every_end, never, when_doubled
    from fromp.regulariser import FROMP
    from fromp.taskfree.detectors import Calibrated, Welch
    from fromp.taskfree.learner import TaskFree
    from fromp.tuning import Suggestion, suggest_tau

__version__ = "0.2.0"

__all__ = [
    "FROMP",
    "GLM",
    "Alone",
    "Bernoulli",
    "Calibrated",
    "Categorical",
    "CheckpointError",
    "Composed",
    "DataError",
    "DataWide",
    "DerivativeError",
    "Divergence",
    "ExactGGN",
    "FrompError",
    "FullKernel",
    "Gaussian",
    "HalfKernel",
    "Hold",
    "IdentityKernel",
    "KernelError",
    "Labels",
    "Likelihood",
    "Logits",
    "Means",
    "Memory",
    "MixedPast",
    "Mixtures",
    "OutputHessian",
    "Poisson",
    "Prediction",
    "PresentBatch",
    "Regulariser",
    "Remembered",
    "SignGGN",
    "Suggestion",
    "TaskData",
    "TaskFree",
    "Tokens",
    "Unlabelled",
    "Welch",
    "at_every_end",
    "least_memorable",
    "memorability",
    "never",
    "per_class",
    "random_score",
    "suggest_tau",
    "top",
    "when_doubled",
]

_NAMES_IN = {
    "composed": "Composed",
    "foundation.collectives": "Alone",
    "contexts.mixtures": "Mixtures",
    "contexts.present_batch": "PresentBatch",
    "contexts.remembered": "Remembered",
    "contexts.unlabelled": "Unlabelled",
    "curvature": "ExactGGN SignGGN",
    "foundation.errors": "CheckpointError DataError DerivativeError FrompError KernelError",
    "foundation.examples": "TaskData",
    "holding": "Hold",
    "gp": "Prediction",
    "likelihoods": "GLM Bernoulli Categorical Gaussian Likelihood Poisson Tokens",
    "memory": "Memory least_memorable memorability per_class random_score top",
    "metrics.data_wide": "DataWide",
    "metrics.divergence": "Divergence",
    "metrics.full_kernel": "FullKernel",
    "metrics.half_kernel": "HalfKernel",
    "metrics.identity_kernel": "IdentityKernel",
    "metrics.labels": "Labels",
    "metrics.logits": "Logits",
    "metrics.means": "Means",
    "metrics.output_hessian": "OutputHessian",
    "mixed_past": "MixedPast",
    "protocol": "Regulariser",
    "refresh": "at_every_end never when_doubled",
    "regulariser": "FROMP",
    "taskfree.detectors": "Calibrated Welch",
    "taskfree.learner": "TaskFree",
    "tuning": "Suggestion suggest_tau",
}
_HOME = {name: f"fromp.{module}" for module, names in _NAMES_IN.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """A public name, from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'fromp' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
