"""FRCL against dense Gaussian processes: nothing here uses the weight space that the method works in."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from fromp import Bernoulli, Categorical, FrompError, Gaussian
from fromp.foundation.errors import FrompWarning
from fromp.foundation.examples import TensorExamples
from fromp.lab.methods.frcl import FRCL, LastLayer, exchange

F64 = torch.double
LAYER = LastLayer(prior_precision=0.7, jitter=1e-3)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def kernel(a, b):
    """K_ab of the last layer, without jitter."""
    return a @ b.T / LAYER.prior_precision


def noisy(k):
    return k + LAYER.jitter * torch.eye(k.shape[-1], dtype=F64)


def weights(c=3, w=4):
    """Some q(w): means (c, w) and lower factors (c, w, v)."""
    return randn(c, w, seed=1), randn(c, w, w, seed=2).tril()


def network(inputs=3, outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def method(model, likelihood=None, memory=6, search=0, jitter=1e-3, prior_precision=0.7):
    return FRCL(model, likelihood or Categorical(), memory, prior_precision, jitter, 0.1, search, seed=0)


def regression():
    """A learned task whose q(w) is the exact posterior of Bayesian linear regression on today's features."""
    frcl = method(network(outputs=1), Gaussian(4.0))
    x, y = randn(20, 3, seed=3), randn(20, seed=4)
    frcl.begin_task(TensorExamples(x, y), None, [])
    phi = frcl.features(x).detach()
    covariance = torch.linalg.inv(0.7 * torch.eye(6, dtype=F64) + 4.0 * phi.T @ phi)
    with torch.no_grad():
        frcl.mean.copy_((4.0 * covariance @ phi.T @ y)[None])
        frcl.factor.copy_(torch.linalg.cholesky(covariance)[None])
    return frcl, x, y, phi


def dense_posterior(phi, y, at):
    """Mean and covariance of f at features `at`, by the textbook GP with noise of variance 1/4."""
    gain = kernel(at, phi) @ torch.linalg.inv(kernel(phi, phi) + torch.eye(len(y), dtype=F64) / 4.0)
    return gain @ y, kernel(at, at) - gain @ kernel(phi, at)


def test_q_of_u_is_the_dense_posterior():
    frcl, x, y, phi = regression()
    frcl.end_task((x, y))
    q, z = frcl.past[0], frcl.features(frcl.memories[0].inputs).detach()
    mean, covariance = dense_posterior(phi, y, z)
    torch.testing.assert_close(q.mean[0], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.covariance[0], noisy(covariance), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.log_det, torch.logdet(noisy(covariance)), rtol=1e-8, atol=1e-8)


