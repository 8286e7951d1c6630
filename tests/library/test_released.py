"""The contract: the gradient of `cross_entropy + penalty()` is tau times the released code's."""

import pytest
import torch
from released_gradients import CASES, FILE, JITTER, PAST, PRIOR_PRECISION, TAU, at_task_end, task_data
from safetensors.torch import load_file

from fromp import FROMP, Categorical


@pytest.mark.parametrize("name", CASES)
def test_gradient_equals_the_released_codes(name):
    build, shape, heads = CASES[name]
    model = build()
    reg = FROMP(model, Categorical(), tau=TAU, memory_size=8, prior_precision=PRIOR_PRECISION, jitter=JITTER)
    for s in range(PAST):
        at_task_end(model, s)
        reg.end_task(task_data(shape, s, len(heads[s] or range(4))), head=heads[s])
    at_task_end(model, PAST)
    x, y = task_data(shape, PAST, len(heads[PAST] or range(4)))
    f = model(x) if heads[PAST] is None else model(x)[:, heads[PAST]]
    loss = torch.nn.functional.cross_entropy(f, y) + reg.penalty()
    loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    expected = TAU * load_file(FILE)[name]
    assert float((gradient - expected).norm() / expected.norm()) < 1e-6
