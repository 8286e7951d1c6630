"""The GGN from random signs: right on average, cheap, and told apart from the exact one only by name."""

import pytest
import torch
from torch import nn

from fromp import FROMP, Bernoulli, Categorical, ExactGGN, FrompError, Gaussian, Poisson, SignGGN, gp
from fromp.curvature import Curvature
from fromp.derivatives.model import trainable
from fromp.foundation.errors import CheckpointError
from fromp.foundation.examples import TensorExamples

LIKELIHOODS = [Categorical(), Bernoulli(), Gaussian(2.5), Poisson()]


def network(outputs=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def task(n=40, classes=4):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1), dtype=torch.double), torch.arange(n) % classes


def diagonal(curvature, seed=0, likelihood=LIKELIHOODS[0]):
    model, (x, y) = network(), task()
    found = gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), likelihood, curvature=curvature, seed=seed)
    return torch.cat([value.flatten() for value in found.values()])


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: type(likelihood).__name__)
def test_a_root_times_every_vector_of_signs_is_lambda(likelihood):
    """The mean of (S e)(S e)' over all 2^c signs e, which takes no draws, is Lambda."""
    f = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.double)] * 4)
    found = torch.stack([likelihood.root_times(f, e.expand(3, 4)) for e in signs])
    torch.testing.assert_close(torch.einsum("nbc,nbd->bcd", found, found) / len(signs), likelihood.hessian(f))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda likelihood: type(likelihood).__name__)
def test_columns_and_trace(likelihood):
    f = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    columns = torch.stack(list(likelihood.columns(f)), -1)
    torch.testing.assert_close(columns @ columns.mT, likelihood.hessian(f))
    torch.testing.assert_close(likelihood.trace(f), torch.einsum("bcc->b", likelihood.hessian(f)))


@pytest.mark.parametrize("curvature", [SignGGN(), SignGGN(columns=3), SignGGN(share=0.25)])
def test_signs_are_right_on_average(curvature):
    exact = diagonal(ExactGGN())
    draws = torch.stack([diagonal(curvature, seed) for seed in range(400)])
    error = draws.mean(0) - exact
    deviation = draws.std(0) / len(draws) ** 0.5
    assert float((error / (deviation + 1e-12 * exact)).abs().max()) < 4.5  # of 58 weights
    assert float((draws[0] - exact).norm() / exact.norm()) > 1e-3  # it does draw


def test_two_classes_leave_nothing_to_chance():
    """Lambda has rank 1, so that a sign goes with the square."""
    f = torch.randn(5, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    (column,) = Categorical().columns(f)
    for e in ([1.0, 1.0], [-1.0, 1.0]):
        found = Categorical().root_times(f, torch.tensor(e, dtype=torch.double).expand(5, 2))
        torch.testing.assert_close(found.abs(), column.abs())


def test_one_backward_pass_per_example_whatever_the_classes():
    class Counting(Curvature):
        random = True

        def __init__(self, inner):
            self.inner, self.passes = inner, 0

        def directions(self, likelihood, f, generator):
            for direction in self.inner.directions(likelihood, f, generator):
                self.passes += 1
                yield direction

    for inner, passes in ((SignGGN(), 1), (SignGGN(columns=2), 2), (ExactGGN(), 3)):
        counting = Counting(inner)
        diagonal(counting)
        assert counting.passes == passes


def test_nothing_of_classes_squared_is_formed():
    """Neither by the scores nor by the GGN of a categorical likelihood."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for one in out if isinstance(out, tuple | list) else [out]:
                if isinstance(one, torch.Tensor):
                    largest = max(largest, one.numel())
            return out

    classes, n = 300, 20
    model, x, y = nn.Linear(5, classes), torch.randn(n, 5), torch.arange(n)
    with Watch():
        gp.ggn_diagonal(model, trainable(model), TensorExamples(x, y), Categorical(), curvature=SignGGN())
        Categorical().trace(model(x).detach())
    assert largest < n * classes * 5


def test_it_is_saved_by_name_and_draws_from_the_seed(tmp_path):
    x, y = task()
    first, second, other = (
        FROMP(network(), Categorical(), memory_size=8, seed=s, curvature=SignGGN(2, 0.5)) for s in (1, 1, 2)
    )
    for reg in (first, second, other):
        reg.end_task((x, y))
    for name, value in first.precision.items():
        assert torch.equal(value, second.precision[name])
        assert not torch.equal(value, other.precision[name])
    first.save(tmp_path / "a")
    loaded = FROMP.load(tmp_path / "a", first.model)
    assert loaded.curvature.settings() == {"columns": 2, "share": 0.5}
    for reg in (first, loaded):  # and both go on with the same draws
        reg.end_task((x + 1, y))
    assert all(torch.equal(value, loaded.precision[name]) for name, value in first.precision.items())


def test_one_of_ones_own_is_given_again(tmp_path):
    class Own(Curvature):
        random = False

        def directions(self, likelihood, f, generator):
            return likelihood.columns(f)

    reg = FROMP(network(), Categorical(), memory_size=8, curvature=Own())
    reg.save(tmp_path / "a")
    with pytest.raises(CheckpointError, match="curvature"):
        FROMP.load(tmp_path / "a", reg.model)
    assert isinstance(FROMP.load(tmp_path / "a", reg.model, curvature=Own()).curvature, Own)


@pytest.mark.parametrize(
    ("settings", "named"), [({"columns": 0}, "columns=0"), ({"share": 0}, "share=0"), ({"share": 2}, "share=2")]
)
def test_settings_out_of_range(settings, named):
    with pytest.raises(FrompError, match=named):
        SignGGN(**settings)
