"""VCL against its definition: samples, KL, heads and coresets."""

import math

import pytest
import torch
from oracles.small import HEADS, copies, data, move, network
from torch import nn
from torch.distributions import Normal, kl_divergence

from fromp import Categorical, Gaussian
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import TensorExamples
from fromp.lab.benchmarks.training import Training
from fromp.lab.engine.fit import Fit
from fromp.lab.methods.vcl import vcl
from fromp.lab.methods.vcl.coreset import RandomCoreset
from fromp.lab.methods.vcl.gaussians import Gaussians, kl
from fromp.lab.methods.vcl.vcl import VCL, LocalReparameterisation, of_other_heads


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
    """On a linear-Gaussian model with one output per head; what was learned before, here N(w, 1/4), is the prior."""
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
