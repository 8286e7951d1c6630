"""MixedPast in a user's loop, and against the slow twins of what it adds up."""

import copy
import warnings
from functools import partial

import pytest
import torch
from oracles import naive
from oracles.small import HEADS, data, move, network
from torch import nn
from torch.nn.functional import cross_entropy

from fromp import (
    FROMP,
    Categorical,
    CheckpointError,
    Composed,
    DataError,
    Divergence,
    FrompError,
    Hold,
    Labels,
    Logits,
    Means,
    MixedPast,
    Mixtures,
    OutputHessian,
    PresentBatch,
    Regulariser,
    Remembered,
    Unlabelled,
)
from fromp.contexts.context import Present
from fromp.foundation.errors import FrompWarning
from fromp.protocol import penalty_at

METRICS = {
    "logits": (Logits(), naive.logit_distance),
    "means": (Means(), naive.mean_distance),
    "output hessian": (OutputHessian(), naive.hessian_distance),
    "divergence": (Divergence(2.0), partial(naive.class_divergence, temperature=2.0)),
}


def after(tasks, reg, heads=HEADS):
    """The regulariser after some tasks, with its network moved in between and since; and the one it holds to."""
    for task in range(tasks):
        move(reg.model, 0.2)
        reg.end_task(data(task), head=heads[task])
    old = copy.deepcopy(reg.model)
    move(reg.model, 0.3)
    return reg, old


def drawn(reg, context, x=None, head=None):
    """What a context is going to draw next."""
    generator = torch.Generator()
    generator.set_state(reg._generator.get_state())
    return list(context.draw(reg._past, Present(x, head), generator))


def heads_of(points, outputs=6):
    every = [[list(range(outputs))]] * len(points.inputs)
    return every if points.columns is None else points.columns.tolist()


