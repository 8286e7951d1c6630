"""A penalty that stays far above what labels can cost is said, once."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn

from fromp import FROMP, Categorical
from fromp.derivatives.runaway import BETWEEN_LOOKS, RUNAWAY, RUNAWAY_LOOKS, RunawayWatch
from fromp.foundation.errors import FrompWarning
from fromp.regulariser import WAY_OUT


def looks(values):
    """What is said while a penalty takes these values, one for each time that it is read."""
    watch = RunawayWatch(lambda: 2.0, lambda: [1, 3], WAY_OUT)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for value in values:
            for _ in range(BETWEEN_LOOKS - 1):
                watch.look(torch.tensor(float("inf"), requires_grad=True))  # not read
            watch.look(torch.tensor(value, requires_grad=True))
    return [str(warning.message) for warning in said]


def test_a_penalty_that_stays_high_is_said_once():
    high = 2 * RUNAWAY + 1
    assert looks([1.0, high, high, 1.0, high, high]) == []  # it comes down again
    assert looks([2 * RUNAWAY] * 10) == []
    (said,) = looks([1.0, *[high] * RUNAWAY_LOOKS, *[high] * 10])
    assert f"it is {high:.3g} and stays above {2 * RUNAWAY:.3g}" in said
    assert "Leave `jitter` at its default" in said
    (said,) = looks([float("nan")] * (RUNAWAY_LOOKS + 3))
    assert "the penalty is nan and stays so" in said
    assert "at the memory of task 1, 3." in said


def test_a_penalty_without_a_gradient_is_not_training():
    watch = RunawayWatch(lambda: 2.0, lambda: [1, 3], WAY_OUT)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(BETWEEN_LOOKS * (RUNAWAY_LOOKS + 1)):
            watch.look(torch.tensor(1e9))


def blobs(centre):
    y = torch.arange(200) % 2
    noise = torch.randn(200, 2, generator=torch.Generator().manual_seed(int(centre)))
    return noise * 0.3 + torch.stack([centre + (2 * y - 1), torch.where(y == 1, -centre, centre)], 1), y


def learn_two(**options):
    """SGD with momentum, as a user would set it: what is said."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
    reg = FROMP(model, Categorical(), memory_size=100, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for centre in (0.0, 2.0):
            x, y = blobs(centre)
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            for _ in range(BETWEEN_LOOKS * (RUNAWAY_LOOKS + 1)):
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) + reg.penalty()).backward()
                optimizer.step()
            reg.end_task((x, y))
    return [w for w in said if "run away" in str(w.message)]


def test_momentum_and_a_stiff_penalty():
    (warning,) = learn_two(jitter=1e-5)
    assert issubclass(warning.category, FrompWarning)
    assert learn_two() == []
