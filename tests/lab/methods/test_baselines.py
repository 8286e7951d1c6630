"""The baselines against what their own papers say they are."""

import math

import pytest
import torch
from oracles import naive
from torch import nn
from torch.distributions import Normal, kl_divergence

from fromp import FROMP, Categorical, Gaussian
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import TensorExamples
from fromp.gp import ggn_diagonal
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.fit import Fit
from fromp.lab.methods.base import mean_nll
from fromp.lab.methods.bounds import Joint, Separate
from fromp.lab.methods.quadratic import DLP, EWC
from fromp.lab.methods.rehearsal import DERpp, FunctionalL2, Replay
from fromp.lab.methods.si import SI, SIMethod
from fromp.lab.methods.vcl import vcl
from fromp.lab.methods.vcl.coreset import RandomCoreset
from fromp.lab.methods.vcl.gaussians import Gaussians, kl
from fromp.lab.methods.vcl.vcl import VCL, LocalReparameterisation, of_other_heads
from fromp.memory import random_score
from fromp.prior import IdentityKernel
from fromp.taskfree.reservoir import Sample

HEADS = [(0, 1), (2, 3), (4, 5)]


def network(outputs=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def data(task, n=12):
    generator = torch.Generator().manual_seed(task)
    return torch.randn(n, 3, generator=generator).double() + task, torch.arange(n) % 2


def move(model, step):
    with torch.no_grad():
        for p in model.parameters():
            p += step * torch.sin(torch.arange(p.numel()).double()).reshape(p.shape)


def copies(tensors):
    return {name: t.detach().clone() for name, t in tensors.items()}


def after_tasks(method, count):
    """The mean Fisher diagonals and the weights at the end of each task, by plain loops.

    The tasks differ in size, and in how many examples each one stands for: a mean depends on neither.
    """
    ends = []
    for task in range(count):
        move(method.model, 0.3)
        x, y = data(task, 12 - 4 * task)
        weights = copies(dict(method.model.named_parameters()))
        total = naive.ggn_diagonal(method.model, x, y, len(x), method.likelihood, HEADS[task]) / len(x)
        parts = total.split([w.numel() for w in weights.values()])
        fisher = {name: part.reshape(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}
        ends.append((fisher, weights))
        method.end_task(Sample(x, y, weight=2.0 + task), HEADS[task])
    move(method.model, 0.1)
    return ends


def test_ewc_is_a_penalty_for_each_task():
    method = EWC(network(), Categorical(), strength=3.0)
    ends = after_tasks(method, 3)
    weights = dict(method.model.named_parameters())
    expected = sum(
        1.5 * (fisher[name] * (weights[name] - then[name]).square()).sum() for fisher, then in ends for name in weights
    )
    ours, theirs = (torch.autograd.grad(value, list(weights.values())) for value in (method.penalty(), expected))
    torch.testing.assert_close(method.penalty(), expected, rtol=1e-10, atol=0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def test_dlp_is_one_penalty_at_the_last_weights():
    method = DLP(network(), Categorical(), strength=3.0)
    ends = after_tasks(method, 3)
    expected = sum(
        1.5 * (fisher[name] * (w - ends[-1][1][name]).square()).sum()
        for fisher, _ in ends
        for name, w in method.model.named_parameters()
    )
    torch.testing.assert_close(method.penalty(), expected, rtol=1e-10, atol=0)


def test_ewc_and_dlp_are_the_same_with_one_past_task_and_differ_with_two():
    for count, same in [(1, True), (2, False)]:
        penalties = []
        for method in (EWC(network(), Categorical(), 2.0), DLP(network(), Categorical(), 2.0)):
            after_tasks(method, count)
            penalties.append(method.penalty().item())
        assert math.isclose(*penalties, rel_tol=1e-12) == same


@pytest.mark.parametrize("lr", [1e-2, 1e-3])
def test_si_integrates_the_decrease_of_the_loss(lr):
    """Its sum over weights is the loss before minus the loss after, up to O(lr), whatever the penalty and the clip."""
    model = network(outputs=2)
    si = SI(model, Categorical(), strength=5.0, damping=1e-3)
    method = SIMethod(si)
    examples = TensorExamples(*data(0))
    decreases = []
    for task in range(2):
        method.begin_task(examples, None, [])
        batch = [(*data(task), None)]
        optimizer = torch.optim.SGD(model.parameters(), lr)
        before = method.data_loss(batch).item()
        for _ in range(round(0.5 / lr)):
            optimizer.zero_grad()
            sum(method.loss(batch)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            optimizer.step()
            method.after_step()
        decreases.append(before - method.data_loss(batch).item())
        path = sum(p.sum() for p in si.path.values()).item()
        assert abs(path - decreases[-1]) < 0.5 * lr * abs(decreases[-1])
        method.end_task(examples)
    assert decreases[0] > 0.03


def test_si_weighs_each_weight_by_its_paths_and_never_negatively():
    si = SI(network(outputs=2), Categorical(), strength=5.0, damping=0.1)
    method = SIMethod(si)
    importance, weights = dict.fromkeys(si.path, 0.0), dict(method.model.named_parameters())
    for task in range(2):
        method.begin_task(TensorExamples(*data(task)), None, [])
        before = copies(weights)
        move(method.model, 0.3)
        for place, (name, path) in enumerate(si.path.items()):
            path += torch.sin(torch.arange(path.numel()).double() + place + task).reshape(path.shape)
            importance[name] += path.clamp_min(0) / ((weights[name] - before[name]).square() + 0.1)
        method.end_task(data(task))
        assert method.penalty().item() == 0
    before = copies(weights)
    move(method.model, 0.2)
    expected = sum(5.0 * (importance[name] * (w - before[name]).square()).sum() for name, w in weights.items())
    torch.testing.assert_close(method.penalty(), expected, rtol=1e-10, atol=0)


def test_si_leaves_value_and_gradient_of_the_loss_as_they_are_and_follows_each_weight():
    si = SI(network(outputs=2), Categorical(), strength=5.0, damping=1e-3)
    method = SIMethod(si)
    batch = [(*data(0), None)]
    weights = list(method.model.parameters())
    plain = method.data_loss(batch)
    ours = method.loss(batch).data
    assert math.isclose(plain.item(), ours.item(), rel_tol=1e-14)
    slopes = torch.autograd.grad(plain, weights)
    for a, b in zip(slopes, torch.autograd.grad(ours, weights), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    before = [w.detach().clone() for w in weights]
    move(method.model, 0.3)
    method.after_step()
    for path, slope, w, then in zip(si.path.values(), slopes, weights, before, strict=True):
        torch.testing.assert_close(path, -slope * (w - then).detach(), rtol=1e-12, atol=1e-14)


def test_si_follows_a_layer_that_is_frozen_for_a_while():
    model = network(outputs=2)
    model[0].requires_grad_(False)
    si = SI(model, Categorical(), strength=5.0, damping=1e-3)
    method = SIMethod(si)
    of_layer = []
    for task, frozen in enumerate([True, False, True]):
        model[0].requires_grad_(not frozen)
        for _ in Fit(
            method,
            method.begin_task(TensorExamples(*data(task)), None, []),
            Training(epochs=2, batch_size=4, lr=1e-2),
            seed=0,
        ).steps():
            pass
        method.end_task(data(task))
        of_layer.append(si.importance.get("0.weight", torch.zeros(1)).sum().item())
    assert of_layer[0] == 0
    assert of_layer[1] == of_layer[2] > 0
    assert si.importance.keys() == dict(model.named_parameters()).keys()
    before = {name: w.detach().clone() for name, w in model.named_parameters()}
    move(model, 0.3)
    moved = {name: (w - before[name]).square() for name, w in model.named_parameters()}
    expected = 5.0 * sum((si.importance[name] * square).sum() for name, square in moved.items())
    assert math.isclose(method.penalty().item(), expected.item(), rel_tol=1e-12)


def test_si_in_a_loop_of_ones_own_is_the_same():
    """`after_step` finds the gradient of the data loss by itself, if nothing has clipped it."""
    runs = []
    for own in (True, False):
        model = network(outputs=2)
        si = SI(model, Categorical(), strength=5.0, damping=1e-3)
        method = SIMethod(si)
        for task in range(2):
            x, y = data(task)
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            for _ in range(20):
                plain = nn.functional.cross_entropy(model(x), y)
                loss = plain + si.penalty() if own else sum(method.loss([(x, y, None)]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                (si if own else method).after_step()
            si.end_task((x, y))
        runs.append([*si.importance.values(), *model.parameters()])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["ewc", "dlp"])
def test_a_task_holds_a_weight_that_was_frozen_in_it(name):
    """It has a Fisher information there like any other, and may be trained again later."""
    model = network(outputs=2)
    method = {"ewc": EWC, "dlp": DLP}[name](model, Categorical(), strength=1.0)
    method.end_task(data(0))
    model[0].requires_grad_(False)
    method.end_task(data(1))
    names = tuple(dict(model.named_parameters()))
    tasks = [ggn_diagonal(model, names, TensorExamples(*data(place)), Categorical()) for place in range(2)]
    for name in names:
        torch.testing.assert_close(method.fisher[name], sum(task[name] for task in tasks) / len(data(0)[1]))


@pytest.mark.parametrize("sizes", [(5, 3), (7, 1)])
def test_a_batch_of_several_heads_is_one_batch_to_batch_norm(sizes):
    """A part of one example would have no statistics of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 6)).double()
    method = Joint(model, Categorical(), tasks=2)
    parts = [(*data(place, size), HEADS[place]) for place, size in enumerate(sizes)]
    f = model(torch.cat([x for x, _, _ in parts]))
    rows = f.split(sizes)
    expected = sum(
        nn.functional.cross_entropy(row[:, list(head)], y, reduction="sum")
        for row, (_, y, head) in zip(rows, parts, strict=True)
    ) / sum(sizes)
    torch.testing.assert_close(method.data_loss(parts), expected)


def test_the_trainer_tells_si_of_every_step():
    torch.manual_seed(0)
    si, (x, y) = SI(network(2), Categorical(), 1.0, 1e-3), data(0)
    method = SIMethod(si)
    before = Categorical().nll(method.model(x), y).mean().item()
    training = method.begin_task(TensorExamples(x, y), None, [])
    for _ in Fit(method, training, Training(epochs=200, batch_size=len(y), lr=1e-4), seed=0).steps():
        pass
    decrease = before - Categorical().nll(method.model(x), y).mean().item()
    assert sum(float(path.sum()) for path in si.path.values()) == pytest.approx(decrease, rel=0.02)
    assert decrease > 1e-3


def learn(method, tasks, epochs=20):
    """Each task in turn, all with the same labels and no head of their own."""
    past = []
    for task in tasks:
        examples = TensorExamples(*data(task))
        training = method.begin_task(examples, None, past)
        for _ in Fit(method, training, Training(epochs=epochs, batch_size=4, lr=1e-2), seed=task).steps():
            pass
        method.end_task(examples)
        past.append((examples, None))


def test_separate_is_a_network_of_its_own_for_each_task():
    both = Separate(network(2), Categorical())
    learn(both, [0, 1])
    for place, task in enumerate([0, 1]):
        alone = Separate(network(2), Categorical())
        learn(alone, [task])
        x = data(task)[0]
        assert torch.equal(both.predict_outputs(x, None, place), alone.predict_outputs(x, None, 0))
    assert not torch.equal(both.predict_outputs(x, None, 0), both.predict_outputs(x, None, 1))


def test_joint_trains_at_the_last_task_on_the_data_of_all():
    method = Joint(network(6), Categorical(), tasks=3)
    tasks = [TensorExamples(*data(task)) for task in range(3)]
    assert method.begin_task(tasks[0], None, []) == []
    assert method.begin_task(tasks[1], None, [(tasks[0], None)]) == []
    [(everything, head)] = method.begin_task(tasks[2], None, [(tasks[0], None), (tasks[1], None)])
    assert head is None
    assert torch.equal(everything.take(torch.arange(36))[0], torch.cat([data(task)[0] for task in range(3)]))
    past = list(zip(tasks[:2], HEADS[:2], strict=True))
    assert method.begin_task(tasks[2], HEADS[2], past) == list(zip(tasks, HEADS, strict=True))


def test_functional_l2_is_fromp_with_the_identity_for_kernel():
    """Where outputs are means: 1/2 tau |m - m0|^2 is strength |f - f0|^2 with tau twice the strength."""
    model = network(outputs=2)
    x = [data(task)[0] for task in range(3)]
    y = [torch.zeros(12, 2).double()] * 3
    l2 = FunctionalL2(model, Gaussian(1.0), memory=12, strength=0.7, seed=0)
    fromp = FROMP(model, Gaussian(1.0), 1.4, 12, 1.0, 0.0, kernel=IdentityKernel, score=random_score)
    for task in range(3):
        move(model, 0.2)
        l2.end_task((x[task], y[task]))
        fromp.end_task((x[task], y[task]))
        assert l2.penalty().item() == 0
    move(model, 0.3)
    weights = list(model.parameters())
    torch.testing.assert_close(l2.penalty(), fromp.penalty(), rtol=1e-10, atol=0)
    for a, b in zip(*(torch.autograd.grad(m.penalty(), weights) for m in (l2, fromp)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def shift(model):
    """Move the outputs of the three heads by 1, 3 and 9, which their softmax does not see."""
    with torch.no_grad():
        model[2].bias += torch.tensor([1.0, 1.0, 3.0, 3.0, 9.0, 9.0])


def test_functional_l2_holds_the_outputs_of_each_head():
    method = FunctionalL2(network(), Categorical(), memory=4, strength=0.7, seed=0)
    for task in range(2):
        method.end_task(data(task), HEADS[task])
    shift(method.model)
    assert method.penalty().item() == pytest.approx(0.7 * 4 * 2 * (1.0 + 9.0))


def test_replay_expects_the_mean_loss_over_all_memory():
    """Over its points, not over its tasks: these have unequal memories."""
    method = Replay(network(), Categorical(), memory=0, batch_size=500, strength=2.0, seed=0)
    for task, method.memory_size in enumerate([2, 4, 12]):
        method.end_task(data(task), HEADS[task])
    every = [(m.inputs, m.labels, m.head) for m in method.memories]
    mean = sum(method.penalty().item() for _ in range(40)) / 40
    assert [len(m) for m in method.memories] == [2, 4, 12]
    assert mean == pytest.approx(2.0 * mean_nll(method.model, method.likelihood, every).item(), rel=0.02)


def test_der_holds_the_outputs_where_they_were_stored_and_replays_labels_of_another_draw():
    method = DERpp(network(), Categorical(), memory=4, batch_size=64, strength=2.0, logit_strength=0.5, seed=0)
    for task in range(2):
        method.end_task(data(task), HEADS[task])
        shift(method.model)  # the first head by 2 in all, the second by 3
    state = method._generator.get_state()
    first, second = (method.draw(64, method.outputs) for _ in range(2))
    method._generator.set_state(state)
    distances = sum(len(stored) * {HEADS[0]: 4.0, HEADS[1]: 9.0}[head] for (_, _, head), stored in first) / 64
    labelled = mean_nll(method.model, method.likelihood, [part for part, _ in second]).item()
    assert method.penalty().item() == pytest.approx(0.5 * distances + 2.0 * labelled, rel=1e-10)


def gaussians(seed):
    generator = torch.Generator().manual_seed(seed)
    return Gaussians(
        {k: torch.randn(4, 3, generator=generator).double() for k in "ab"},
        {k: torch.randn(4, 3, generator=generator).double() for k in "ab"},
    )


def test_the_kl_of_vcl_is_the_closed_form():
    q, p = gaussians(0), gaussians(1)
    expected = sum(
        kl_divergence(Normal(q.mean[k], q.log_deviation[k].exp()), Normal(p.mean[k], p.log_deviation[k].exp())).sum()
        for k in "ab"
    )
    torch.testing.assert_close(kl(q, p), expected, rtol=1e-12, atol=0)
    half = {"a": torch.zeros(4, 3).double()}
    only_b = kl_divergence(
        Normal(q.mean["b"], q.log_deviation["b"].exp()), Normal(p.mean["b"], p.log_deviation["b"].exp())
    ).sum()
    torch.testing.assert_close(kl(q, p, half), only_b, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(6, 4), (6,)),
        (nn.Linear(6, 4, bias=False), (6,)),
    ],
)
def test_sampled_outputs_have_the_moments_of_sampled_weights(layer, shape):
    torch.manual_seed(0)
    layer = layer.double()
    weights = dict(layer.named_parameters())
    log_deviation = {name: torch.randn_like(w) * 0.3 - 1 for name, w in weights.items()}
    noise = torch.Generator().manual_seed(0)
    a = torch.randn(2, *shape).double()
    with torch.no_grad():
        with LocalReparameterisation(weights, log_deviation, noise):
            local = torch.stack([layer(a) for _ in range(4000)])
        drawn = []
        for _ in range(4000):
            sample = {n: w + log_deviation[n].exp() * torch.randn(w.shape).double() for n, w in weights.items()}
            drawn.append(torch.func.functional_call(layer, sample, (a,)))
        drawn = torch.stack(drawn)
    spread = drawn.std(0)
    assert ((local.mean(0) - drawn.mean(0)).abs() / spread).max() < 0.12
    torch.testing.assert_close(local.std(0), spread, rtol=0.08, atol=0)
    together = torch.corrcoef(local.flatten(1).T)
    assert (together - torch.eye(len(together))).abs().max() < 0.1  # every output of every example has its own noise


class Tokens(nn.Module):
    """A linear map of every row, and the mean of the rows."""

    def __init__(self):
        super().__init__()
        self.each, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.each(x).tanh().mean(1))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), (6,)),
        (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.AvgPool2d(5), nn.Flatten(), nn.Linear(4, 2)), (2, 7, 7)),
        (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.AvgPool1d(7), nn.Flatten(), nn.Linear(4, 2)), (2, 9)),
        (Tokens(), (8, 3)),
        (nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2)), (6,)),
    ],
    ids=["mlp", "conv2d", "conv1d", "tokens", "norm"],
)
def test_what_vcl_samples_is_what_sampled_weights_give(model, shape):
    """Also where positions share a weight: noise of its own at each of them would average out."""
    torch.manual_seed(0)
    model = model.double()
    method = VCL(model, Categorical(), 1.0, 0.3, 0)
    x, y = torch.randn(2, *shape).double(), torch.arange(2)
    method.begin_task(TensorExamples(x, y), None, [])
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        ours = torch.stack([method._sample(method._posterior(), x, None, noise) for _ in range(3000)])
        drawn = [
            {name: w + 0.3 * torch.randn(w.shape).double() for name, w in model.named_parameters()} for _ in range(3000)
        ]
        theirs = torch.stack([torch.func.functional_call(model, weights, (x,)) for weights in drawn])
    assert ((ours.mean(0) - theirs.mean(0)).abs() / theirs.std(0)).max() < 0.12
    torch.testing.assert_close(ours.std(0), theirs.std(0), rtol=0.1, atol=0)


def test_vcl_finds_the_exact_diagonal_posterior_of_a_linear_gaussian_model():
    """Task after task: the best mean field has the exact mean, and the precision matrix's diagonal."""
    torch.manual_seed(0)
    x = [torch.randn(40, 3).double() @ torch.tensor([[1, 0.3, 0], [0, 1, 0.2], [0, 0, 1]]).double() for _ in range(2)]
    y = [part @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 0.3 * torch.randn(40, 1).double() for part in x]
    model = nn.Linear(3, 1, bias=False).double()
    method = VCL(model, Gaussian(1 / 0.09), prior_precision=2.0, initial_deviation=1e-2, seed=0)
    mean, precision = torch.zeros(3).double(), 2.0 * torch.eye(3).double()
    for task in range(2):
        examples = TensorExamples(x[task], y[task])
        training = method.begin_task(examples, None, [])
        for _ in Fit(
            method, training, Training(epochs=2500, batch_size=40, lr=2e-2, schedule="linear-decay"), seed=0
        ).steps():
            pass
        method.end_task(examples)
        now = precision + x[task].T @ x[task] / 0.09
        mean = torch.linalg.solve(now, precision @ mean + x[task].T @ y[task].flatten() / 0.09)
        precision = now.diag().diag()
        torch.testing.assert_close(model.weight.detach().flatten(), mean, rtol=0, atol=8e-3)
        torch.testing.assert_close(
            method.log_deviation["weight"].detach().exp().flatten(), now.diag().rsqrt(), rtol=0.06, atol=0
        )


def test_vcl_predicts_with_the_mean_over_sampled_weights(monkeypatch):
    monkeypatch.setattr(vcl, "TEST_SAMPLES", 4000)
    model = network()
    method = VCL(model, Categorical(), prior_precision=1.0, initial_deviation=0.8, seed=0)
    method.end_task(data(0), HEADS[0])
    x, _ = data(0)
    with torch.no_grad():
        found = method.predict_outputs(x, HEADS[0], 0)
        drawn = [
            {name: w + 0.8 * torch.randn(w.shape).double() for name, w in model.named_parameters()} for _ in range(4000)
        ]
        each = torch.stack([torch.func.functional_call(model, weights, (x,))[:, :2].softmax(-1) for weights in drawn])
        at_the_mean = model(x)[:, :2].softmax(-1)
    assert (found - each.mean(0)).abs().max() < 0.03
    assert (found - at_the_mean).abs().max() > 0.1


def test_vcl_starts_each_task_anew_and_leaves_the_heads_of_other_tasks_alone():
    model = network()
    model[1] = nn.ReLU()
    model[0].bias.data[0] = -100.0  # a silent unit's weights belong to their heads all the same
    method = VCL(model, Categorical(), prior_precision=4.0, initial_deviation=1e-2, seed=0)

    def moments():
        q = dict(model.named_parameters()), method.log_deviation
        return [copies(values) for values in (*q, method.prior.mean, method.prior.log_deviation)]

    start = moments()
    training = method.begin_task(TensorExamples(*data(0)), HEADS[0], [])
    for _ in Fit(method, training, Training(epochs=5, batch_size=4, lr=1e-2), seed=0).steps():
        pass
    method.end_task(data(0), HEADS[0])
    learned = moments()
    for was, now in zip(start, learned, strict=True):
        assert torch.equal(now["2.weight"][2:], was["2.weight"][2:])
        assert not torch.equal(now["2.weight"][:2], was["2.weight"][:2])
        assert not torch.equal(now["0.weight"], was["0.weight"])
    method.begin_task(TensorExamples(*data(1)), HEADS[1], [])
    method.end_task(data(1), HEADS[1])
    for then, now in zip(learned, moments(), strict=True):
        assert torch.equal(now["2.weight"][:2], then["2.weight"][:2])
    (means, deviations), (began, narrow) = moments()[:2], start[:2]
    for name, place in [("0.weight", slice(None)), ("2.weight", slice(2, None))]:
        assert torch.equal(deviations[name][place], narrow[name][place])
        assert not torch.equal(means[name][place], began[name][place])
    assert torch.equal(means["0.weight"].flatten().sort().values, began["0.weight"].flatten().sort().values)


def test_vcl_starts_each_task_from_other_random_weights_or_from_the_first_ones():
    for start, same in [("fresh", False), ("initial", True), ("drawn", False)]:
        model = network()
        began = copies(dict(model.named_parameters()))
        method = VCL(model, Categorical(), 4.0, 1e-2, seed=0, start=start)
        seen = []
        for task in range(3):
            method.begin_task(TensorExamples(*data(task)), None, [])
            seen.append(copies(dict(model.named_parameters())))
            method.begin_task(TensorExamples(*data(task)), None, [])  # as when a run is taken up again
            assert torch.equal(seen[-1]["0.weight"], model[0].weight)
            method.end_task(data(task))
        assert torch.equal(seen[0]["0.weight"], began["0.weight"]) == (start != "drawn")
        assert all(torch.equal(one["0.weight"], began["0.weight"]) == same for one in seen[1:])
        assert torch.equal(seen[1]["0.weight"], seen[2]["0.weight"]) == same
        if start == "drawn":
            assert 0.07 < torch.stack([one["0.weight"] for one in seen]).std() < 0.13


def test_vcl_knows_the_weights_of_other_heads():
    """The rows of the last layer outside the head; a layer that is applied twice is of use to every head."""
    model, x = network(), data(0)[0]
    elsewhere = of_other_heads(model, x, HEADS[1], ())
    for last in (elsewhere["2.weight"], elsewhere["2.bias"]):
        assert not last[2:4].any()
        assert last[:2].all()
        assert last[4:].all()
    assert not elsewhere["0.weight"].any()
    assert not elsewhere["0.bias"].any()
    assert of_other_heads(model, x, None, ()) == {}
    model[2].bias.requires_grad_(False)
    assert "2.bias" not in of_other_heads(model, x, HEADS[1], ())
    with pytest.raises(FrompError, match="head index 6 is outside the model's 6 outputs"):
        of_other_heads(model, x, (6, 7), ())

    shared = nn.Linear(6, 6).double()
    method = VCL(nn.Sequential(nn.Linear(3, 6).double(), shared, nn.Tanh(), shared), Categorical(), 4.0, 1e-2, seed=0)
    method.begin_task(TensorExamples(*data(0)), HEADS[1], [])
    assert not any(mask.any() for mask in method._other_heads_only.values())


def test_vcl_refuses_heads_whose_weights_it_cannot_find():
    behind = nn.Sequential(network(), nn.Tanh())
    method = VCL(behind, Categorical(), 4.0, 1e-2, seed=0)
    with pytest.raises(FrompError, match=r"not those of its last nn.Linear .*; let the model end with a linear layer"):
        method.begin_task(TensorExamples(*data(0)), HEADS[0], [])
    method.begin_task(TensorExamples(*data(0)), None, [])  # with one head there is nothing to find
    made = network()
    nn.utils.parametrizations.weight_norm(made[2])
    method = VCL(made, Categorical(), 4.0, 1e-2, seed=0)
    with pytest.raises(FrompError, match=r"is computed from others, .*; remove its parametrisation"):
        method.begin_task(TensorExamples(*data(0)), HEADS[0], [])


def test_vcl_bears_a_weight_that_is_not_used():
    model = network()
    model[0].unused = nn.Parameter(torch.ones(2).double())
    method = VCL(model, Categorical(), 4.0, 1e-2, seed=0)
    method.begin_task(TensorExamples(*data(0)), HEADS[0], [])
    method.loss([(*data(0), HEADS[0])]).data.backward()
    method.end_task(data(0), HEADS[0])


def test_vcl_must_be_told_of_a_task():
    method = VCL(network(), Categorical(), 4.0, 1e-2, seed=0)
    assert method.penalty().item() == 0
    with pytest.raises(FrompError, match="call begin_task before training"):
        method.loss([(*data(0), HEADS[0])])
    method.begin_task(TensorExamples(*data(0)), HEADS[0], [])
    method.loss([(*data(0), HEADS[0])])
    method.end_task(data(0), HEADS[0])
    with pytest.raises(FrompError, match="call begin_task before training"):  # of the second task too
        method.loss([(*data(1), HEADS[1])])
    withheld = VCL(network(), Categorical(), 4.0, 1e-2, 0, RandomCoreset(Categorical(), 4, seed=0))
    with pytest.raises(FrompError, match="no coreset has been withheld"):
        withheld.end_task(data(0), HEADS[0])


def test_vcl_refuses_a_model_of_which_something_else_is_trained():
    model = network()
    method = VCL(model, Categorical(), 4.0, 1e-2, seed=0)
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    with pytest.raises(FrompError, match=r"'0\.weight' was frozen or unfrozen after VCL was made"):
        method.begin_task(TensorExamples(*data(0)), HEADS[0], [])
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("more", [0, 1])
def test_a_coreset_leaves_something_to_train_on(more):
    size = len(data(0)[1]) + more
    method = VCL(network(), Categorical(), 4.0, 1e-2, 0, RandomCoreset(Categorical(), size, seed=0))
    with pytest.raises(FrompError, match=f"a coreset of {size} leaves nothing of the task's {size - more} examples"):
        method.begin_task(TensorExamples(*data(0)), HEADS[0], [])


def test_vcl_can_start_each_task_where_the_last_one_ended():
    model = network()
    method = VCL(model, Categorical(), prior_precision=4.0, initial_deviation=1e-2, seed=0, start="posterior")
    training = method.begin_task(TensorExamples(*data(0)), None, [])
    for _ in Fit(method, training, Training(epochs=2, batch_size=4, lr=1e-2), seed=0).steps():
        pass
    method.end_task(data(0))
    learned = copies(dict(model.named_parameters())), copies(method.log_deviation)
    method.begin_task(TensorExamples(*data(1)), None, [])
    for then, now in zip(learned, (dict(model.named_parameters()), method.log_deviation), strict=True):
        assert all(torch.equal(now[name], value) for name, value in then.items())
    with pytest.raises(FrompError, match="unknown start 'middle'; known: fresh, drawn, initial, posterior"):
        VCL(model, Categorical(), 4.0, 1e-2, 0, start="middle")


def test_a_coreset_is_withheld_and_refined_before_a_test():
    model = network()
    coreset = RandomCoreset(Categorical(), 40, seed=0)
    method = VCL(model, Categorical(), 1.0, 0.3, 0, coreset, coreset_epochs=50, batch_size=20, lr=5e-2)
    x, _ = data(0, 100)
    examples = TensorExamples(x, (x[:, 0] > x[:, 0].median()).long())
    [(rest, head)] = method.begin_task(examples, HEADS[0], [])
    assert len(rest) == method.num_examples == 60
    weights = [w.detach().clone() for w in model.parameters()]
    method.end_task(examples, head)
    held = method.memories[0]
    everything = torch.cat([rest.take(torch.arange(60))[0], held.inputs])
    torch.testing.assert_close(everything.sort(0).values, x.sort(0).values)
    assert held.labels.sum() == 20
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    plain = VCL(model, Categorical(), 1.0, 0.3, 0)
    plain.begin_task(examples, HEADS[0], [])
    hits = [(m.predict_outputs(x, HEADS[0], 0).argmax(1) == examples.y).double().mean() for m in (plain, method)]
    assert hits[1] > hits[0] + 0.2


def test_a_coreset_refines_its_own_head_to_the_exact_posterior_and_not_the_next_prior():
    """On a linear-Gaussian model with an output a head; what was learned before, here N(w, 1/4), is the prior."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False).double()
    coreset = RandomCoreset(Gaussian(1.0), 10, 0)
    method = VCL(model, Gaussian(1.0), 1.0, 0.5, 0, coreset, 400, batch_size=10, lr=1e-2, start="initial")
    for task in range(2):
        x, _ = data(task, 20)
        examples = TensorExamples(x, x.sum(1) - 2 * task)
        method.begin_task(examples, (task,), [])
        method.end_task(examples, (task,))
    assert [len(held) for held in method.memories] == [10, 10]
    assert torch.equal(method.prior.mean["weight"], model.weight)
    assert method.prior.log_deviation["weight"].eq(math.log(0.5)).all()
    for task, held in enumerate(method.memories):
        q, w, (x, y) = method._refined[held.head], model.weight[task].detach(), (held.inputs, held.labels)
        precision = 4.0 * torch.eye(3).double() + x.T @ x
        mean = torch.linalg.solve(precision, 4.0 * w + x.T @ y)
        torch.testing.assert_close(q.mean["weight"][task], mean, rtol=0, atol=0.06)
        deviation = q.log_deviation["weight"][task].exp()
        torch.testing.assert_close(deviation, precision.diag().rsqrt(), rtol=0.12, atol=0)


def test_with_one_head_the_coresets_of_all_tasks_are_refined_together():
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    method = VCL(model, Gaussian(1.0), 1.0, 0.5, 0, RandomCoreset(Gaussian(1.0), 10, 0), 400, batch_size=20, lr=1e-2)
    for task in range(2):
        x, _ = data(task, 20)
        examples = TensorExamples(x, x.sum(1) - 2 * task)
        method.begin_task(examples, None, [])
        method.end_task(examples)
    x, y = (torch.cat([getattr(m, name) for m in method.memories]) for name in ("inputs", "labels"))
    precision = 4.0 * torch.eye(3).double() + x.T @ x
    mean = torch.linalg.solve(precision, 4.0 * model.weight[0].detach() + x.T @ y)
    torch.testing.assert_close(method._refined[None].mean["weight"][0], mean, rtol=0, atol=0.06)


def test_every_head_is_refined_from_the_newest_posterior():
    method = VCL(network(), Categorical(), 1.0, 0.3, 0, RandomCoreset(Categorical(), 4, 0), coreset_epochs=0)
    for task in range(2):
        examples = TensorExamples(*data(task))
        method.begin_task(examples, HEADS[task], [])
        move(method.model, 0.3)
        method.end_task(examples, HEADS[task])
    assert list(method._refined) == HEADS[:2]
    for q in method._refined.values():
        assert all(torch.equal(mean, method.prior.mean[name]) for name, mean in q.mean.items())