def gradient(loss, model):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def agree(reg, penalty, slow):
    torch.testing.assert_close(penalty, slow, rtol=1e-10, atol=0)
    torch.testing.assert_close(gradient(penalty, reg.model), gradient(slow, reg.model), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("heads", [HEADS, [None] * 3], ids=["a head per task", "one head"])
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("context", [Mixtures(7), Remembered(5), Remembered(), PresentBatch()], ids=repr)
def test_each_context_under_each_metric_is_its_slow_twin(context, name, heads):
    metric, distance = METRICS[name]
    reg, old = after(2, Composed(network(), Categorical(), [Hold(context, metric, 0.7)], 4), heads)
    x = data(2)[0]
    (points,) = drawn(reg, context, x) or [None]
    if points is None:  # one head, which is being trained
        assert reg.penalty(x).item() == 0
        return
    past = 2  # tasks, and past heads at the present minibatch
    slow = 0.7 * past * naive.held(reg.model, old, points.inputs, heads_of(points), partial(distance, reg.likelihood))
    agree(reg, reg.penalty(x), slow)


def test_the_preset_is_the_sum_of_its_terms():
    terms = {"label_strength": 0.7, "weight_strength": 0.9, "points_per_step": 6, "metric": Logits()}
    reg, old = after(2, MixedPast(network(), Categorical(), 4, 0.3, 0.5, **terms))
    fisher, x = 0.0, data(2)[0]
    at = copy.deepcopy(network())
    for task in range(2):  # the network at which each task ended
        move(at, 0.2)
        rest = [i for i in range(12) if i not in reg.memories[task].indices]  # the parabola is of what is not kept
        past, y = (part[rest] for part in data(task))
        fisher = fisher + naive.ggn_diagonal(at, past, y, len(rest), reg.likelihood, HEADS[task]) / 12
    now, then = (torch.cat([w.flatten() for w in m.parameters()]) for m in (reg.model, old))
    slow = 0.9 / 2 * (fisher * (now - then.detach()).square()).sum()
    generator = torch.Generator()
    generator.set_state(reg._generator.get_state())
    for strength, context in ((0.3, Mixtures(6)), (0.5, PresentBatch()), (0.7, Remembered(3))):
        (points,) = context.draw(reg._past, Present(x, None), generator)
        if strength == 0.7:
            ((_, y),) = points.labels
            nll = [
                -reg.model(points.inputs[i : i + 1])[0, list(heads[0])].log_softmax(0)[y[i]]
                for i, heads in enumerate(heads_of(points))
            ]
            slow = slow + 0.7 * 2 * sum(nll) / 3
        else:
            distance = partial(naive.logit_distance, reg.likelihood)
            slow = slow + strength * 2 * naive.held(reg.model, old, points.inputs, heads_of(points), distance)
    agree(reg, reg.penalty(x), slow)


def test_three_lines_in_a_loop_hold_the_past():
    def learn(strength):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        reg = MixedPast(model, Categorical(), 12, strength, 10 * strength)
        assert isinstance(reg, Regulariser)
        assert reg.penalty().item() == 0
        for task in range(2):
            x, y = data(task)
            for _ in range(100):
                loss = cross_entropy(model(x)[:, list(HEADS[task])], y) + reg.penalty(x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            reg.end_task((x, y), head=HEADS[task])
            if task == 0:
                before = model(x)[:, list(HEADS[0])].softmax(1).detach()
        return (model(data(0)[0])[:, list(HEADS[0])].softmax(1) - before).square().mean().item()

    assert learn(5.0) < 0.1 * learn(0.0)


@pytest.mark.parametrize("heads", [HEADS, [(0, 1), (2, 3), (0, 1)], [None] * 3], ids=["own", "one again", "shared"])
def test_a_mixture_lies_between_two_points_with_the_same_head(heads):
    reg, _ = after(3, MixedPast(network(), Categorical(), 4), heads)
    (points,) = drawn(reg, Mixtures(301))
    tasks, others = [], []
    for k, (z, u) in enumerate(zip(points.inputs, points.labels[1][0], strict=True)):
        found = [
            (task, other)
            for task, memory in enumerate(reg.memories)
            for other, partner in enumerate(reg.memories)
            if ((1 - u) * memory.inputs[:, None] + u * partner.inputs[None] - z).abs().sum(-1).min() < 1e-12
        ]
        ((task, other),) = found
        assert heads[task] == heads[other]
        assert heads[task] is None or [list(heads[task])] == points.columns[k].tolist()
        tasks.append(task)
        others.append(other)
    kin = [sum(head == own for head in heads) for own in heads]
    assert sorted(tasks.count(task) for task in range(3)) == [100, 100, 101]
    for task in range(3):  # each partner of its own head is as likely
        together = [other for own, other in zip(tasks, others, strict=True) if own == task]
        for other in range(3):
            share = together.count(other) / len(together)
            assert share == pytest.approx((heads[task] == heads[other]) / kin[task], abs=0.15)
    u = points.labels[1][0]
    assert u.mean().item() == pytest.approx(0.5, abs=0.06)
    assert u.std().item() == pytest.approx(12**-0.5, abs=0.03)


def test_tasks_count_alike_whatever_they_keep_and_whatever_their_inputs():
    """Memories of unequal sizes, heads of unequal widths: over many draws a task is its mean distance."""
    reg = MixedPast(network(), Categorical(), 2, 1.0, 0.0, points_per_step=3000, metric=Logits())
    for task, (size, head) in enumerate([(2, (0, 1)), (12, (2, 3, 4)), (6, (5, 0))]):
        reg.memory_size = size
        reg.end_task(data(task), head=head)
    with torch.no_grad():  # every output moves by a constant, whatever the input
        reg.model[2].bias += torch.tensor([1.0, 2.0, 0.0, 3.0, 0.0, 4.0])
    assert reg.penalty().item() == pytest.approx((1 + 4) + 9 + (16 + 1), rel=1e-8)


def test_fewer_points_than_tasks_hold_some_of_them_at_each_step():
    reg = MixedPast(network(), Categorical(), 4, 1.0, 0.0, points_per_step=1, metric=Logits())
    for task, head in enumerate([(0, 1), (2, 3, 4)]):
        reg.end_task(data(task), head=head)
    with torch.no_grad():
        reg.model[2].bias += torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 0.0])
    assert {round(reg.penalty().item(), 8) for _ in range(20)} == {2 * 1.0, 2 * 4.0}


