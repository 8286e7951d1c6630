"""A model with one head per task, chosen by an argument of its forward that is kept with the task's memory."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fromp import FROMP, Categorical, CheckpointError, FrompError
from fromp.derivatives.keywords import with_keywords
from fromp.foundation import inputs
from fromp.foundation.errors import FrompWarning

OUTPUTS = {"a": 2, "b": 3}


class Heads(nn.Module):
    """A trunk and a head for each task, as people write it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(5, 6)
        self.heads = nn.ModuleDict({name: nn.Linear(6, n) for name, n in OUTPUTS.items()})

    def forward(self, x, task="a", *, scale=1.0):
        return self.heads[task](torch.tanh(self.trunk(x))) * scale


class Shared(nn.Module):
    """The same function with all outputs in one layer."""

    def __init__(self):
        super().__init__()
        heads = Heads()
        self.trunk, self.out = heads.trunk, nn.Linear(6, 5)
        for name in ("weight", "bias"):
            joined = torch.cat([getattr(head, name).detach() for head in heads.heads.values()])
            setattr(self.out, name, nn.Parameter(joined))

    def forward(self, x):
        return self.out(torch.tanh(self.trunk(x)))


def task(name, seed=1):
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(seed)).double()
    return x, torch.arange(30) % OUTPUTS[name]


def step(model, reg):
    """Penalty and gradients at moved weights, in the order of `Shared`."""
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05
    reg.penalty().backward()
    grads = [p.grad for p in model.parameters()]
    if isinstance(model, Heads):
        trunk, (wa, ba, wb, bb) = grads[:2], grads[2:]
        grads = [*trunk, torch.cat([wa, wb]), torch.cat([ba, bb])]
    return [reg.penalty().detach(), *grads]


FORMS = {
    "keyword": lambda reg, name: reg.end_task(*task(name), task=name),
    "dict": lambda reg, name: reg.end_task({"x": task(name)[0], "task": name, "labels": task(name)[1]}),
    "tuple": lambda reg, name: reg.end_task(((task(name)[0], name), task(name)[1])),
    "loader": lambda reg, name: reg.end_task(DataLoader(TensorDataset(*task(name)), 4), task=name),
}


