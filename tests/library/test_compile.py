"""torch.compile of a penalty: inductor gives the gradient that there is without it."""

import pytest
import torch
from torch import nn

from fromp import FROMP, Categorical


@pytest.mark.slow
def test_a_compiled_penalty_has_the_same_gradient_without_graph_breaks():
    """With 100 points per task: at 40 the gradient of the custom function came out right."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 10))
    reg = FROMP(model, Categorical(), 1.0, 100, 1e-5, 1e-5)
    for task in range(4):
        reg.end_task((torch.randn(300, 20) + task, torch.arange(300) % 10))
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.02 * torch.randn(weight.shape)

    def gradient(penalty):
        found = torch.autograd.grad(penalty(), list(model.parameters()))
        return torch.cat([g.flatten() for g in found])

    torch._dynamo.reset()
    plain, compiled = gradient(reg.penalty), gradient(torch.compile(reg.penalty, fullgraph=True))
    assert (compiled - plain).norm() < 1e-3 * plain.norm()
