"""At unchanged weights the penalty is zero, whatever else has changed; what makes it otherwise is named."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fromp import FROMP, Categorical, FrompError
from fromp.foundation.errors import FrompWarning


class ByAttribute(nn.Module):
    """One head per task, chosen by `model.task = k`."""

    def __init__(self, tasks=2, sizes=(3, 3)):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(5, 6)
        self.heads = nn.ModuleList(nn.Linear(6, n) for n in sizes)
        self.task, self.temperature, self.calls = 0, 1.0, 0

    def forward(self, x):
        self.calls += 1
        return self.heads[self.task](torch.tanh(self.trunk(x))) / self.temperature


def task(seed=1):
    return torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)), torch.arange(40) % 3


def taught(model=None, **options):
    model = model or ByAttribute(**options)
    reg = FROMP(model, Categorical(), memory_size=6)
    reg.end_task(task())
    return model, reg


def move(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.01


def test_an_attribute_that_chooses_the_head_is_named_before_the_first_step():
    model, reg = taught()
    assert reg.penalty().item() == 0
    _, reg = taught(model)
    model.task = 1
    message = r"memory of task 0 has changed by .*no weight has: model\.task has changed from 0 to 1.*task=0\)"
    with pytest.raises(FrompError, match=message):
        reg.penalty()


def test_heads_of_other_sizes_are_explained_too():
    model, reg = taught(sizes=(3, 2))
    model.task = 1
    with pytest.raises(FrompError, match=r"by inf.*model\.task has changed from 0 to 1"):
        reg.penalty()


def test_an_attribute_is_named_at_the_end_of_the_task_if_no_penalty_was_computed():
    model, reg = taught()
    move(model)
    model.task = 1
    before = reg.state_dict()["precision"]
    with pytest.raises(FrompError, match=r"model\.task has changed from 0 to 1"):
        reg.end_task(task(2))
    assert (model.task, len(reg.memories)) == (1, 1)
    assert all(torch.equal(before[name], value) for name, value in reg.precision.items())


def test_attributes_that_change_nothing_are_of_no_interest():
    model, reg = taught()
    model.comment, model.calls = "second task", 0
    move(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reg.penalty()
        reg.end_task(task(2))
    assert len(reg.memories) == 2


def test_something_without_a_name_is_said_as_well():
    settings = {"scale": 1.0}

    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * settings["scale"]

    torch.manual_seed(0)
    _, reg = taught(Scaled(5, 3))
    settings["scale"] = 2.0
    with pytest.raises(FrompError, match="depends on something beside its weights and inputs, such as an attribute"):
        reg.penalty()


def test_after_loading(tmp_path):
    model, reg = taught()
    reg.save(tmp_path)
    assert FROMP.load(tmp_path, model).penalty().item() == 0
    model.task = 1
    with pytest.raises(FrompError, match="depends on something beside its weights and inputs"):
        FROMP.load(tmp_path, model).penalty()


def test_saved_while_a_task_is_learned(tmp_path):
    """The weights are then those of the file, and not those at which the means were fixed."""
    model, reg = taught()
    move(model)
    reg.save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert FROMP.load(tmp_path, model).penalty().item() == reg.penalty().item() > 0


def test_a_model_that_draws_at_random_is_said_once():
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(F.dropout(x, 0.5))

    torch.manual_seed(0)
    _, reg = taught(Noisy(5, 3))
    with pytest.warns(FrompWarning, match=r"draws at random in evaluation mode.*self\.training"):
        reg.penalty()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reg.penalty()


def test_running_statistics_may_move_before_the_first_penalty():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    _, reg = taught(model)
    model.train()(task(2)[0] + 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reg.penalty().item() > 0


def test_it_is_looked_at_once():
    model, reg = taught()
    reg.penalty()
    model.calls = 0
    reg.penalty()
    assert model.calls == 1


def test_nothing_waits_for_values_after_the_first_penalty(monkeypatch):
    """On a GPU a value that is read is a wait for all that was asked for before it."""
    model, reg = taught()
    reg.penalty()
    move(model)
    read = []
    for name in ("item", "tolist", "__float__", "__bool__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: read.append(name))
    for _ in range(5):
        reg.penalty()
    assert not read
