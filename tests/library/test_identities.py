"""What must hold whatever the numbers are."""

import math

import pytest
import torch
from torch import nn

from fromp import FROMP, GLM, Bernoulli, Categorical, Gaussian, IdentityKernel, Poisson, gp
from fromp.likelihoods import Likelihood

torch.manual_seed(0)
F64 = torch.double


class NegativeBinomial(GLM):
    """A GLM of a user's own, with three failures and a canonical link (f < 0)."""

    def nll(self, f, y):
        return (-3 * torch.log1p(-f.exp()) - y.reshape(f.shape) * f).sum(-1)


class SoftplusPoisson(GLM):
    """A link that is not canonical: Lambda at one's own y differs from its expectation."""

    def nll(self, f, y):
        rate = torch.nn.functional.softplus(f)
        return (rate - y.reshape(f.shape) * rate.log()).sum(-1)


class AutoCategorical(GLM):
    """The softmax from its nll alone, on one-hot labels."""

    def nll(self, f, y):
        return f.logsumexp(-1) - (y * f).sum(-1)


CANONICAL = {"categorical": Categorical(), "bernoulli": Bernoulli(), "poisson": Poisson()}
ALL: dict[str, Likelihood] = {
    **CANONICAL,
    "gaussian": Gaussian(2.5),
    "negative binomial": NegativeBinomial(),
    "softplus": SoftplusPoisson(),
}


def outputs_for(name):
    f = torch.linspace(-2, 2, 12, dtype=F64).reshape(4, 3)
    return f - 2.5 if name == "negative binomial" else f


@pytest.mark.parametrize("name", ALL)
def test_the_factor_gives_lambda_back(name):
    f, lik = outputs_for(name), ALL[name]
    s = lik.factor(f)
    torch.testing.assert_close(s @ s.mT, lik.hessian(f), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("f", [[0.0, -1.0], [0.0, -20.0, -30.0], [-10.0, 0.0, -40.0, -20.0]])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_factor_of_the_softmax_has_a_column_less_and_holds_where_the_model_is_certain(f, dtype):
    f = torch.tensor([f, f[::-1]], dtype=dtype)
    s, p = Categorical().factor(f), f.double().softmax(-1)
    assert s.shape[-1] == f.shape[-1] - 1
    off_diagonal = 1 - torch.eye(f.shape[-1], dtype=F64)
    diagonal = p * (off_diagonal @ p[:, :, None])[:, :, 0]  # p (1 - p), without a difference of 1 and 1
    exact = torch.diag_embed(diagonal) - p[:, :, None] * p[:, None, :] * off_diagonal
    scale = (diagonal[:, :, None] * diagonal[:, None, :]).sqrt()
    precision = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close((s @ s.mT).double() / scale, exact / scale, rtol=precision, atol=precision)


def test_the_factor_of_the_softmax_is_zero_where_probabilities_underflow():
    f = torch.tensor([[-300.0, 0.0, -500.0], [0.0, -300.0, -500.0], [-500.0, -300.0, 0.0]])
    assert torch.equal(Categorical().factor(f), torch.zeros(3, 3, 2))


@pytest.mark.parametrize("name", CANONICAL)
def test_lambda_is_the_slope_of_the_mean_for_canonical_links(name):
    f, lik = outputs_for(name), CANONICAL[name]
    slope = torch.stack([torch.autograd.functional.jacobian(lambda v: lik.mean(v[None])[0], row) for row in f])
    torch.testing.assert_close(lik.hessian(f), slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "mean", "variance"),
    [
        ("poisson", lambda f: f.exp(), lambda f: f.exp()),
        ("negative binomial", lambda f: 3 * f.exp() / (1 - f.exp()), lambda f: 3 * f.exp() / (1 - f.exp()) ** 2),
        ("softplus", lambda f: torch.nn.functional.softplus(f), lambda f: torch.nn.functional.softplus(f)),
    ],
)
def test_a_glm_from_its_nll_alone(name, mean, variance):
    f = outputs_for(name)
    torch.testing.assert_close(ALL[name].mean(f), mean(f), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ALL[name].noise(f), variance(f), rtol=1e-8, atol=1e-10)


