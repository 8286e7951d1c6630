"""What is promised of FROMP is promised of MixedPast and Composed: growth, keywords, owning, moving, saying."""

import copy
from types import SimpleNamespace

import pytest
import torch
from oracles.small import HEADS, data, move, network
from torch import nn

from fromp import (
    Categorical,
    CheckpointError,
    Composed,
    DataError,
    DataWide,
    FrompError,
    Gaussian,
    Hold,
    Labels,
    Logits,
    MixedPast,
    PresentBatch,
    Remembered,
    memorability,
)
from fromp.foundation.errors import FrompWarning

OLD, NEW = 6, 8


def mixed(model, **settings):
    return MixedPast(model, Categorical(), 4, 0.3, 0.5, **settings)


def all_remembered(model, **settings):
    """A penalty that draws nothing, so that two of them can be compared."""
    holds = [Hold(Remembered(), Logits(), 0.7), Hold(PresentBatch(), Logits(), 0.2)]
    return Composed(model, Categorical(), holds, 4, weight_strength=0.5, **settings)


def taught(make=mixed, tasks=2, heads=HEADS, **settings):
    reg = make(network(), **settings)
    for task in range(tasks):
        move(reg.model, 0.2)
        reg.end_task(data(task), head=heads[task])
    return reg


def grown(model):
    """The model with a larger last layer, of which the first rows are those that it had."""
    larger = nn.Linear(5, NEW).double()
    with torch.no_grad():
        larger.weight[:OLD], larger.bias[:OLD] = model[2].weight, model[2].bias
    model[2] = larger
    return model


def test_it_says_what_it_holds():
    reg = taught(tasks=0)
    assert repr(reg).startswith(
        "MixedPast(Sequential, Categorical, strength=0.3, present_strength=0.5, memory_size=4: 0"
    )
    reg = taught()
    assert ": 2 tasks, 8 points, 2 heads, " in repr(reg)
    move(reg.model, 0.1)
    rows = reg.inspect().rows
    assert [(row["points"], row["head"]) for row in rows] == [(4, [0, 1]), (4, [2, 3])]
    assert min(row["drift"] for row in rows) > 0
    assert repr(taught(all_remembered)).startswith("Composed(Sequential, Categorical, 2 holds, ")


@pytest.mark.parametrize("make", [mixed, all_remembered])
def test_at_unchanged_weights_the_penalty_is_zero_and_it_is_checked(make):
    reg = taught(make)
    assert reg.penalty(data(2)[0]).item() == 0
    reg = taught(make)
    reg.model[1] = nn.ReLU()  # no weight has changed, and the function has
    with pytest.raises(DataError, match="no weight has"):
        reg.penalty(data(2)[0])


@pytest.mark.parametrize("head", [None, [6, 7]], ids=["shared", "its own outputs"])
@pytest.mark.parametrize("stop", [False, True], ids=["one process", "saved between"])
def test_a_head_that_grows_equals_one_with_all_outputs(head, stop, tmp_path):
    """Until the next task's end, when a shared head holds the new outputs too."""
    x, y = data(2)
    growing, whole = network(), grown(network())
    regs = [all_remembered(growing), all_remembered(whole)]
    regs[0].end_task(data(0))
    regs[1].end_task(data(0), head=range(OLD))
    growing[2] = copy.deepcopy(whole[2])
    if stop:
        old = copy.deepcopy(regs[0]._teacher)  # the network as it is saved
        regs[0]._model = regs[0]._network = old
        regs[0].save(tmp_path)
        regs[0] = Composed.load(tmp_path, growing, regs[0].holds)
    for reg in regs:
        assert reg.penalty(x, head).item() == pytest.approx(0, abs=1e-18)
        move(reg.model, 0.1)
    found = [reg.penalty(x, head if head else range(OLD)) for reg in regs]
    grads = [torch.autograd.grad(p, list(reg.model.parameters())) for p, reg in zip(found, regs, strict=True)]
    torch.testing.assert_close(found[0], found[1])
    assert found[0].item() > 0
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)
    for reg in regs:
        reg.end_task((x, y), head=head)
    assert [memory.head for memory in regs[0].memories] == [tuple(range(OLD)) if head else None, head and (6, 7)]
    if head:
        assert regs[0].precision["2.weight"].shape == (NEW, 5)
        for name, value in regs[1].precision.items():
            torch.testing.assert_close(regs[0].precision[name], value)
        assert regs[0].penalty(x).item() == 0


def test_labels_of_the_past_are_told_from_classes_that_came_since():
    reg = Composed(network(), Categorical(), [Hold(Remembered(), Labels(), 1.0)], 4)
    reg.end_task(data(0))
    grown(reg.model)
    memory = reg.memories[0]
    nll = reg.likelihood.nll(reg.model(memory.inputs), memory.labels).mean()
    torch.testing.assert_close(reg.penalty(), nll)


