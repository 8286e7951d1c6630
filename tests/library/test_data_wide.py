"""SFR's metric against its slow twin, in a composed regulariser."""

import copy

import pytest
import torch
from oracles import naive
from oracles.small import HEADS, data, move, network

from fromp import Categorical, CheckpointError, Composed, DataWide, FrompError, Hold, Logits, Mixtures, Remembered


def regulariser(jitter=1e-3, memory=4, model=None):
    holds = [Hold(Remembered(), Logits(), 0.3), Hold(Remembered(), DataWide(jitter), 0.7)]
    return Composed(model or network(), Categorical(), holds, memory)


def deviations(reg, teacher, task):
    memory = reg.memories[task]
    columns = list(range(6)) if memory.head is None else list(memory.head)
    with torch.no_grad():
        return (reg.model(memory.inputs) - teacher(memory.inputs))[:, columns]


@pytest.mark.parametrize("heads", [HEADS, [None] * 3], ids=["a head per task", "one head"])
def test_it_is_its_slow_twin_with_its_gradient(heads):
    reg, at = regulariser(), []
    for task in range(2):
        move(reg.model, 0.2)
        reg.end_task(data(task), head=heads[task])
        at.append(copy.deepcopy(reg.model))  # the metric is fixed here, and not taken anew at the next task's end
    move(reg.model, 0.3)

    def slow():
        total = 0.0
        for task, memory in enumerate(reg.memories):
            d = deviations(reg, at[1], task)
            total += 0.7 * naive.data_wide(at[task], memory.inputs, *data(task), reg.likelihood, d, 1e-3, heads[task])
            total += 0.3 * d.square().sum() / 4
        return total

    torch.testing.assert_close(reg.penalty().detach(), slow(), rtol=1e-8, atol=0)
    weight = reg.model[0].bias
    (gradient,) = torch.autograd.grad(reg.penalty(), weight)
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weight[1] += step
        values.append(slow())
    assert gradient[1].item() == pytest.approx(float(values[0] - values[1]) / 2e-5, rel=1e-5)


def test_where_all_data_are_remembered_nothing_is_interpolated():
    """It is then the mean of sum_c Lambda_cc d_c^2, as the kernel cancels its inverse."""
    reg = Composed(network(), Categorical(), [Hold(Remembered(), DataWide(1e-13), 1.0)], 12)
    reg.end_task(data(0))
    old = copy.deepcopy(reg.model)
    move(reg.model, 0.01)
    x = reg.memories[0].inputs
    with torch.no_grad():
        d, precision = reg.model(x) - old(x), reg.likelihood.hessian(old(x)).diagonal(dim1=-2, dim2=-1)
    assert reg.penalty().item() == pytest.approx(float((precision * d.square()).sum() / 12), rel=1e-4)


def test_a_state_brings_back_what_was_fixed():
    reg = regulariser()
    for task in range(2):
        move(reg.model, 0.2)
        reg.end_task(data(task), head=HEADS[task])
    again = regulariser(model=copy.deepcopy(reg.model))
    again.load_state_dict(copy.deepcopy(reg.state_dict()))
    for one in (reg, again):
        move(one.model, 0.3)
    assert reg.penalty().item() == again.penalty().item() > 0
    other = Composed(copy.deepcopy(reg.model), Categorical(), [Hold(Remembered(), Logits(), 0.3)], 4)
    with pytest.raises(CheckpointError, match="with other metrics"):
        other.load_state_dict(reg.state_dict())
    damaged = copy.deepcopy(reg.state_dict())
    damaged["fixed"][1][1] = damaged["fixed"][1][1][:, :3]
    with pytest.raises(CheckpointError, match="'fixed' has the shape"):
        again.load_state_dict(damaged)


def test_points_that_are_not_all_there_cannot_be_tied():
    for context in (Remembered(3), Mixtures(4)):
        with pytest.raises(FrompError, match=r"hold it at Remembered\(\)"):
            Hold(context, DataWide(), 1.0)
    with pytest.raises(FrompError, match="jitter=0"):
        DataWide(0)
