"""FROMP without its approximations, one at a time, against slow twins."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from oracles import naive
from oracles.small import HEADS, data, move, network

from fromp import FROMP, Categorical, FrompError, Gaussian
from fromp.derivatives.model import detached, named_weights, trainable
from fromp.foundation.examples import TensorExamples
from fromp.lab.benchmarks.catalogue import benchmark
from fromp.lab.engine.run import Run, run_of
from fromp.lab.methods.relaxed.covariance import Blocks, Covariance, Diagonal, Kronecker, last_layer, layers
from fromp.lab.methods.relaxed.points import Candidates, centres, leverage, mixed
from fromp.lab.methods.relaxed.points import trace as trace_of_lambda
from fromp.lab.methods.relaxed.regulariser import Relaxed
from fromp.lab.methods.relaxed.rows import means
from fromp.lab.methods.relaxed.trace import directions, trace
from fromp.lab.methods.relaxed.von import VON
from fromp.lab.results.plan import Plan
from fromp.memory import per_class

DELTA, JITTER, TAU = 0.3, 1e-3, 0.7
SHARED = [None] * 3


def weights_of(model):
    return detached(model, trainable(model))


def regulariser(make=Diagonal, memory=4, **options):
    model = network()
    covariance = make(weights_of(model), DELTA)
    return Relaxed(model, Categorical(), TAU, memory, JITTER, covariance, **options)


def after(reg, heads=HEADS, tasks=2):
    """The regulariser after some tasks, the networks at which they ended, and its own network moved since."""
    at = []
    for task in range(tasks):
        move(reg.model, 0.2)
        reg.end_task(data(task), heads[task])
        at.append(copy.deepcopy(reg.model))
    move(reg.model, 0.1)
    return reg, at


def flat(gradients):
    return torch.cat([g.flatten() for g in gradients])


def dense_precision(at, heads, reg):
    """delta I + sum_i J' Lambda J over all tasks, written out: (w, w)."""
    total = 0.0
    for task, model in enumerate(at):
        x, y = data(task)
        jac = naive.jacobian(model, x, len(x), heads[task])
        lam = naive.lambdas(model, x, y, len(x), reg.likelihood, heads[task])
        total = total + torch.einsum("icw,icd,idv->wv", jac, lam, jac)
    return total + DELTA * torch.eye(len(total), dtype=total.dtype)


def rows_at(model, reg, heads):
    """m and its Jacobian, task by task, output by output, point by point: (rows,), (rows, w)."""
    m, jac = [], []
    for memory, head in zip(reg.memories, heads, strict=False):
        x, n = memory.inputs, len(memory)
        m.append(naive.means(model, x, n, reg.likelihood, head).T.flatten())
        jac.append(naive.jacobian(model, x, n, head, reg.likelihood.mean).transpose(0, 1).flatten(0, 1))
    return torch.cat(m), torch.cat(jac)


def mask(reg, across_tasks, across_classes, heads):
    """Which pairs of rows one kernel ties together, pair by pair: (rows, rows)."""
    keys = [
        (None if across_tasks else task, None if across_classes else c)
        for task, memory in enumerate(reg.memories)
        for c in range(len(heads[task]) if heads[task] else 6)
        for _ in range(len(memory))
    ]
    return torch.tensor([[one == other for other in keys] for one in keys])


def slow_distance(reg, before, sigma, tied, heads):
    """(m - m0)' (K o tied + jitter I)^-1 (m - m0), all rows in one matrix."""
    m0, jac = rows_at(before, reg, heads)
    k = (jac @ sigma @ jac.T) * tied + JITTER * torch.eye(len(m0), dtype=m0.dtype)
    d = rows_at(reg.model, reg, heads)[0] - m0
    return d @ torch.linalg.solve(k, d)