def test_the_softmax_from_its_nll_alone_is_the_softmax():
    f = outputs_for("categorical")
    for quantity in ("mean", "hessian", "noise"):
        got, expected = getattr(AutoCategorical(), quantity)(f), getattr(Categorical(), quantity)(f)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_linear_gaussian_model_is_exact_bayesian_linear_regression():
    """With orthogonal features the diagonal is the whole covariance, so nothing is approximate."""
    n, p, noise, delta = 12, 5, 2.5, 0.3
    phi, _ = torch.linalg.qr(torch.randn(n, p, dtype=F64))
    phi = phi * torch.tensor([3.0, 1.0, 0.5, 2.0, 1.5], dtype=F64)
    y = torch.randn(n, dtype=F64)
    precision = noise * phi.T @ phi + delta * torch.eye(p, dtype=F64)
    posterior = torch.linalg.solve(precision, noise * phi.T @ y)
    model = nn.Linear(p, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(posterior[None])
    reg = FROMP(model, Gaussian(noise), memory_size=n, prior_precision=delta, jitter=1e-6)
    reg.end_task((phi, y))
    x = torch.randn(7, p, dtype=F64)
    mean, variance = reg.predict(x)
    torch.testing.assert_close(mean[:, 0], x @ posterior, rtol=1e-10, atol=1e-10)
    exact = torch.einsum("bi,ij,bj->b", x, torch.linalg.inv(precision), x) + 1 / noise
    torch.testing.assert_close(variance[:, 0], exact, rtol=1e-10, atol=1e-10)
    k = gp.kernel(model, x, Gaussian(noise), {"weight": 1 / reg.precision["weight"]})
    torch.testing.assert_close(k[0], x @ torch.linalg.inv(precision) @ x.T, rtol=1e-10, atol=1e-10)


def test_two_tasks_add_up_to_one():
    """Eq. (9) is Eq. (4) over all the data when the weights stay."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(20, 4, dtype=F64), torch.arange(20) % 3
    whole = FROMP(model, Categorical(), memory_size=6, jitter=1e-3)
    whole.end_task((x, y))
    halves = FROMP(model, Categorical(), memory_size=6, jitter=1e-3)
    halves.end_task((x[:10], y[:10]))
    halves.end_task((x[10:], y[10:]))
    for name, value in whole.precision.items():
        torch.testing.assert_close(halves.precision[name], value, rtol=1e-10, atol=1e-12)


def small(likelihood=None, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6)).double()
    settings = {"tau": 0.5, "memory_size": 6, "prior_precision": 0.1, "jitter": 1e-3} | options
    reg = FROMP(model, likelihood or Categorical(), **settings)
    for head in ([0, 1], [2, 3], [4, 5]):
        reg.end_task((torch.randn(12, 4, dtype=F64), torch.arange(12) % 2), head=head)
    return model, reg


def nudge(model, size=0.1):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn(p.shape, generator=generator, dtype=F64)


def test_the_penalty_is_zero_where_it_was_fixed_and_positive_elsewhere():
    model, reg = small()
    assert reg.penalty().item() == pytest.approx(0, abs=1e-15)
    for size in (1e-3, 1e-1, 1.0):
        nudge(model, size)
        assert reg.penalty().item() > 0


def test_the_identity_kernel_is_functional_l2():
    """With K = I, half tau times Eq. (1) on the means."""
    model, reg = small(kernel=IdentityKernel)
    with torch.no_grad():
        before = [gp.mean(model, m.inputs, Categorical(), m.head) for m in reg.memories]
        nudge(model)
        after = [gp.mean(model, m.inputs, Categorical(), m.head) for m in reg.memories]
    l2 = sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True))
    assert reg.penalty().item() == pytest.approx(0.5 * 0.5 * l2, rel=1e-12)


def test_drawn_penalties_average_to_the_full_one_over_a_round():
    """Two tasks out of three, in turns: two rounds are three draws."""
    model, reg = small()
    nudge(model)
    full = reg.penalty().item()
    model, reg = small(tasks_per_step=2)
    nudge(model)
    draws = [reg.penalty().item() for _ in range(30)]
    assert len({round(d, 9) for d in draws}) == 3
    for first in range(0, 30, 3):
        assert sum(draws[first : first + 3]) / 3 == pytest.approx(full)


@pytest.mark.parametrize(("past", "count"), [(5, 2), (5, 3), (4, 1), (7, 6), (4, 2)])
def test_past_tasks_are_drawn_in_turns_and_each_is_as_likely_at_every_step(past, count):
    model, seeds = nn.Linear(1, 2), 500
    drawn = []
    for seed in range(seeds):
        reg = FROMP(model, Categorical(), tasks_per_step=count, seed=seed)
        drawn.append(torch.stack([reg._draw(past, count) for _ in range(8)]))
    chosen = torch.nn.functional.one_hot(torch.stack(drawn), past).sum(2)  # (seeds, steps, tasks)
    often = chosen.cumsum(1)
    assert bool((chosen <= 1).all())
    assert bool((often.amax(2) - often.amin(2) <= 1).all())
    assert bool(((chosen.double().mean(0) - count / past).abs() < 5 * math.sqrt(0.25 / seeds)).all())


def test_a_stronger_prior_makes_a_smaller_variance():
    _, reg = small()
    x = torch.randn(5, 4, dtype=F64)
    wide = reg.predict(x, head=[0, 1]).variance
    for name in reg.precision:
        reg.precision[name] = reg.precision[name] * 10
    assert bool((reg.predict(x, head=[0, 1]).variance < wide).all())
