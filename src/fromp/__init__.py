"""Functional regularisation of memorable past: continual learning for any PyTorch model."""

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