@pytest.mark.parametrize("heads", [HEADS, SHARED], ids=["a head per task", "one head"])
def test_with_every_approximation_it_is_fromp(heads):
    reg = regulariser()
    model = network()
    own = FROMP(model, Categorical(), TAU, 4, prior_precision=DELTA, jitter=JITTER)
    assert reg.penalty().item() == 0
    for task in range(3):
        for one in (reg, own):
            move(one.model, 0.2)
            one.end_task(data(task), head=heads[task])
    for one in (reg, own):
        move(one.model, 0.1)
    torch.testing.assert_close(reg.penalty(), own.penalty(), rtol=1e-9, atol=0)
    found, wanted = (flat(torch.autograd.grad(r.penalty(), list(r.model.parameters()))) for r in (reg, own))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("heads", [HEADS, SHARED], ids=["a head per task", "one head"])
@pytest.mark.parametrize(("tasks", "classes"), [(True, False), (False, True), (True, True)])
def test_a_kernel_across_tasks_and_classes(tasks, classes, heads):
    reg, at = after(regulariser(across_tasks=tasks, across_classes=classes), heads)
    sigma = (1 / dense_precision(at, heads, reg).diagonal()).diag()
    slow = slow_distance(reg, at[-1], sigma, mask(reg, tasks, classes, heads), heads)
    torch.testing.assert_close(reg.penalty().detach(), 0.5 * TAU * slow, rtol=1e-8, atol=0)


def test_two_classes_in_one_kernel_cost_half():
    """Both outputs of a head of two deviate alike, so that one GP of the two counts the deviation once."""
    one, _ = after(regulariser(), tasks=1)
    both, _ = after(regulariser(across_classes=True), tasks=1)
    one.jitter = both.jitter = 1e-12
    for reg in (one, both):
        reg.memories, reg._priors = [], []
        reg.end_task(data(0), HEADS[0])
        move(reg.model, 0.1)
    assert both.penalty().item() == pytest.approx(one.penalty().item() / 2, rel=1e-3)


def whole(weights, delta):
    return Blocks(weights, delta, [list(weights)])


def by_layer(weights, delta):
    return Blocks(weights, delta, layers(list(weights)))


def kronecker_precision(at, heads, reg, names):
    """(sum g g') x (sum a a') / N + delta I for each weight, with torch.kron: (w, w)."""
    n = 0
    outer, inner = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for task, model in enumerate(at):
        x, y = data(task)
        n += len(x)
        lam = naive.lambdas(model, x, y, len(x), reg.likelihood, heads[task])
        for i in range(len(x)):
            values, vectors = torch.linalg.eigh(lam[i])
            hidden = model[1](model[0](x[i]))
            a = {"0.weight": x[i], "2.weight": hidden, "0.bias": torch.ones(1), "2.bias": torch.ones(1)}
            for value, vector in zip(values.clamp_min(0), vectors.T, strict=True):
                at_top = torch.zeros(6, dtype=x.dtype)
                at_top[list(heads[task] or range(6))] = vector * value.sqrt()
                below = (1 - hidden**2) * (at_top @ model[2].weight)
                for name in names:
                    g = (below if name[0] == "0" else at_top).detach()
                    outer[name] = outer[name] + torch.outer(g, g)
            for name in names:
                inner[name] = inner[name] + torch.outer(a[name], a[name]).detach().double()
    total = torch.block_diag(*(torch.kron(outer[name], inner[name]) / n for name in names))
    return total + DELTA * torch.eye(len(total), dtype=total.dtype)


@pytest.mark.parametrize("heads", [HEADS, SHARED], ids=["a head per task", "one head"])
@pytest.mark.parametrize("make", [whole, by_layer, Kronecker])
def test_a_covariance_that_is_not_diagonal(make, heads):
    reg, at = after(regulariser(make), heads)
    if make is Kronecker:
        precision = kronecker_precision(at, heads, reg, list(weights_of(reg.model)))
    else:
        precision = dense_precision(at, heads, reg)
        if make is by_layer:
            first = sum(p.numel() for p in reg.model[0].parameters())
            precision[:first, first:] = precision[first:, :first] = 0
    slow = slow_distance(reg, at[-1], torch.linalg.inv(precision), mask(reg, False, False, heads), heads)
    torch.testing.assert_close(reg.penalty().detach(), 0.5 * TAU * slow, rtol=1e-7, atol=0)


