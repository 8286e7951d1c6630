"""The functional prior: what the default jitter is, and what it bounds."""

import pytest
import torch
from torch import nn

from fromp import FROMP, Bernoulli, Categorical, Gaussian, Poisson, gp
from fromp.prior import SHARE_OF_NOISE

KINDS = {
    "categorical": (Categorical(), lambda n: torch.arange(n) % 3, 0.25),
    "bernoulli": (Bernoulli(), lambda n: (torch.arange(3 * n) % 2).view(n, 3), 0.25),
    "gaussian": (Gaussian(4.0), lambda n: torch.arange(3 * n).view(n, 3).double().sin(), 0.25),
    "precise": (Gaussian(100.0), lambda n: torch.arange(3 * n).view(n, 3).double().sin(), 0.01),
}
TAU, POINTS = 0.7, 6 + 4
SMALL_TASK = pytest.mark.filterwarnings("ignore:memory_size=6 is larger")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def after_two_tasks(model, kind, jitter=None):
    """A memory of six points and one of four, which is all that the second task has."""
    likelihood, labels, _ = KINDS[kind]
    reg = FROMP(model, likelihood, tau=TAU, memory_size=6, jitter=jitter)
    for shift, n in ((0.0, 20), (1.0, 4)):
        x = torch.randn(n, 2, generator=torch.Generator().manual_seed(n)).double() + shift
        reg.end_task((x, labels(n)))
    return reg


def moved(model, by):
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(by * torch.randn(weight.shape, generator=generator))


def added(kind, memory):
    """rho V sqrt(m M)."""
    return SHARE_OF_NOISE * KINDS[kind][2] * (len(memory) * POINTS) ** 0.5


@SMALL_TASK
@pytest.mark.parametrize("kind", KINDS)
def test_the_default_jitter_is_a_share_of_the_noise(kind):
    model = network()
    reg = after_two_tasks(model, kind)
    variance = reg.variance(tuple(reg.precision))
    for anchor in reg._prior.anchors:
        k = gp.kernel(model, anchor.memory.inputs, reg.likelihood, variance)
        eye = torch.eye(len(anchor.memory), dtype=torch.double)
        torch.testing.assert_close(anchor.kernel.inverse[0], (k + added(kind, anchor.memory) * eye).inverse())


@SMALL_TASK
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("confidence", [1.0, 30.0])
def test_the_penalty_is_bounded_by_the_deviations_whatever_the_kernel(kind, confidence):
    """tau / 2 sum d^2 / jitter; with a fixed small jitter it goes far beyond that."""
    model, likelihood = network(), KINDS[kind][0]
    with torch.no_grad():
        model[2].weight.mul_(confidence)  # nearly saturated: kernels of nearly zero
    reg, stiff = after_two_tasks(model, kind), after_two_tasks(model, kind, jitter=1e-5)
    before = [likelihood.mean(model(memory.inputs)).detach() for memory in reg.memories]
    moved(model, 1.0)
    bound = 0.0
    for memory, mean in zip(reg.memories, before, strict=True):
        d2 = (likelihood.mean(model(memory.inputs)) - mean).detach().square().sum()
        bound += TAU / 2 * float(d2) / added(kind, memory)
    assert 0 < reg.penalty().item() <= bound < stiff.penalty().item()


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli()])
def test_the_scale_of_the_noise_is_its_largest_value(likelihood):
    f = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) * 3
    f[0] = 0.0
    assert likelihood.noise_scale(f).shape == (2,)
    assert bool((likelihood.noise(f) <= likelihood.noise_scale(f)).all())
    torch.testing.assert_close(likelihood.noise(f).amax(0), likelihood.noise_scale(f))


def test_the_scale_of_unbounded_noise_is_its_mean():
    f = torch.tensor([[0.0], [1.0]])
    torch.testing.assert_close(Poisson().noise_scale(f), f.exp().mean(0))