@pytest.mark.parametrize(("trained", "held"), [(None, [(0, 1), (2, 3)]), ((4, 5), [(0, 1), (2, 3)]), ((1, 2), [])])
def test_the_present_batch_holds_heads_that_share_nothing_with_the_one_in_training(trained, held):
    reg, _ = after(2, MixedPast(network(), Categorical(), 4))
    found = drawn(reg, PresentBatch(), data(2)[0], trained)
    assert [tuple(map(tuple, points.columns[0].tolist())) for points in found] == ([tuple(held)] if held else [])


def test_without_the_present_batch_the_mixtures_hold_alone():
    reg, _ = after(2, MixedPast(network(), Categorical(), 4, seed=3))
    other, _ = after(2, MixedPast(network(), Categorical(), 4, present_strength=0.0, seed=3))
    with pytest.warns(FrompWarning, match=r"penalty\(x\)"):
        alone = reg.penalty()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert alone.item() == other.penalty().item() > 0  # whose present_strength is 0
        shared, _ = after(2, MixedPast(network(), Categorical(), 4, seed=3), [None] * 3)
        shared.penalty()


@pytest.mark.parametrize("make", [partial(MixedPast, points_per_step=6), partial(FROMP, tasks_per_step=1)])
def test_a_value_alone_leaves_the_draws_as_they_are(make):
    """One of several ranks may ask for it, and the others would then draw something else."""
    reg, _ = after(3, make(network(), Categorical(), memory_size=4))
    x, before = data(2)[0], reg.state_dict()
    with torch.no_grad():
        value = penalty_at(reg, x.clone, HEADS[2])
    for name in ("generator", "turns"):
        if name in before:
            assert torch.equal(reg.state_dict()[name], before[name])
    assert torch.isclose(penalty_at(reg, x.clone, HEADS[2]), value)
    with torch.no_grad():
        assert not torch.isclose(penalty_at(reg, x.clone, HEADS[2]), value)


def test_known_outputs_at_the_present_batch_save_their_pass():
    reg, _ = after(2, MixedPast(network(), Categorical(), 4, 0.3, 0.5, label_strength=0.2))
    x, draws, passes = data(2)[0], reg._generator.get_state(), []
    alone = reg.penalty(x)
    f = reg.model(x)
    reg._generator.set_state(draws)
    reg.model.register_forward_pre_hook(lambda model, given: passes.append(len(given[0])))
    known = reg.penalty(x, f=f)
    assert passes == [256 + 128]
    torch.testing.assert_close(known, alone, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(known, reg.model), gradient(alone, reg.model), rtol=1e-10, atol=0)


def test_a_users_own_inputs_hold_one_head_or_all():
    own = data(7, 20)[0]
    for head in (None, [2, 3]):
        context = Unlabelled(own, 9, head)
        reg, old = after(2, Composed(network(), Categorical(), [Hold(context, Logits(), 0.3)], 4))
        (points,) = drawn(reg, context)
        distance = partial(naive.logit_distance, reg.likelihood)
        slow = 0.3 * 2 * naive.held(reg.model, old, points.inputs, heads_of(points), distance)
        assert all((own == x).all(1).any() for x in points.inputs)
        agree(reg, reg.penalty(), slow)


def test_labels_of_a_mixture_are_mixed():
    hold = Hold(Mixtures(5), Labels(), 1.0)
    reg, _ = after(1, Composed(network(), Categorical(), [hold], 6), [None])
    (points,) = drawn(reg, hold.context)
    (a, y), (b, other) = points.labels
    log = reg.model(points.inputs).log_softmax(1)
    slow = sum(-a[i] * log[i, y[i]] - b[i] * log[i, other[i]] for i in range(5)) / 5
    agree(reg, reg.penalty(), slow)


def test_a_step_costs_the_same_however_many_tasks_there_are():
    class Counting(nn.Linear):
        seen = 0

        def forward(self, x):
            Counting.seen += len(x)
            return super().forward(x)

    model = nn.Sequential(Counting(3, 40)).double()
    reg = MixedPast(model, Categorical(), 4, label_strength=1.0, points_per_step=20)
    seen = []
    for task in range(9):
        reg.end_task(data(task), head=[2 * task, 2 * task + 1])
        reg.penalty(data(9)[0])  # the first one also looks whether the network gives what it gave
        Counting.seen = 0
        reg.penalty(data(9)[0])
        seen.append(Counting.seen)
    assert set(seen) == {2 * (20 + 12) + 10}  # mixtures and the minibatch twice, labelled points once