@pytest.mark.parametrize("make", [Diagonal, whole])
def test_a_kernel_over_the_last_layer_alone(make):
    model = network()
    names = last_layer(model)
    assert names == ("2.weight", "2.bias")
    reg = Relaxed(model, Categorical(), TAU, 4, JITTER, make(detached(model, names), DELTA))
    reg, at = after(reg)
    first = sum(p.numel() for p in model[0].parameters())
    precision = dense_precision(at, HEADS, reg)[first:, first:]
    sigma = torch.zeros(first + len(precision), first + len(precision), dtype=torch.double)
    sigma[first:, first:] = torch.linalg.inv(precision) if make is whole else (1 / precision.diagonal()).diag()
    slow = slow_distance(reg, at[-1], sigma, mask(reg, False, False, HEADS), HEADS)
    torch.testing.assert_close(reg.penalty().detach(), 0.5 * TAU * slow, rtol=1e-8, atol=0)


@pytest.mark.parametrize("make", [Diagonal, whole, Kronecker])
def test_draws_have_the_covariance(make):
    reg, _ = after(regulariser(make), tasks=1)
    weights = weights_of(reg.model)
    root = reg.covariance.root(units(weights))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([flat(reg.covariance.draw(generator).values()) for _ in range(4000)])
    scale = (root @ root.T).diagonal().sqrt()
    correlation = drawn.T @ drawn / len(drawn) / scale / scale[:, None]
    torch.testing.assert_close(correlation, root @ root.T / scale / scale[:, None], rtol=0, atol=0.12)


@pytest.mark.parametrize("make", [Diagonal, whole, Kronecker])
def test_the_trace_and_its_derivative(make):
    reg, at = after(regulariser(make, across_classes=True))
    (prior,), model = reg._priors, reg.model
    root = reg.covariance.root(units(weights_of(model)))
    sigma = root @ root.T

    def slow():
        m0, before = rows_at(at[-1], reg, HEADS)
        tied = mask(reg, False, True, HEADS)
        k = (before @ sigma @ before.T) * tied + JITTER * torch.eye(len(m0), dtype=m0.dtype)
        jac = rows_at(model, reg, HEADS)[1]
        return torch.linalg.solve(k, (jac @ sigma @ jac.T) * tied).trace()

    def fast(z):
        m = means(model, reg.memories, reg.likelihood)
        return trace(prior, m, {n: named_weights(model)[n] for n in reg.covariance.names}, reg.covariance, z)

    m = means(model, reg.memories, reg.likelihood)
    exact = fast(directions(len(m), m, reg._generator))
    torch.testing.assert_close(exact.detach(), slow(), rtol=1e-7, atol=0)
    (gradient,) = torch.autograd.grad(exact, model[0].bias)
    values = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            model[0].bias[2] += step
        values.append(float(slow()))
    assert gradient[2].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)
    estimates = torch.stack([fast(directions(1, m, reg._generator)).detach() for _ in range(400)])
    assert estimates.mean().item() == pytest.approx(float(slow()), abs=5 * float(estimates.std()) / 20)


def units(weights):
    """A row for each single weight."""
    size, start, unit = sum(w.numel() for w in weights.values()), 0, {}
    eye = torch.eye(size, dtype=torch.double)
    for name, w in weights.items():
        unit[name] = eye[:, start : start + w.numel()].view(size, *w.shape)
        start += w.numel()
    return unit


