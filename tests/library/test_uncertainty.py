"""The GP with the memory as data, against plain loops and exact Bayesian linear regression; what is made of it."""

import math

import pytest
import torch
from oracles import naive
from oracles.small import HEADS, data, move, network
from torch import nn

from fromp import FROMP, Bernoulli, Categorical, DataError, FrompError, Gaussian, Poisson
from fromp.likelihoods import moderated

OPTIONS = {"memory_size": 8, "jitter": 1e-3, "prior_precision": 1e-2}


def taught(likelihood, heads, outputs=6):
    model = network(outputs)
    reg = FROMP(model, likelihood, **OPTIONS)
    for task, head in enumerate(heads):
        x, y = data(task)
        reg.end_task((x, y if isinstance(likelihood, Categorical) else torch.sin(x[:, :outputs]) + 1), head=head)
    move(model, 0.1)
    return model, reg


def slow(model, reg, x, delta, head=None, memories=None):
    """s2 by loops over outputs: every Jacobian written out, one dense inverse per output."""
    points = torch.cat([memory.inputs for memory in memories or reg.memories])
    both = torch.cat([points, x])
    j = naive.jacobian(model, both, len(both), head)
    f = torch.stack([naive.single(model, points, i, head, naive.weights_of(model)) for i in range(len(points))])
    lam = reg.likelihood.hessian(f.detach())
    n, found = len(points), []
    for c in range(j.shape[1]):
        k = j[:, c] @ j[:, c].T / delta
        noise = torch.diag(1 / lam[:, c, c])
        found.append((k - k[:, :n] @ torch.linalg.inv(k[:n, :n] + noise) @ k[:n]).diagonal()[n:])
    return torch.stack(found, -1)


@pytest.mark.parametrize(
    ("likelihood", "heads", "head"),
    [
        (Categorical(), [None, None], None),
        (Categorical(), [None, None], (1, 4)),
        (Gaussian(4.0), [None, None], None),
        (Poisson(), [None], None),
    ],
    ids=["classes", "some of the classes", "regression", "counts"],
)
def test_it_is_the_gp_written_out(likelihood, heads, head):
    outputs = 6 if isinstance(likelihood, Categorical) else 2
    model, reg = taught(likelihood, heads, outputs)
    x = data(3, 5)[0]
    for delta in (0.3, 2.0):
        f, variance = reg.uncertainty(head, weight_precision=delta).latent(x)
        torch.testing.assert_close(f, model(x).detach()[:, list(head) if head else slice(None)])
        torch.testing.assert_close(variance, slow(model, reg, x, delta, head), rtol=1e-8, atol=1e-10)


def test_of_a_head_its_own_memory_counts():
    model, reg = taught(Categorical(), HEADS)
    x = data(1, 5)[0]
    found = reg.uncertainty(HEADS[1]).latent(x).variance
    torch.testing.assert_close(found, slow(model, reg, x, 1.0, HEADS[1], reg.memories[1:2]), rtol=1e-8, atol=1e-10)
    with pytest.raises(DataError, match=r"nothing is remembered of head \[0, 3\]; the memory is of \[0, 1\], \[2, 3\]"):
        reg.uncertainty([0, 3])
    with pytest.raises(DataError, match="nothing is remembered of head all"):
        reg.uncertainty()
    with pytest.raises(DataError, match="head all; call end_task first"):
        FROMP(model, Categorical()).uncertainty()


