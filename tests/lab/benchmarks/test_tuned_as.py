"""A benchmark may have what was chosen on another one, for every method."""

import pytest

from fromp.lab.methods import METHODS
from fromp.lab.results.plan import Plan


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("benchmark", "like"),
    [
        ("split-fashion", "split-mnist"),
        ("split-fashion-class", "split-mnist-class"),
        ("permuted-mnist-50", "permuted-mnist"),
    ],
)
def test_settings_are_those_of_the_other_benchmark(method, benchmark, like):
    assert Plan.of(benchmark, method, tasks=5).flat() == Plan.of(like, method, tasks=5).flat()