def test_the_prior_at_samples_is_the_mean_of_priors_at_each():
    reg = regulariser(prior_samples=3)
    move(reg.model, 0.2)
    generator = torch.Generator()
    generator.set_state(reg._generator.get_state())
    reg.end_task(data(0), HEADS[0])
    covariance, total = reg.covariance, 0.0
    at = copy.deepcopy(reg.model)
    move(reg.model, 0.1)
    sigma = (1 / dense_precision([at], HEADS, reg).diagonal()).diag()
    for _ in range(3):
        sample = copy.deepcopy(at)
        with torch.no_grad():
            for name, deviation in covariance.draw(generator).items():
                sample.get_parameter(name).add_(deviation)
        total += slow_distance(reg, sample, sigma, mask(reg, False, False, HEADS), HEADS) / 3
    torch.testing.assert_close(reg.penalty().detach(), 0.5 * TAU * total, rtol=1e-8, atol=0)


@pytest.mark.parametrize("sampled", [False, True])
def test_von_takes_the_steps_of_the_appendix(sampled):
    """Against its three lines written out, at the draws it makes."""
    model, (x, y) = network(), data(0)
    weights, n, lr, beta = named_weights(model), 12, 0.01, 0.3
    precision = {name: torch.full_like(w, 0.5).detach() for name, w in weights.items()}
    generator, same = (torch.Generator().manual_seed(4) for _ in range(2))
    von = VON(weights, precision, n, lr, beta, sampled, generator)
    mu = {name: w.detach().clone() for name, w in weights.items()}
    s: dict = {}
    for step in range(3):
        von.perturb()
        w = mu
        if sampled and step:
            noise = {name: torch.randn(m.shape, generator=same).to(m) for name, m in mu.items()}
            w = {name: m + (s[name] + 0.5) ** -0.5 * noise[name] for name, m in mu.items()}
        for name in w:
            torch.testing.assert_close(weights[name].detach(), w[name], rtol=1e-10, atol=1e-12)
        ggn = naive.ggn_diagonal(model, x, y, n, Categorical()) / n
        parts = dict(zip(w, ggn.split([m.numel() for m in w.values()]), strict=True))
        parts = {name: part.view_as(w[name]) for name, part in parts.items()}
        von.observe(parts)
        s = {name: n * g if not step else (1 - beta) * s[name] + beta * n * g for name, g in parts.items()}
        loss = Categorical().nll(model(x), y).mean()
        g = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        for name, weight in weights.items():
            weight.grad = g[name]
        von.step()
        mu = {name: m - lr / (s[name] + 0.5) * n * g[name] for name, m in mu.items()}
        for name, m in mu.items():
            torch.testing.assert_close(weights[name].detach(), m, rtol=1e-10, atol=1e-12)
    for name, share in von.share().items():
        torch.testing.assert_close(share, s[name], rtol=1e-12, atol=0)


def test_the_curvature_of_the_prior_is_the_diagonal_of_its_ggn():
    reg, at = after(regulariser(across_classes=True))
    m0, before = rows_at(at[-1], reg, HEADS)
    sigma = (1 / dense_precision(at, HEADS, reg).diagonal()).diag()
    tied = mask(reg, False, True, HEADS)
    k = (before @ sigma @ before.T) * tied + JITTER * torch.eye(len(m0), dtype=m0.dtype)
    jac = rows_at(reg.model, reg, HEADS)[1]
    slow = (jac.T @ torch.linalg.solve(k, jac)).diagonal()
    torch.testing.assert_close(flat(reg.curvature().values()), slow, rtol=1e-7, atol=1e-10)
    assert all((c == 0).all() for c in regulariser().curvature().values())


def test_a_task_whose_covariance_came_with_training():
    one, other = regulariser(), regulariser()
    x, y = data(0)
    ggn = one.covariance.with_task(one.model, TensorExamples(x, y), one.likelihood, None).precision
    one.end_task((x, y))
    other.end_task((x, y), share={name: p - DELTA for name, p in ggn.items()})
    for reg in (one, other):
        move(reg.model, 0.1)
    torch.testing.assert_close(one.penalty(), other.penalty())