def test_memories_of_several_shapes_and_small_budgets():
    """Padded sequences differ in length from task to task; the points go through the model in any number of pieces."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network(2)

        def forward(self, x):
            return self.inner(x.mean(1))

    model = Mean()
    reg = FROMP(model, Categorical(), **OPTIONS)
    generator = torch.Generator().manual_seed(0)
    for length in (2, 3):
        reg.end_task((torch.randn(12, length, 3, generator=generator).double(), torch.arange(12) % 2))
    x = torch.randn(4, 2, 3, generator=generator).double()
    whole = reg.uncertainty().latent(x).variance
    reg.memory_budget = 1
    torch.testing.assert_close(reg.uncertainty().latent(x).variance, whole)
    means = nn.Sequential(*model.inner)
    flat = FROMP(means, Categorical(), **OPTIONS)
    from dataclasses import replace

    memories = [replace(memory, inputs=memory.inputs.mean(1)) for memory in reg.memories]
    torch.testing.assert_close(whole, slow(means, flat, x.mean(1), 1.0, None, memories), rtol=1e-8, atol=1e-10)


def test_with_everything_kept_it_is_bayesian_linear_regression():
    torch.manual_seed(0)
    model, (x, _) = nn.Linear(3, 1).double(), data(0, 20)
    reg = FROMP(model, Gaussian(4.0), memory_size=20, jitter=1e-3)
    reg.end_task((x, x.sum(1)))
    rows, at = torch.cat([x, torch.ones(20, 1)], 1), data(1, 6)[0]
    wide = torch.cat([at, torch.ones(6, 1)], 1)
    covariance = torch.linalg.inv(torch.eye(4) * 0.5 + 4.0 * rows.T @ rows)
    expected = torch.einsum("bi,ij,bj->b", wide, covariance, wide)[:, None]
    known = reg.uncertainty(weight_precision=0.5)
    torch.testing.assert_close(known.latent(at).variance, expected)
    lower, upper = known.interval(at, 0.9)
    torch.testing.assert_close((lower + upper) / 2, model(at).detach())
    torch.testing.assert_close(upper - lower, 2 * 1.6448536269514722 * (expected + 0.25).sqrt())
    lower, upper = known.interval(at, 0.5)
    torch.testing.assert_close(upper - lower, 2 * 0.6744897501960817 * (expected + 0.25).sqrt())


def bayesian(generator, unit):
    """A linear model at its posterior mean, the uncertainty of its regulariser, and data it has not seen.

    The weights have precision 0.5 and the labels 4, both in a unit of y: told to the regulariser are 0.5 and 4.
    """
    x = torch.randn(90, 3, generator=generator).double()
    rows = torch.cat([x, torch.ones(90, 1)], 1)
    w = torch.randn(4, generator=generator).double() / 0.5**0.5
    y = unit * (rows @ w + 0.5 * torch.randn(90, generator=generator).double())
    seen = rows[:10]
    best = torch.linalg.solve(0.5 * torch.eye(4) + 4 * seen.T @ seen, 4 * seen.T @ y[:10])
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.copy_(best[None, :3])
        model.bias.copy_(best[3:])
    reg = FROMP(model, Gaussian(4.0), memory_size=10, jitter=1e-3)
    reg.end_task((x[:10], y[:10]))
    return reg.uncertainty(weight_precision=0.5), (x[10:50], y[10:50]), (x[50:], y[50:])


@pytest.mark.parametrize(("unit", "calibrated"), [(1.0, False), (7.0, True)])
def test_intervals_cover_what_they_say(unit, calibrated):
    """Averaged over functions drawn from the prior; in another unit than the one told, after `calibrated`."""
    generator, covered = torch.Generator().manual_seed(0), {0.5: [], 0.9: []}
    for _ in range(60):
        known, held_out, (x, y) = bayesian(generator, unit)
        known = known.calibrated(*held_out) if calibrated else known
        for level, found in covered.items():
            lower, upper = known.interval(x, level)
            found.append(((lower[:, 0] < y) & (y < upper[:, 0])).double().mean())
    for level, found in covered.items():
        assert abs(float(torch.stack(found).mean()) - level) < 0.05


def test_calibrated_intervals_change_units_with_the_labels():
    (one, held_out, (x, _)), (seven, wider, _) = (bayesian(torch.Generator().manual_seed(0), u) for u in (1.0, 7.0))
    before = one.interval(x)
    ours, theirs = one.calibrated(*held_out).interval(x), seven.calibrated(*wider).interval(x)
    torch.testing.assert_close(7 * ours.lower, theirs.lower)
    torch.testing.assert_close(7 * ours.upper, theirs.upper)
    torch.testing.assert_close(one.interval(x), before)  # `calibrated` makes another


def test_each_output_is_calibrated_by_its_own_errors():
    _, reg = taught(Gaussian(4.0), [None], 2)
    known, (x, _) = reg.uncertainty(), data(3, 30)
    f, variance = known.latent(x)
    y = f + (variance + 0.25).sqrt() * torch.tensor([2.0, 0.1]) * torch.randn(30, 1).sign()
    narrow, wide = known.interval(x), known.calibrated(x, y.numpy()).interval(x)
    ratio = (wide.upper - wide.lower) / (narrow.upper - narrow.lower)
    torch.testing.assert_close(ratio, torch.tensor([2.0, 0.1]).double().expand(30, 2))


@pytest.mark.parametrize("likelihood", [Categorical(), Bernoulli(), Gaussian(4.0)], ids=lambda one: type(one).__name__)
def test_novelty_is_small_where_points_are_kept_and_large_far_away(likelihood):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 30), nn.Tanh(), nn.Linear(30, 2 if isinstance(likelihood, Categorical) else 1))
    y = torch.arange(200) % 2
    x = torch.randn(200, 2) * 0.3 + torch.where(y > 0, 1.0, -1.0)[:, None]
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(200):
        loss = likelihood.nll(model(x), y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    reg = FROMP(model, likelihood, memory_size=40, jitter=1e-3)
    reg.end_task((x, y))
    known = reg.uncertainty()
    near, far = known.novelty(reg.memories[0].inputs), known.novelty(20 * torch.randn(50, 2))
    assert near.shape == (40,)
    assert 0 <= near.min() <= near.mean() < far.mean() <= far.max() <= 1


def test_moderated_outputs_are_about_the_average_over_the_gp():
    generator = torch.Generator().manual_seed(0)
    f, variance = torch.linspace(-4, 4, 9)[:, None], torch.tensor([[0.1], [1.0], [10.0]])[:, None]
    samples = f + variance.sqrt() * torch.randn(3, 1, 20_000, generator=generator)
    assert (moderated(f, variance).sigmoid() - samples.sigmoid().mean(-1, keepdim=True)).abs().max() < 0.03
    assert Categorical().novelty(torch.zeros(1, 5), torch.ones(1, 5)).item() == pytest.approx(1)
    assert Bernoulli().novelty(torch.tensor([[0.0, 100.0]]), torch.zeros(1, 2)).item() == pytest.approx(0.5)
    assert Gaussian(4.0).novelty(torch.zeros(1, 1), torch.tensor([[0.25]])).item() == pytest.approx(0.5)
    assert not math.isnan(Categorical().novelty(torch.tensor([[0.0, 1e4]]), torch.zeros(1, 2)).item())


def test_what_cannot_be_asked():
    _, reg = taught(Categorical(), [None])
    known = reg.uncertainty()
    with pytest.raises(FrompError, match=r"intervals are for Gaussian\(\), and the likelihood is Categorical\(\)"):
        known.interval(data(0)[0])
    with pytest.raises(FrompError, match=r"calibrated\(\) is for Gaussian\(\), and the likelihood is Categorical"):
        known.calibrated(*data(0))
    with pytest.raises(FrompError, match="weight_precision=0 must be positive"):
        reg.uncertainty(weight_precision=0)
    with pytest.raises(DataError, match="uncertainty nor the model's forward takes 'task'"):
        reg.uncertainty(task="b")
    with pytest.raises(DataError, match="NaN"):
        known.novelty(data(0)[0] * math.nan)
    _, reg = taught(Gaussian(), [None], 2)
    for level in (0, 1, 90):
        with pytest.raises(FrompError, match=f"level={level} is not a probability"):
            reg.uncertainty().interval(data(0)[0], level)
    for y, message in [(torch.zeros(12, 3), "head of 2 outputs"), (torch.zeros(11, 2), "12 inputs but 11 labels")]:
        with pytest.raises(DataError, match=message):
            reg.uncertainty().calibrated(data(0)[0], y)
