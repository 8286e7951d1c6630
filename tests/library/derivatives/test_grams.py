"""Kernels of examples that do not fit in one tile: exact without pairs of tiles, or sketched; and few at a time."""

import pytest
import torch
from oracles import naive
from torch import nn

from fromp import FROMP, Bernoulli, Categorical, FullKernel, Gaussian, Poisson, gp
from fromp.derivatives import grams
from fromp.derivatives.tape import Tape

N = 9


class Everything(nn.Module):
    """Every form a gradient has: outer products, sums of them, rows of an embedding, dense ones, and a bare scalar."""

    def __init__(self):
        super().__init__()
        self.words, self.scale = nn.Embedding(7, 4), nn.Parameter(torch.tensor(0.7))
        self.conv, self.out = nn.Conv1d(4, 5, 3, padding=1), nn.Linear(5, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.scale * self.conv(self.words(x).mT)).sum(-1))


@pytest.fixture
def case():
    torch.manual_seed(0)
    model = Everything().double()
    variance = {name: torch.rand_like(w).detach() + 0.1 for name, w in model.named_parameters()}
    return model, torch.randint(7, (N, 6)), variance


def tiny(monkeypatch, points):
    """As if no more than so many examples fitted into the budget, and few numbers could be kept."""
    monkeypatch.setattr(grams, "tiles", lambda model, weights, x, head, budget, lambdas: iter(x.split(points)))
    monkeypatch.setattr(grams, "FORMED", 1)


@pytest.mark.parametrize("points", [4, N])
@pytest.mark.parametrize("budget", [1, 20_000, 2**20])
def test_several_tiles_equal_the_slow_twin(case, monkeypatch, points, budget):
    """Also where a weight is kept a few rows at a time, and outputs one at a time."""
    model, x, variance = case
    tiny(monkeypatch, points)
    flat = torch.cat([value.flatten() for value in variance.values()])
    expected = naive.kernel(model, x, N, Categorical(), flat)
    parts = list(gp.kernels(model, x, Categorical(), variance, memory_budget=budget))
    assert len(parts) == (1 if budget == 2**20 else 4)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-8, atol=1e-10)


def test_no_example_is_computed_twice_where_all_can_be_kept(case, monkeypatch):
    """One forward pass per tile, and one for the sizes; the backward passes are one per tile and output."""
    model, x, variance = case
    tiny(monkeypatch, 2)
    seen = []

    class Counted(Tape):
        def gradients(self, s):
            seen.append(len(s))
            return super().gradients(s)

    monkeypatch.setattr(grams, "Tape", Counted)
    list(gp.kernels(model, x, Categorical(), variance, memory_budget=2**20))
    assert seen.count(2) + seen.count(1) == len(seen)
    assert sum(seen) == 4 * N + 2  # four outputs of every example, and two examples for the sizes


class Tied(nn.Module):
    """Two linear layers in a row that are one."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x):
        return self.one(torch.tanh(self.one(x)))


def ending(kind):
    """A model that ends in one way or another, and whether the last layer is taken by itself."""
    if kind == "tied":
        return Tied(), False
    if kind == "no linear layer":
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh()), False
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4, bias=kind != "no bias"))
    if kind == "weight frozen":
        model[2].weight.requires_grad_(False)
    return model, True


@pytest.mark.parametrize("sketch", [None, 5000])
@pytest.mark.parametrize("points", [4, N])
@pytest.mark.parametrize("kind", ["plain", "no bias", "weight frozen", "tied", "no linear layer"])
@pytest.mark.parametrize(
    "likelihood", [Categorical(), Bernoulli(), Gaussian(2.0), Poisson()], ids=lambda one: type(one).__name__
)
def test_a_linear_last_layer_equals_the_slow_twin(monkeypatch, likelihood, kind, points, sketch):
    torch.manual_seed(0)
    model, alone = ending(kind)
    model, x = model.double(), 3 * torch.randn(N, 4, dtype=torch.double)
    trained = {name: w for name, w in model.named_parameters() if w.requires_grad}
    variance = {name: torch.rand_like(w).detach() + 0.1 for name, w in trained.items()}
    flat = torch.cat([value.flatten() for value in variance.values()])
    tiny(monkeypatch, points)
    seen = []
    monkeypatch.setattr(grams, "MANY", 1)
    monkeypatch.setattr(
        grams.LastLayer, "add_grams", lambda *args, own=grams.LastLayer.add_grams: seen.append(1) or own(*args)
    )
    found = list(gp.kernels(model, x, likelihood, variance, memory_budget=20_000, sketch=sketch))
    assert len(found) > 1
    assert len(seen) == (len(found) if alone and not isinstance(likelihood, Poisson) else 0)
    if not sketch or points == N:
        expected = naive.kernel(model, x, N, likelihood, flat)
        torch.testing.assert_close(torch.cat(found), expected, rtol=1e-8, atol=1e-10)


def test_a_head_of_a_shared_layer(monkeypatch):
    """The other rows of the layer are reached by no gradient, and left out."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 40)).double(), torch.randn(N, 4).double()
    variance = {name: torch.rand_like(w).detach() + 0.1 for name, w in model.named_parameters()}
    flat = torch.cat([value.flatten() for value in variance.values()])
    expected = naive.kernel(model, x, N, Categorical(), flat, head=(7, 3, 21))
    torch.testing.assert_close(
        gp.kernel(model, x, Categorical(), variance, (7, 3, 21)), expected, rtol=1e-8, atol=1e-10
    )