def test_a_mid_task_save_keeps_the_old_network_and_the_draws(tmp_path):
    reg, _ = after(2, MixedPast(network(), Categorical(), 4, 0.3, 0.5, label_strength=0.1, weight_strength=2.0, seed=5))
    reg.penalty()
    reg.save(tmp_path)
    other = copy.deepcopy(reg.model)
    again = MixedPast.load(tmp_path, other)
    x = data(2)[0]
    for _ in range(3):
        one, two = reg.penalty(x), again.penalty(x)
        assert torch.equal(one, two)
        assert torch.equal(gradient(one, reg.model), gradient(two, other))
    assert [getattr(again, name) for name in ("strength", "points_per_step")] == [0.3, 256]
    reg.end_task(data(2), head=HEADS[2])
    again.end_task(data(2), head=HEADS[2])
    assert torch.equal(reg.penalty(), again.penalty())


def test_a_task_that_cannot_be_mixed_changes_nothing():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    reg = MixedPast(model, Categorical(), 4)
    x, y = torch.randint(9, (12, 3)), torch.arange(12) % 2
    draws = reg._generator.get_state()
    with pytest.raises(DataError, match=r"torch.int64 cannot be mixed.*Remembered"):
        reg.end_task((x, y))
    assert reg.memories == ()
    assert torch.equal(draws, reg._generator.get_state())
    kept = Composed(model, Categorical(), [Hold(Remembered(8), Logits(), 1.0)], 4)
    kept.end_task((x, y))
    move(model, 0.1)
    assert kept.penalty().item() > 0


def test_what_cannot_be_is_said():
    with pytest.raises(FrompError, match="PresentBatch has no labels"):
        Hold(PresentBatch(), Labels(), 1.0)
    with pytest.raises(FrompError, match="strength=-1"):
        Hold(PresentBatch(), Logits(), -1)
    with pytest.raises(FrompError, match="size=0"):
        Mixtures(0)
    with pytest.raises(FrompError, match="temperature=0"):
        Divergence(0)
    with pytest.raises(FrompError, match="points_per_step=0"):
        MixedPast(network(), Categorical(), points_per_step=0)
    with pytest.raises(FrompError, match="not a likelihood"):
        MixedPast(network(), "categorical")
    reg, _ = after(1, MixedPast(network(), Categorical(), 4))
    reg.model[2] = nn.Linear(5, 4).double()
    with pytest.raises(DataError, match="the model has 4 outputs, it had 6"):
        reg.penalty()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda s: s.update(teacher=None), "wrong network"),
        (lambda s: s["teacher"].pop("2.bias"), r"'2.bias' is \[6\] in the model and missing"),
        (lambda s: s["teacher"].update({"2.bias": torch.zeros(7)}), r"'2.bias' is \[6\] in the model and \[7\]"),
        (lambda s: s["teacher"]["2.bias"].fill_(torch.nan), "NaN"),
        (lambda s: s["precision"]["2.bias"].mul_(-1), "negative"),
        (lambda s: s["memories"][0].update(head=[0, 9]), "9"),
        (lambda s: s["memories"][0]["labels"].fill_(3), "label 3"),
        (lambda s: s.pop("generator"), "generator"),
        (lambda s: s.update(fingerprint={"2.bias": 3}), "fingerprint"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(how, says):
    reg, _ = after(2, MixedPast(network(), Categorical(), 4, weight_strength=1.0))
    state = copy.deepcopy(reg.state_dict())
    how(state)
    draws = reg._generator.get_state()
    before = reg.penalty().item()
    reg._generator.set_state(draws)
    with pytest.raises(CheckpointError, match=says):
        reg.load_state_dict(state)
    assert reg.penalty().item() == before


@pytest.mark.parametrize("wrong", [1e308, [True, True], [1, [None]], {"a": 1}])
def test_a_state_whose_fixed_matrices_are_none_is_refused(wrong):
    model = nn.Linear(3, 2)
    reg = MixedPast(model, Categorical(), 4)
    for _ in range(2):
        reg.end_task((torch.randn(12, 3), torch.arange(12) % 2))
    with pytest.raises(FrompError, match="'fixed'"):
        reg.load_state_dict({**reg.state_dict(), "fixed": wrong})