@pytest.mark.parametrize("end_task", FORMS.values(), ids=FORMS)
def test_heads_of_their_own_equal_outputs_of_one_layer(end_task, tmp_path):
    heads, shared = Heads().double(), Shared().double()
    regs = [FROMP(model, Categorical(), memory_size=8, jitter=1e-3) for model in (heads, shared)]
    for name, head in (("a", [0, 1]), ("b", [2, 3, 4])):
        end_task(regs[0], name)
        regs[1].end_task(*task(name), head=head)
    assert regs[0].penalty().item() == 0
    regs[0].save(tmp_path)
    for got, expected in zip(step(heads, regs[0]), step(shared, regs[1]), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    again = FROMP.load(tmp_path, heads)
    with pytest.warns(FrompWarning, match="weights are not those"):
        again.penalty()
    assert again.penalty().item() == pytest.approx(regs[1].penalty().item(), rel=1e-9)
    x = task("a", 7)[0]
    for name, head in (("a", [0, 1]), ("b", [2, 3, 4])):
        for got, expected in zip(again.predict(x, task=name), regs[1].predict(x, head=head), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    assert regs[0].drift() == pytest.approx(regs[1].drift(), rel=1e-9)


def test_the_task_is_kept_with_its_memory_and_saved_as_text(tmp_path):
    reg = FROMP(Heads(), Categorical(), memory_size=8)
    x, y = task("b")
    reg.end_task(x.float(), y, task="b", scale=np.float32(0.5))
    assert {key: reg.memories[0].inputs[key] for key in ("task", "scale")} == {"task": "b", "scale": 0.5}
    assert reg.memories[0].inputs["x"].shape == (8, 5)
    reg.save(tmp_path)
    saved = json.loads(next(tmp_path.glob("state-*.json")).read_text())
    assert saved["tasks"][0]["memory"]["inputs"]["task"] == "b"


def test_a_head_that_is_not_used_has_the_prior_alone():
    reg = FROMP(Heads(), Categorical(), memory_size=8, prior_precision=0.25)
    reg.end_task(task("a")[0].float(), task("a")[1], task="a")
    assert bool((reg.precision["heads.b.weight"] == 0.25).all())
    assert bool((reg.precision["heads.a.weight"] > 0.25).any())


def test_a_new_head_can_be_added_later():
    model = Heads()
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task(task("a")[0].float(), task("a")[1], task="a")
    model.heads["c"] = nn.Linear(6, 4)
    assert reg.penalty().item() == 0
    reg.end_task(task("a")[0].float(), torch.arange(30) % 4, task="c")
    assert [len(anchor.mean) for anchor in reg._prior.anchors] == [2, 4]
    assert reg.precision["heads.c.weight"].shape == (4, 6)


class Nameless(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Heads()

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


X, Y = task("a")
X = X.float()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda reg: reg.end_task(X, Y, tsk="a"), r"neither end_task nor .*'tsk'; Heads\.forward takes x, task, scale"),
        (lambda reg: reg.end_task((X, Y), haed=[0]), r"neither end_task nor .*'haed'"),
        (lambda reg: reg.predict(X, tsk="a"), r"neither predict nor .*'tsk'"),
        (lambda reg: reg.end_task(X, Y, task=torch.zeros(30)), r"task is a tensor of shape \(30,\); give a number"),
        (lambda reg: reg.end_task({"x": X, "task": "a", "labels": Y}, task="a"), "task was given twice"),
        (lambda reg: reg.end_task(((X, "a"), Y), task="a"), "task was given twice"),
        (lambda reg: reg.end_task((("red", "green"), Y[:2])), "hold no tensor in a tuple of 2"),
        (lambda reg: reg.end_task((({"x": X}, ["a", "b"]), Y)), "no tensor in a tuple of 2"),
        (lambda reg: reg.end_task([({"x": x, "task": "a"}, 1) for x in X]), "no tensor in a tuple of 2"),
    ],
)  # fmt: skip
def test_what_is_refused(call, message):
    reg = FROMP(Heads(), Categorical(), memory_size=8)
    with pytest.raises(FrompError, match=message):
        call(reg)
    assert not reg.memories
    assert not reg.precision


def test_inputs_without_a_name_go_into_a_dict():
    reg = FROMP(Nameless(), Categorical(), memory_size=8)
    with pytest.raises(FrompError, match=r"has no name for its inputs \('args'\).*beside task; give them in a dict"):
        reg.end_task(X, Y, task="a")
    reg.end_task({"x": X, "labels": Y}, task="a")
    assert reg.memories[0].inputs["task"] == "a"
    assert with_keywords(reg.model, X, {}) is X


def test_a_state_with_an_unknown_task_is_refused():
    reg = FROMP(Heads(), Categorical(), memory_size=8)
    reg.end_task(X, Y, task="a")
    state = reg.state_dict()
    state["tasks"][0]["memory"]["inputs"]["task"] = "z"
    with pytest.raises(CheckpointError, match=r"cannot take the saved inputs \('z'\)"):
        reg.load_state_dict(state)


def test_constants_are_part_of_the_structure():
    x = {"b": torch.arange(4), "a": (torch.ones(4, 2), "text", None)}
    assert inputs.num_examples(x) == 4
    assert inputs.take(x, slice(0, 2))["a"][1:] == ("text", None)
    joined = inputs.concatenate([x, x])
    assert (inputs.num_examples(joined), joined["a"][1]) == (8, "text")
    one, other = ({"x": x["b"], "k": k} for k in (1, True))
    assert inputs.signature(one) != inputs.signature(other)
    again = inputs.replace(x, inputs.tensors(x))
    assert again["b"] is x["b"]
    assert again["a"][0] is x["a"][0]