def test_a_saturated_output_keeps_its_kernel(monkeypatch):
    """In single precision too, where the terms of the last layer nearly cancel."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4)).double(), torch.randn(N, 4).double()
    with torch.no_grad():
        model[0].bias[1] = 7.0  # p = 0.997
    variance = {name: torch.ones_like(w).detach() for name, w in model.named_parameters()}
    exact = gp.kernel(model, x, Categorical(), variance)
    monkeypatch.setattr(grams, "MANY", 1)
    variance = {name: v.float() for name, v in variance.items()}
    found = gp.kernel(model.float(), x.float(), Categorical(), variance)
    for one, other in zip(found, exact, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-3


def test_a_tile_that_a_weight_does_not_reach(monkeypatch):
    """Its gradients there are zero, and nothing is out of step."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            first = x[:, 0] > 0
            f = x.new_zeros(len(x), 2)
            f[first], f[~first] = self.one(x[first]), self.other(x[~first])
            return f

    torch.manual_seed(0)
    model, x = Experts().double(), torch.randn(8, 3, dtype=torch.double)
    x[:, 0] = torch.tensor([1.0, 2, 3, 1, -2, -1, -2, -1])
    variance = {name: torch.rand_like(w).detach() + 0.1 for name, w in model.named_parameters()}
    whole = naive.kernel(model, x, 8, Categorical(), torch.cat([v.flatten() for v in variance.values()]))
    tiny(monkeypatch, 4)
    torch.testing.assert_close(gp.kernel(model, x, Categorical(), variance), whole, rtol=1e-8, atol=1e-10)


def test_a_sketch_is_right_on_average(case, monkeypatch):
    model, x, variance = case
    exact = gp.kernel(model, x, Categorical(), variance)
    assert torch.equal(gp.kernel(model, x, Categorical(), variance, sketch=50), exact)  # one tile: nothing to sketch
    tiny(monkeypatch, 4)
    draws, inner = [], grams.zlib.crc32
    for seed in range(60):
        monkeypatch.setattr(grams.zlib, "crc32", lambda name, seed=seed: inner(name + bytes([seed % 251, seed // 251])))
        draws.append(gp.kernel(model, x, Categorical(), variance, sketch=20))
    found, scale = torch.stack(draws), exact.abs().max()
    deviation = found.std(0) / len(draws) ** 0.5
    assert float(((found.mean(0) - exact) / (deviation + 1e-6 * scale)).abs().max()) < 5  # of 4 x 81 numbers
    wide = gp.kernel(model, x, Categorical(), variance, sketch=100_000)  # more columns than weights: no collisions
    assert float((wide - exact).norm() / exact.norm()) < 0.05
    assert float(torch.linalg.eigvalsh(found[0]).min()) > -1e-9  # a kernel, however rough


def test_a_sketch_of_the_regulariser_is_saved(case, monkeypatch, tmp_path):
    model, x, _ = case
    tiny(monkeypatch, 4)
    kernels = []
    for sketch in (None, 30):
        reg = FROMP(model, Categorical(), memory_size=N, jitter=1e-2, sketch=sketch)
        reg.end_task(x, torch.arange(N) % 4)
        kernels.append(reg._anchors()[0].kernel)
        assert isinstance(kernels[-1], FullKernel)
        reg.save(tmp_path / str(sketch))
        assert FROMP.load(tmp_path / str(sketch), model).sketch == sketch
    assert not torch.allclose(kernels[0].inverse, kernels[1].inverse)


def test_outputs_in_turn_name_the_right_one():
    """The kernel of output 2 is not positive definite, whichever portion it comes in."""
    kernels = torch.eye(3).repeat(4, 1, 1).double()
    kernels[2] *= -1
    for step in (1, 3, 4):
        with pytest.raises(gp.KernelError, match="kernel of output 2"):
            list(gp.inverses(iter(kernels.split(step)), torch.full((4,), 1e-3)))
