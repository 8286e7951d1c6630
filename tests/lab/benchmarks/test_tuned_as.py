"""Fashion-MNIST has what was chosen on Split MNIST, for every method."""

import pytest

from fromp.lab.methods import METHODS
from fromp.lab.results.plan import Plan


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("benchmark", "like"), [("split-fashion", "split-mnist"), ("split-fashion-class", "split-mnist-class")]
)
def test_settings_are_those_of_the_other_benchmark(method, benchmark, like):
    assert Plan.of(benchmark, method).flat() == Plan.of(like, method).flat()
