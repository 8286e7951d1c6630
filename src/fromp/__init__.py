"""Functional regularisation of memorable past: continual learning for any PyTorch model.

The public names are imported at their first use, so that `fromp --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fromp.foundation.errors import CheckpointError, DataError, DerivativeError, FrompError, KernelError
    from fromp.gp import Prediction
    from fromp.likelihoods import GLM, Bernoulli, Categorical, Gaussian, Likelihood, Poisson
    from fromp.memory import Memory, least_memorable, memorability, per_class, random_score, top
    from fromp.prior import FullKernel, IdentityKernel
    from fromp.regulariser import FROMP, Regulariser
    from fromp.taskfree.detectors import Calibrated, Welch
    from fromp.taskfree.learner import TaskFree

__version__ = "0.1.0"

__all__ = [
    "FROMP",
    "GLM",
    "Bernoulli",
    "Calibrated",
    "Categorical",
    "CheckpointError",
    "DataError",
    "DerivativeError",
    "FrompError",
    "FullKernel",
    "Gaussian",
    "IdentityKernel",
    "KernelError",
    "Likelihood",
    "Memory",
    "Poisson",
    "Prediction",
    "Regulariser",
    "TaskFree",
    "Welch",
    "least_memorable",
    "memorability",
    "per_class",
    "random_score",
    "top",
]

_NAMES_IN = {
    "foundation.errors": "CheckpointError DataError DerivativeError FrompError KernelError",
    "gp": "Prediction",
    "likelihoods": "GLM Bernoulli Categorical Gaussian Likelihood Poisson",
    "memory": "Memory least_memorable memorability per_class random_score top",
    "prior": "FullKernel IdentityKernel",
    "regulariser": "FROMP Regulariser",
    "taskfree.detectors": "Calibrated Welch",
    "taskfree.learner": "TaskFree",
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
