"""Every fast function equals its slow twin, over the whole zoo, every likelihood, single- and multi-head."""

import pytest
import torch
from oracles import naive
from oracles.zoo import ZOO, N, build

from fromp import FROMP, Bernoulli, Categorical, FullKernel, Gaussian, IdentityKernel, Poisson, gp
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal

HEADS = [None, (3, 1)]
OUTPUTS = 4
TOLERANCE = {"rtol": 1e-8, "atol": 1e-10}

LIKELIHOODS = {
    "categorical": (Categorical(), lambda c: torch.arange(N) % c),
    "bernoulli": (Bernoulli(), lambda c: (torch.arange(N * c).reshape(N, c) % 3 == 0).double()),
    "gaussian": (Gaussian(noise_precision=2.5), lambda c: torch.linspace(-1, 1, N * c).reshape(N, c).double()),
    "poisson": (Poisson(), lambda c: (torch.arange(N * c).reshape(N, c) % 4).double()),
}


def flat(by_name):
    return torch.cat([value.flatten() for value in by_name.values()])


def trainable(model):
    return tuple(n for n, p in model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("head", HEADS, ids=["single", "head"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ZOO)
def test_ggn_kernel_and_predictive(name, likelihood, head):
    model, x = build(name, OUTPUTS)
    lik, labels = LIKELIHOODS[likelihood]
    y = labels(OUTPUTS if head is None else len(head))
    model.eval()

    expected = naive.ggn_diagonal(model, x, y, N, lik, head)
    # A budget of one byte forces one example at a time; the default takes all of them together.
    for budget in (1, 2**29):
        got = ggn_diagonal(model, trainable(model), TensorExamples(x, y), lik, head, budget)
        torch.testing.assert_close(flat(got), expected, **TOLERANCE)

    variance = {n: 1 / (d + 0.1) for n, d in got.items()}
    expected_kernel = naive.kernel(model, x, N, lik, flat(variance), head)
    for budget in (1, 2**29):
        torch.testing.assert_close(gp.kernel(model, x, lik, variance, head, budget), expected_kernel, **TOLERANCE)

    prediction = gp.predict(model, x, lik, variance, head)
    torch.testing.assert_close(prediction.mean, naive.means(model, x, N, lik, head), **TOLERANCE)
    diagonal = torch.stack([expected_kernel[:, i, i] for i in range(N)])
    f = torch.stack([naive.single(model, x, i, head, naive.weights_of(model)) for i in range(N)]).detach()
    torch.testing.assert_close(prediction.variance, diagonal + lik.noise(f), **TOLERANCE)


@pytest.mark.parametrize("kernel", [FullKernel, IdentityKernel])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ZOO)
def test_penalty_and_its_gradient(name, likelihood, kernel):
    """Two past tasks with heads of different sizes, then moved weights."""
    model, x = build(name, OUTPUTS)
    lik, labels = LIKELIHOODS[likelihood]
    reg = FROMP(model, lik, tau=0.7, memory_size=N, prior_precision=0.1, jitter=1e-3, kernel=kernel)
    heads = [(3, 1), (0, 1, 2)]
    _, other = build(name, OUTPUTS, seed=1)
    data = [(x, labels(2)), (other, labels(3))]
    for (inputs, y), head in zip(data, heads, strict=True):
        reg.end_task((inputs, y), head=head)

    model.eval()
    variance = 1 / (
        0.1 + sum(naive.ggn_diagonal(model, i, y, N, lik, h) for (i, y), h in zip(data, heads, strict=True))
    )
    torch.testing.assert_close(flat(reg.precision), 1 / variance, **TOLERANCE)
    tasks = []
    for memory in reg.memories:
        mean0 = naive.means(model, memory.inputs, N, lik, memory.head)
        k = naive.kernel(model, memory.inputs, N, lik, variance, memory.head) + 1e-3 * torch.eye(N)
        identity = torch.eye(N, dtype=torch.double).expand_as(k)
        tasks.append((memory.inputs, N, memory.head, mean0, k.inverse() if kernel is FullKernel else identity))
    assert reg.penalty().item() == pytest.approx(0, abs=1e-20)

    model.train()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(2)
        for p in model.parameters():
            if p.requires_grad:
                p += 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.double)
    loss = reg.penalty()
    loss.backward()
    gradient = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters() if p.requires_grad]
    )
    model.eval()
    expected = naive.penalty_gradient(model, tasks, 0.7, lik)
    scale = expected.abs().max()
    torch.testing.assert_close(gradient / scale, expected / scale, rtol=1e-8, atol=1e-8)
    assert loss.item() == pytest.approx(naive.penalty(model, tasks, 0.7, lik), rel=1e-8)