def test_rows_that_were_not_copied_are_named():
    reg = taught(tasks=1)
    reg.model[2] = nn.Linear(5, NEW).double()
    with pytest.raises(DataError, match=r"'2\.weight' has grown, and its first 6 rows are not those"):
        reg.penalty()


class Heads(nn.Module):
    """One module per head, chosen by an argument."""

    def __init__(self, names=("a", "b")):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(3, 5)
        self.heads = nn.ModuleDict({name: nn.Linear(5, 2 + k) for k, name in enumerate(names)})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x).tanh())


def test_heads_that_the_model_chooses_by_an_argument():
    model = Heads().double()
    reg = all_remembered(model)
    for task, name in enumerate(("a", "b")):
        x, y = data(task)
        reg.end_task(x, y, task=name)
    model.heads["c"] = nn.Linear(5, 2).double()  # a new entry needs nothing
    x = data(2)[0]
    assert reg.penalty(x, task="c").item() == 0
    old = copy.deepcopy(model)
    move(model, 0.1)
    held, count = 0.0, {"c": 2, "a": 1}
    for name, memory in zip("ab", reg.memories, strict=True):
        z = memory.inputs["x"]
        held = held + 0.7 * (model(z, name) - old(z, name)).square().sum(1).mean()
    now, then = (torch.cat([w.flatten() for n, w in m.named_parameters() if n in reg.precision]) for m in (model, old))
    fisher = torch.cat([reg.precision[n].flatten() for n, _ in model.named_parameters() if n in reg.precision])
    held = held + 0.5 / 2 * (fisher * (now - then).square()).sum()
    for present, others in count.items():  # at the minibatch, one of the resting heads at a time
        resting = [name for name in "ab" if name != present]
        expected = {
            round((held + 0.2 * others * (model(x, n) - old(x, n)).square().sum(1).mean()).item(), 9) for n in resting
        }
        assert {round(reg.penalty(x, task=present).item(), 9) for _ in range(20)} == expected
        found = {"x": x, "task": present}
        assert round(reg.penalty(found).item(), 9) in expected
    with pytest.raises(DataError, match="penalty nor the model's forward takes 'head_name'"):
        reg.penalty(x, head_name="a")


def test_what_is_forgotten_is_as_if_it_had_never_been_kept():
    reg = taught(all_remembered)
    place, left = 1, [0, 2]
    gone = reg.memories[place].inputs[[1, 3]]
    kept = [memory.inputs.clone() for memory in reg.memories]
    reg.forget(place, examples=[1, 3])
    move(reg.model, 0.1)
    assert [len(memory) for memory in reg.memories] == [4, 2]
    for pool in reg._past.pools:
        assert not (pool.inputs[:, None] == gone[None]).all(-1).any()
    kept[place] = kept[place][left]
    slow = 0.7 * 2 * torch.cat(
        [
            (reg.model(z)[:, list(head)] - reg._teacher(z)[:, list(head)]).square().sum(1)
            for z, head in zip(kept, HEADS, strict=False)
        ]
    ).mean()  # fmt: skip
    torch.testing.assert_close(reg.penalty().item() - reg._parabola().item(), slow.item())
    reg.forget(0)
    assert [memory.head for memory in reg.memories] == [HEADS[1]]
    reg.forget(0)
    assert reg.penalty().item() == 0
    assert reg.state_dict()["teacher"] is None
    for what, says in (({"task": 3}, "no task 3"), ({"task": 0, "examples": [9]}, "no example 9")):
        reg = taught()
        before = reg.memories
        with pytest.raises(FrompError, match=says):
            reg.forget(**what)
        assert reg.memories is before


def test_points_that_a_metric_ties_together_go_together():
    reg = Composed(network(), Categorical(), [Hold(Remembered(), DataWide(), 1.0)], 4)
    for task in range(2):
        reg.end_task(data(task), head=HEADS[task])
    with pytest.raises(FrompError, match="forget the whole task"):
        reg.forget(0, examples=[1])
    assert [len(memory) for memory in reg.memories] == [4, 4]
    reg.forget(0)
    move(reg.model, 0.1)
    assert len(reg.memories) == 1
    assert reg.penalty().item() > 0


def test_a_budget_over_all_tasks():
    reg = mixed(network(), total_memory=6)
    for task in range(3):
        reg.end_task(data(task), head=HEADS[task])
    assert [len(memory) for memory in reg.memories] == [2, 2, 2]
    assert reg.penalty(data(0)[0]).item() == 0


