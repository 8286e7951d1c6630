"""The regulariser that holds the months before: its choice and its settings stand here alone."""

from torch import nn

from fromp.likelihoods import Likelihood
from fromp.regulariser import FROMP

PRIOR_PRECISION = 1e-3
JITTER = 1e-2


def regulariser(model: nn.Module, likelihood: Likelihood, memory_size: int) -> FROMP:
    """One for inputs and targets that are standardised; tau is chosen for each month."""
    return FROMP(model, likelihood, tau=1.0, memory_size=memory_size, prior_precision=PRIOR_PRECISION, jitter=JITTER)