def test_the_latest_task_predicts_as_the_dense_gp():
    frcl, _, y, phi = regression()
    new = randn(7, 3, seed=5)
    mean, covariance = dense_posterior(phi, y, frcl.features(new).detach())
    found = frcl.predict(new, task=0)
    torch.testing.assert_close(found.mean[:, 0], mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.variance[:, 0], covariance.diagonal(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("points", [3, 12])  # fewer and more than the features
def test_a_past_task_predicts_as_the_dense_gp_with_todays_kernel(points, monkeypatch):
    frcl, x, y, _ = regression()
    frcl.memory_size = points
    for _ in range(2):  # the first task, and one that knows nothing
        frcl.end_task((x, y))
        frcl.begin_task(TensorExamples(x, y), None, [])
    with torch.no_grad():
        frcl.model[0].weight += 0.3 * randn(5, 3, seed=6)  # the features have moved on
    q, new = frcl.past[0], randn(7, 3, seed=5)
    z, at = frcl.features(frcl.memories[0].inputs).detach(), frcl.features(new).detach()
    gain = kernel(at, z) @ torch.linalg.inv(noisy(kernel(z, z)))
    variance = (kernel(at, at) - gain @ kernel(z, at) + gain @ q.covariance[0] @ gain.T).diagonal()
    found = frcl.predict(new, task=0)
    torch.testing.assert_close(found.mean[:, 0], gain @ q.mean[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance[:, 0], variance, rtol=1e-8, atol=1e-8)
    monkeypatch.setattr("fromp.lab.methods.frcl.TEST_SAMPLES", 4000)
    frcl.likelihood = Bernoulli()
    averaged = frcl.predict_outputs(new, None, 0)
    drawn = found.mean + found.variance.sqrt() * torch.randn(4000, *found.mean.shape).double()
    assert (averaged - drawn.sigmoid().mean(0)).abs().max() < 0.03


@pytest.mark.parametrize("points", [3, 9])
def test_the_kl_and_its_gradient_are_those_of_dense_normals(points):
    q = LAYER.remember(randn(points, 4, seed=7), *weights())
    phi = randn(points, 4, seed=8).requires_grad_()
    prior = MultivariateNormal(torch.zeros(points, dtype=F64), noisy(kernel(phi, phi)))
    dense = kl_divergence(MultivariateNormal(q.mean, q.covariance), prior).sum()
    found = LAYER.kl_of_function(phi, q)
    torch.testing.assert_close(found, dense, rtol=1e-8, atol=1e-8)
    slopes = [torch.autograd.grad(value, phi)[0] for value in (found, dense)]
    torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-6)


def test_the_kl_of_the_weights_is_that_of_normals():
    mean, factor = weights()
    prior = MultivariateNormal(torch.zeros(4, dtype=F64), torch.eye(4, dtype=F64) / LAYER.prior_precision)
    dense = kl_divergence(MultivariateNormal(mean, factor @ factor.mT), prior).sum()
    torch.testing.assert_close(LAYER.kl_of_weights(mean, factor), dense, rtol=1e-10, atol=1e-10)


def test_with_enough_points_nothing_is_lost():
    """Without noise, u at w independent points says as much as the weights: the two KLs are one."""
    layer, phi = LastLayer(0.7, 1e-9), randn(4, 4, seed=7)
    found = layer.kl_of_function(phi, layer.remember(phi, *weights()))
    torch.testing.assert_close(found, layer.kl_of_weights(*weights()), rtol=1e-5, atol=1e-5)


def test_the_loss_is_the_negative_elbo():
    """On a linear-Gaussian task it is the negative evidence over N, and has no slope at the exact posterior."""
    frcl, x, y, phi = regression()
    many = 20000  # draws of f at each example, instead of one
    loss = sum(frcl.loss([(x.repeat(many, 1), y.repeat(many), None)]))
    covariance = kernel(phi, phi) + torch.eye(20, dtype=F64) / 4.0
    evidence = MultivariateNormal(torch.zeros(20, dtype=F64), covariance).log_prob(y)
    constant = 0.5 * torch.log(torch.tensor(2 * torch.pi / 4.0))  # which Gaussian.nll leaves out
    assert (loss + constant).item() == pytest.approx(-evidence.item() / 20, abs=2e-3)
    for slope in torch.autograd.grad(loss, [frcl.mean, frcl.factor]):
        assert slope.abs().max() < 0.02


def test_outputs_are_drawn_independently():
    """All have the same marginals: a draw that they shared would leave the softmax at a half."""
    frcl, x, y = method(network()), randn(6, 3), torch.arange(6) % 2
    frcl.begin_task(TensorExamples(x, y), None, [])
    with torch.no_grad():
        frcl.factor *= 10
        found = frcl.data_loss([(x.repeat(5000, 1), y.repeat(5000), None)])
        f = frcl.features(x).norm(dim=1)[:, None] * randn(5000, 6, 2)
    assert found.item() == pytest.approx((f[..., 1] - f[..., 0]).exp().log1p().mean().item(), rel=0.02)


def test_the_penalty_adds_the_kls_of_dense_normals_once_each():
    frcl, heads = method(network(outputs=6)), [(0, 1), (2, 3, 4), (1, 5)]
    remembered = []
    for task, head in enumerate(heads):
        x, y = randn(30 + task, 3, seed=task), torch.arange(30 + task) % 2
        frcl.begin_task(TensorExamples(x, y), head, [])
        mean, factor = weights(len(head), 6)
        with torch.no_grad():
            frcl.mean.copy_(mean)
            frcl.factor.copy_(factor)
            frcl.model[0].bias += 0.1
        if task < 2:
            frcl.end_task((x, y), head)
            phi = frcl.features(frcl.memories[task].inputs).detach()
            remembered.append(MultivariateNormal(mean @ phi.T, noisy(phi @ factor @ factor.mT @ phi.T)))
    prior = MultivariateNormal(torch.zeros(6, dtype=F64), torch.eye(6, dtype=F64) / LAYER.prior_precision)
    total = kl_divergence(MultivariateNormal(mean, factor @ factor.mT), prior).sum()
    for memory, q in zip(frcl.memories, remembered, strict=True):
        phi = frcl.features(memory.inputs).detach()
        prior = MultivariateNormal(torch.zeros(6, dtype=F64), noisy(kernel(phi, phi)))
        total = total + kl_divergence(q, prior).sum()
    assert frcl.penalty().item() == pytest.approx(total.item() / 32, rel=1e-8)


@pytest.mark.parametrize("points", [3, 9])
def test_the_uncertainty_is_the_trace(points):
    x, z = randn(15, 4), randn(points, 4, seed=1)
    left = kernel(x, x) - kernel(x, z) @ torch.linalg.inv(noisy(kernel(z, z))) @ kernel(z, x)
    assert LAYER.uncertainty(z, x.T @ x) == pytest.approx(left.trace().item(), abs=1e-9)


def test_the_search_never_does_worse_and_finds_the_best():
    phi = randn(9, 5)
    scatter, reached = phi.T @ phi, []

    def left(chosen):
        return LAYER.uncertainty(phi[torch.as_tensor(chosen)], scatter)

    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        start = torch.randperm(9, generator=generator)[:3]
        chosen, before = start, left(start)
        for tries in (0, 1, 5, 300):
            chosen = exchange(LAYER, phi, chosen, tries, generator)
            assert left(chosen) <= before
            assert len(set(chosen.tolist())) == 3
            before = left(chosen)
        nearby = [
            [*(kept for kept in chosen.tolist() if kept != given), taken]
            for given in chosen.tolist()
            for taken in set(range(9)) - set(chosen.tolist())
        ]
        assert before <= min(map(left, nearby))  # no exchange is left that would pay
        reached.append(before)
    assert min(reached) == pytest.approx(min(map(left, itertools.combinations(range(9), 3))), rel=1e-12)
    assert exchange(LAYER, phi, torch.arange(9), 50, torch.Generator()).tolist() == list(range(9))


def test_the_search_leaves_less_open():
    x, y = torch.cat([randn(40, 3) / 10, 5 * randn(10, 3, seed=1)]), torch.arange(50) % 2
    left = []
    for search in (0, 200):
        frcl = method(network(), search=search, memory=5)
        frcl.end_task((x, y))
        phi, z = frcl.features(x).detach(), frcl.features(frcl.memories[0].inputs).detach()
        left.append(frcl.layer.uncertainty(z, phi.T @ phi))
    assert left[1] < 0.7 * left[0]


def test_only_the_features_and_q_are_trained():
    model = network()
    frcl = method(model)
    x, y = randn(12, 3), torch.arange(12) % 2
    frcl.begin_task(TensorExamples(x, y), None, [])
    sum(frcl.loss([(x, y, None)])).backward()
    assert all(p.grad is None for p in model[2].parameters())
    assert all(p.grad is not None for p in [*model[0].parameters(), frcl.mean, frcl.factor])


def test_restoring_keeps_the_parameters_that_an_optimiser_holds():
    frcl = method(network())
    frcl.begin_task(TensorExamples(randn(12, 3), torch.arange(12) % 2), None, [])
    held, state = frcl.parameters(), frcl.state_dict()
    frcl.load_state_dict({**state, "mean": state["mean"].detach() + 1, "factor": state["factor"].detach().clone()})
    assert all(a is b for a, b in zip(held, frcl.parameters(), strict=True))
    assert frcl.mean.eq(1).all()


class Late(nn.Module):
    """Its last linear layer is not its last step."""

    def __init__(self, step):
        super().__init__()
        self.layer, self.step = nn.Linear(3, 2), step

    def forward(self, x):
        return self.step(self.layer(x))


@pytest.mark.parametrize("model", [Late(nn.LogSoftmax(1)), nn.Sequential(nn.Conv1d(3, 2, 1), nn.Flatten())])
def test_a_model_that_does_not_end_with_a_linear_layer(model):
    x = torch.randn(4, 3) if isinstance(model, Late) else torch.randn(4, 3, 1)
    with pytest.raises(FrompError, match="let the model end with a linear layer"):
        method(model).begin_task(TensorExamples(x, torch.arange(4) % 2), None, [])
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("option", "value"), [("jitter", 0.0), ("jitter", float("nan")), ("prior_precision", -1.0), ("memory", 0)]
)
def test_impossible_settings(option, value):
    with pytest.raises(FrompError, match=f"{option}={value} must be positive and finite"):
        method(network(), **{option: value})


def test_training_before_a_task_begins():
    frcl, batch = method(network()), (randn(12, 3), torch.arange(12) % 2)
    with pytest.raises(FrompError, match="call begin_task"):
        frcl.loss([(*batch, None)])
    frcl.begin_task(TensorExamples(*batch), None, [])
    frcl.loss([(*batch, None)])
    frcl.end_task(batch)
    with pytest.raises(FrompError, match="call begin_task"):  # for the second task too
        frcl.loss([(*batch, None)])


def test_an_error_at_a_tasks_end_changes_nothing():
    frcl = method(network(), memory=40, jitter=1e-30)  # more points than features
    before = frcl.state_dict()["generator"]
    with pytest.raises(FrompError, match="use a jitter well above"):
        frcl.end_task((randn(60, 3), torch.arange(60) % 2))
    assert (frcl.memories, frcl.past) == ([], [])
    assert torch.equal(frcl.state_dict()["generator"], before)


def test_a_task_smaller_than_the_memory_is_kept_whole():
    frcl = method(network(), memory=50, search=20)
    with pytest.warns(FrompWarning, match="memory_size=50 is larger than the task's 12 examples; all of them"):
        frcl.end_task((randn(12, 3), torch.arange(12) % 2))
    assert sorted(frcl.memories[0].indices.tolist()) == list(range(12))