def test_two_sites_are_merged(tmp_path):
    start = taught(all_remembered, 1, score=memorability)
    start.save(tmp_path)
    sites = []
    for task in (1, 2):
        site = Composed.load(tmp_path, copy.deepcopy(start.model), start.holds, score=memorability)
        site.end_task(data(task), head=HEADS[task])
        sites.append(site)
    here, there = sites
    both = Composed.load(tmp_path, copy.deepcopy(start.model), start.holds, score=memorability)
    for task in (1, 2):
        both.end_task(data(task), head=HEADS[task])
    here.merge(there, start=start)
    assert [memory.head for memory in here.memories] == list(HEADS)
    for one, other in zip(here.memories, both.memories, strict=True):
        assert torch.equal(one.inputs, other.inputs)
    for name, value in both.precision.items():
        torch.testing.assert_close(here.precision[name], value)
    for reg in (here, both):
        move(reg.model, 0.1)
    torch.testing.assert_close(here.penalty(data(1)[0]), both.penalty(data(1)[0]))
    with pytest.raises(FrompError, match="MixedPast cannot be merged into Composed"):
        here.merge(taught())


def test_it_goes_where_the_model_goes():
    reg = taught(all_remembered)
    x = data(2)[0]
    move(reg.model, 0.1)
    before = reg.penalty(x).item()
    reg.model.float()
    with pytest.raises(DataError, match=r"reg\.to\('cpu', torch\.float32\)"):
        reg.penalty(x.float())
    reg.to(torch.float32)
    assert reg.penalty(x.float()).item() == pytest.approx(before, rel=1e-4)
    assert {value.dtype for value in reg.precision.values()} == {torch.float32}
    with pytest.raises(FrompError, match="no device of this machine"):
        reg.to("nowhere")


def test_a_wrapped_and_renamed_model_loads(tmp_path):
    reg = taught()
    reg.save(tmp_path)
    move(reg.model, 0.1)
    renamed = nn.Sequential()
    renamed.add_module("net", copy.deepcopy(reg.model))
    with pytest.raises(CheckpointError, match=r"'0\.weight'"):
        MixedPast.load(tmp_path, renamed)
    again = MixedPast.load(tmp_path, renamed, prefix="net.")
    x = data(2)[0]
    torch.testing.assert_close(again.penalty(x), reg.penalty(x))
    compiled = MixedPast.load(tmp_path, torch.compile(copy.deepcopy(reg.model), backend="eager"))
    assert compiled.penalty(x).item() > 0


def test_outputs_that_a_function_picks(tmp_path):
    class Returning(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return SimpleNamespace(scores=self.net(x))

    def scores(returned):
        return returned.scores

    reg, plain = all_remembered(Returning(), output=scores), all_remembered(network())
    for one in (reg, plain):
        one.end_task(data(0), head=[0, 1])
    reg.save(tmp_path)
    for one in (reg, plain):
        move(one.model, 0.1)
    x = data(2)[0]
    torch.testing.assert_close(reg.penalty(x), plain.penalty(x))
    with pytest.raises(CheckpointError, match=r"your own; give it again: load\(..., output=...\)"):
        Composed.load(tmp_path, reg.model, reg.holds)
    again = Composed.load(tmp_path, reg.model, reg.holds, output=scores)
    torch.testing.assert_close(again.penalty(x), reg.penalty(x))


def test_what_a_frozen_trunk_makes_of_an_input_is_kept(tmp_path):
    trunk = nn.Linear(3, 4).double().requires_grad_(False)
    model = nn.Linear(4, 6).double()
    reg = all_remembered(model, keep=trunk)
    reg.end_task(data(0), head=[0, 1])
    assert reg.memories[0].inputs.shape == (4, 4)
    move(model, 0.1)
    assert reg.penalty(data(1)[0]).item() > 0
    reg.save(tmp_path)
    with pytest.raises(CheckpointError, match="keep=trunk"):
        Composed.load(tmp_path, model, reg.holds)


def test_a_penalty_that_runs_away_says_so():
    reg = MixedPast(network(), Categorical(), 4, 1.0, 0.0, metric=Logits())
    reg.end_task(data(0))
    move(reg.model, 100.0)
    for _ in range(47):
        reg.penalty()
    with pytest.warns(FrompWarning, match=r"has run away.*metric=Divergence\(2.0\)"):
        reg.penalty()


def test_the_minibatch_may_be_an_array():
    reg = taught(all_remembered)
    move(reg.model, 0.1)
    x = data(2)[0]
    assert reg.penalty(x.numpy()).item() == reg.penalty(x).item()


def test_its_memory_tells_novel_inputs():
    torch.manual_seed(0)
    x = torch.rand(60, 1) * 2 - 1
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    reg = MixedPast(model, Gaussian(noise_precision=100.0), 30)
    reg.end_task(x, x[:, 0])
    inside, outside = reg.uncertainty().novelty(torch.tensor([[0.2], [5.0]]))
    assert inside < outside