@pytest.mark.parametrize("make", [Diagonal, whole, Kronecker])
def test_a_state_brings_everything_back(make):
    options = {"prior_samples": 2, "trace_directions": 1, "across_tasks": True}
    reg, _ = after(regulariser(make, **options))
    again = regulariser(make, **options)
    again.model.load_state_dict(reg.model.state_dict())
    again.load_state_dict(copy.deepcopy(reg.state_dict()))
    for _ in range(2):
        assert torch.equal(reg.penalty(), again.penalty())
    for one in (reg, again):
        one.end_task(data(2), HEADS[2])
    assert torch.equal(reg.penalty(), again.penalty())
    assert isinstance(again.covariance, Covariance)


@pytest.mark.parametrize("points", [2, 6, 12])
def test_for_a_model_linear_in_its_weights_the_two_regularisers_are_one(points):
    """Appendix D: once the points span the weights, Eq. (7) is E_q[-log q_(t-1)(w)], trace included."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    x, y = data(0)
    covariance = whole(weights_of(model), DELTA)
    reg = Relaxed(model, Gaussian(2.0), 1.0, points, 1e-11, covariance, trace_directions=99)
    reg.end_task((x, y.double()))
    moved = {name: 0.1 * torch.arange(w.numel()).double().view_as(w) + 0.2 for name, w in named_weights(model).items()}
    with torch.no_grad():
        for name, w in named_weights(model).items():
            w.add_(moved[name])
    ones = torch.cat([x, torch.ones(12, 1)], 1).double()
    precision = 2.0 * ones.T @ ones + DELTA * torch.eye(4)
    w = flat(moved.values())
    of_weights = 0.5 * float(w @ precision @ w + 4)  # Tr Sigma^-1 Sigma
    if points < 4:
        assert reg.penalty().item() < 0.9 * of_weights
    else:
        assert reg.penalty().item() == pytest.approx(of_weights, rel=1e-5)


RUN = {"tasks": 2, "epochs": 1, "batch_size": 500}


@pytest.mark.parametrize(
    "changes",
    [
        {"update": "von"},
        {"update": "von-mean"},
        {"covariance": "kronecker"},
        {"covariance": "layers"},
        {"covariance": "whole", "weights": "last-layer"},
        {"curvature_share": 0.1, "trace_directions": 1},
        {"points": "leverage"},
    ],
    ids=str,
)
def test_each_option_runs_and_goes_on_from_a_checkpoint(changes, tmp_path):
    plan = Plan.of("toy", "fromp-relaxed", **RUN, **changes)
    whole_run = Run(plan, benchmark("toy"), 0, tmp_path / "whole").complete()
    run, seen = Run(plan, benchmark("toy"), 0, tmp_path / "parts"), 0
    for progress in run.learn(checkpoint_seconds=0.0):
        seen += 1
        if progress.task == 1 and progress.step == 5:
            break
    again = Run(plan, benchmark("toy"), 0, tmp_path / "parts")
    assert again.complete().accuracy == whole_run.accuracy
    assert 8 < seen < 20


def test_von_keeps_what_training_found_of_the_covariance(tmp_path):
    run = Run(Plan.of("toy", "fromp-relaxed", **RUN, update="von-mean"), benchmark("toy"), 0, tmp_path)
    run.complete()
    found = run.method._relaxed.covariance.precision
    own = sum(share.sum() for share in run.method._von.share().values())  # of the last task
    total = sum(p.sum() for p in found.values())
    assert 0 < own < total


def candidates(size=6):
    model, (x, y) = network(), data(0, 20)
    variance = {name: 1 / (1 + 10 * torch.rand_like(w)) for name, w in weights_of(model).items()}
    return Candidates(model, Categorical(), variance, x, y, HEADS[0], size, torch.Generator().manual_seed(0))


def test_leverage_and_trace_are_their_slow_twins():
    of = candidates()
    jac = naive.jacobian(of.model, of.inputs, 20, HEADS[0])
    lam = naive.lambdas(of.model, of.inputs, of.classes, 20, of.likelihood, HEADS[0])
    v = flat(of.variance.values())
    slow = [sum(lam[i, c, c] * (jac[i, c] * v * jac[i, c]).sum() for c in range(2)) for i in range(20)]
    torch.testing.assert_close(leverage(of), torch.stack(slow), rtol=1e-8, atol=0)
    torch.testing.assert_close(trace_of_lambda(of), torch.stack([lam[i].trace() for i in range(20)]))


def test_each_centre_is_the_example_furthest_from_those_before():
    of = candidates()
    scores, jac = centres(of), naive.jacobian(of.model, of.inputs, 20, HEADS[0]).flatten(1)
    at = jac * flat(of.variance.values()).sqrt().repeat(2)
    for c in range(2):
        members = (of.classes == c).nonzero().flatten()
        order = [i for i in scores.argsort(descending=True).tolist() if scores[i] > 0 and i in members]
        assert len(order) == 3
        for k in range(1, 3):
            gaps = torch.stack([(at[members] - at[i]).square().sum(1) for i in order[:k]]).amin(0)
            assert order[k] == int(members[gaps.argmax()])


def test_mixed_points_are_half_of_the_boundary_and_half_random():
    of = candidates(8)
    by_trace = trace_of_lambda(of)
    kept = [per_class(mixed(replace(of, generator=torch.Generator().manual_seed(k))), of.classes, 8) for k in range(2)]
    for c in range(2):
        members = (of.classes == c).nonzero().flatten()
        top = set(members[by_trace[members].argsort(descending=True)[:2]].tolist())
        one, other = ({*own.tolist()} & {*members.tolist()} for own in kept)
        assert len(one) == len(other) == 4
        assert top <= one & other
    assert set(kept[0].tolist()) != set(kept[1].tolist())


def test_what_does_not_go_together_is_said(tmp_path):
    for changes, says in [
        ({"update": "von", "covariance": "kronecker"}, "update=von has a diagonal covariance"),
        ({"curvature_share": 0.5, "covariance": "whole"}, "curvature_share=0.5 is for covariance=diagonal"),
        ({"points": "leverage", "covariance": "whole"}, "points=leverage needs a diagonal covariance"),
        ({"von_beta": 0}, "von_beta must be greater than 0"),
    ]:
        with pytest.raises(FrompError, match=says):
            Run(Plan.of("toy", "fromp-relaxed", **RUN, **changes), benchmark("toy"), 0, tmp_path)
    free = Plan.of("toy", "fromp-relaxed", tasks=2, update="von", boundaries="calibrated", schedule="constant")
    with pytest.raises(FrompError, match="when a task begins"):
        run_of(free, benchmark("toy"), 0, tmp_path)
    with pytest.raises(FrompError, match=r"'0.weight' is of no linear layer"):
        Kronecker(weights_of(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3))), 1.0)


@pytest.mark.parametrize(
    ("make", "changes"),
    [
        (Diagonal, {"seed": "a"}),
        (partial(Blocks, groups=[["0.weight"]]), {"precision": [-torch.eye(1, dtype=torch.double)]}),
        (Kronecker, {"num_examples": -1}),
        (Kronecker, {"inputs": {}}),
    ],
)
def test_a_saved_covariance_that_is_none_is_refused(make, changes):
    covariance = make(weights_of(network()), DELTA)
    state = covariance.state_dict()
    if "precision" in changes:
        changes = {"precision": [-p for p in state["precision"]]}
    with pytest.raises(FrompError):
        covariance.load_state_dict({**state, **changes})
    covariance.load_state_dict(state)
    diagonal = Diagonal(weights_of(network()), DELTA)
    with pytest.raises(FrompError, match="not positive"):
        diagonal.load_state_dict({"precision": {n: -p for n, p in diagonal.precision.items()}, "seed": 0})
