"""suggest_tau: what it tries, measures, puts back and refuses."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fromp import FROMP, Categorical, FrompError, Gaussian, MixedPast, suggest_tau
from fromp.foundation.errors import FrompWarning


def blobs(centre, n=120):
    y = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(int(centre))) * 0.4
    return x + torch.stack([centre + (2 * y - 1), torch.where(y == 1, -centre, centre)], 1), y


def training(x, y, steps=80):
    def train(reg):
        optimizer = torch.optim.Adam(reg.model.parameters(), 1e-2)
        reg.model.train()
        for _ in range(steps):
            batch = torch.randint(len(x), (32,))
            optimizer.zero_grad()
            (F.cross_entropy(reg.model(x[batch]), y[batch]) + reg.penalty()).backward()
            optimizer.step()

    return train


def learned(**options):
    """A network that has learned a first task."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Dropout(0.1), nn.BatchNorm1d(20), nn.Linear(20, 2))
    reg = FROMP(model, Categorical(), memory_size=40, **options)
    x, y = blobs(0.0)
    training(x, y)(reg)
    reg.end_task((x, y))
    model.zero_grad()
    return model, reg


@pytest.mark.filterwarnings("ignore:the best tau")
def test_weights_modes_draws_and_the_regulariser_are_as_before():
    model, reg = learned()
    model[0].weight.grad = torch.ones(20, 2)
    model[3].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes, draws, memory = [m.training for m in model.modules()], torch.get_rng_state(), reg.state_dict()["generator"]
    x, y = blobs(2.0)
    found = suggest_tau(reg, training(x[20:], y[20:]), (x[:20], y[:20]), taus=[0.0, 1.0])
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), draws)
    assert torch.equal(reg.state_dict()["generator"], memory)
    assert model[0].weight.grad.tolist() == torch.ones(20, 2).tolist()
    assert model[4].bias.grad is None
    assert reg.penalty().item() == 0.0
    assert (reg.tau, list(found.nll)) == (0.5, [0.0, 1.0])
    assert all(len(nll) == 2 for nll in found.nll.values())


@pytest.mark.filterwarnings("ignore:the best tau")
def test_what_is_measured_is_not_what_holds():
    """The nll of each trial by hand: the other half of the memory with its labels, and the data held out."""
    model, reg = learned()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, y = blobs(2.0)
    train, expected, held = training(x[20:], y[20:]), [], []

    def recording(trial):
        train(trial)
        memory = trial._prior.anchors[0].memory
        held.append(memory.indices)
        model.eval()
        with torch.no_grad():
            unseen = reg.memories[0]
            other = ~torch.isin(unseen.indices, memory.indices)
            old = F.cross_entropy(model(unseen.inputs[other]), unseen.labels[other])
            expected.append([float(old), float(F.cross_entropy(model(x[:20]), y[:20]))])

    found = suggest_tau(reg, recording, (x[:20], y[:20]), taus=[0.0, 1.0])
    assert [part for tau in (0.0, 1.0) for part in found.nll[tau]] == pytest.approx(
        [*expected[0], *expected[1]], rel=1e-5
    )
    assert len(held[0]) == 20
    assert reg.memories[0].labels[torch.isin(reg.memories[0].indices, held[0])].bincount().tolist() == [10, 10]
    assert found.nll[1.0][0] < found.nll[0.0][0]  # the penalty holds what it has not seen
    best = min(found.nll, key=lambda tau: sum(found.nll[tau]))
    assert found.tau == best
    assert str(found).splitlines()[1 + list(found.nll).index(best)].endswith("<-")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_fixed_jitter_gets_a_tau_for_the_points_that_are_left():
    """With half of the points a sum over them is half as large; the default jitter weighs their mean."""
    seen = {}
    for jitter in (None, 1e-2):
        _, reg = learned(jitter=jitter)
        x, y = blobs(2.0)

        def train(trial, jitter=jitter):
            seen[jitter] = trial.tau
            trial.penalty()

        suggest_tau(reg, train, (x, y), taus=[0.3])
    assert seen == {None: pytest.approx(0.3), 1e-2: pytest.approx(0.6)}


def test_the_best_at_an_end_is_said():
    _, reg = learned()
    x, y = blobs(0.0)
    with pytest.warns(FrompWarning, match=r"the best tau, 1, is at the (lower|upper) end.*give taus="):
        found = suggest_tau(reg, lambda trial: trial.penalty(), (x, y), taus=[1.0, 2.0])
    assert found.tau == 1.0  # nothing was trained: both are equal
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        suggest_tau(reg, lambda trial: trial.penalty(), (x, y), taus=[1.0])


@pytest.mark.parametrize(
    ("taus", "message"),
    [([], "at least one"), ([-1.0], "zero or positive"), ([float("nan")], "finite"), ([1.0, 1.0], "different")],
)
def test_taus_that_cannot_be_tried(taus, message):
    _, reg = learned()
    with pytest.raises(FrompError, match=message):
        suggest_tau(reg, training(*blobs(2.0)), blobs(2.0), taus=taus)


def test_nothing_to_hold():
    reg = FROMP(nn.Linear(2, 2), Categorical())
    with pytest.raises(FrompError, match=r"no past task of which two points.*end a task first"):
        suggest_tau(reg, training(*blobs(2.0)), blobs(2.0))


def test_another_penalty_is_trained_with():
    model, reg = learned()
    before = model[0].weight.clone()
    x, y = blobs(2.0)
    with pytest.raises(FrompError, match=r"never called penalty\(\) of what it was given"):
        suggest_tau(reg, lambda trial: training(x, y, 2)(reg), (x, y))
    assert torch.equal(model[0].weight, before)


def test_every_tau_diverges():
    model, reg = learned()

    def diverging(trial):
        trial.penalty()
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))

    with pytest.raises(FrompError, match=r"training diverged with every tau.*lower the learning rate"):
        suggest_tau(reg, diverging, blobs(2.0))
    assert bool(model[0].weight.isfinite().all())


@pytest.mark.filterwarnings("ignore:the best tau")
def test_regression():
    model = nn.Linear(1, 1)
    with torch.no_grad():  # as a first task has left it
        model.weight.fill_(2.0)
        model.bias.zero_()
    reg = FROMP(model, Gaussian(4.0), memory_size=10)
    x = torch.linspace(0, 1, 30)[:, None]
    reg.end_task((x, 2 * x))

    def train(trial):
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        for _ in range(200):
            optimizer.zero_grad()
            ((model(x) - 3 * x).square().mean() + trial.penalty()).backward()
            optimizer.step()

    found = suggest_tau(reg, train, (x, 3 * x), taus=[0.0, 1.0])
    assert found.nll[0.0][1] < found.nll[1.0][1]
    assert found.nll[0.0][0] > found.nll[1.0][0]


def test_another_regulariser_is_named():
    reg = MixedPast(nn.Linear(2, 2), Categorical(), 4)
    with pytest.raises(FrompError, match="suggest_tau is for FROMP, and MixedPast has no tau"):
        suggest_tau(reg, training(*blobs(1)), blobs(1))
