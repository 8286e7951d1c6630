"""MixedPast in the laboratory: it looks at the minibatch that a step trains on."""

import pytest
import torch
from oracles.small import HEADS, data, move, network
from torch import nn

from fromp import Categorical, FrompError, MixedPast
from fromp.lab.benchmarks.catalogue import benchmark
from fromp.lab.engine.run import run_of
from fromp.lab.methods import method as card
from fromp.lab.methods.mixed_past import AtPresentBatch
from fromp.lab.results.plan import Plan


@pytest.mark.parametrize("noisy", [False, True], ids=["one pass", "dropout"])
def test_a_step_descends_the_loss_of_three_lines(noisy):
    model = nn.Sequential(*network(), *([nn.Dropout(0.5)] if noisy else []))
    method = AtPresentBatch(MixedPast(model, Categorical(), 4, 0.3, 0.5, points_per_step=8))
    for task in range(2):
        method.end_task(data(task), HEADS[task])
    move(model, 0.3)
    (x, y), passes = data(2), []
    draws = method.regulariser._generator.get_state()
    method.loss([(x, y, HEADS[2])])  # the first one finds out whether one pass will do
    method.regulariser._generator.set_state(draws)
    model.register_forward_pre_hook(lambda model, given: passes.append((len(given[0]), model.training)))
    torch.manual_seed(1)
    loss = method.loss([(x, y, HEADS[2])])
    assert passes == ([(12, True), (8 + 12, False)] if noisy else [(12, True), (8, False)])
    method.regulariser._generator.set_state(draws)
    torch.manual_seed(1)
    assert loss.data.item() == method.data_loss([(x, y, HEADS[2])]).item()
    assert loss.penalty.item() == pytest.approx(method.regulariser.penalty(x, HEADS[2]).item(), rel=1e-12)


def test_one_pass_with_dropout_if_it_is_wanted():
    model = nn.Sequential(*network(), nn.Dropout(0.5))
    plain = Plan.of("toy", "mixed-past").settings
    for one_pass, students in ((False, [(12, True), (8 + 12, False)]), (True, [(12, True), (8, False)])):
        plain.memory, plain.points_per_step, plain.one_pass = 4, 8, one_pass
        method = card("mixed-past").build(model, Categorical(), plain, 0)
        method.end_task(data(0), HEADS[0])
        (x, y), passes = data(1), []
        method.loss([(x, y, HEADS[1])])
        hook = model.register_forward_pre_hook(lambda m, given, to=passes: to.append((len(given[0]), m.training)))
        method.loss([(x, y, HEADS[1])])
        hook.remove()
        assert passes == students


def test_the_points_themselves_instead_of_their_mixtures():
    settings, passes = Plan.of("toy", "mixed-past", mixtures=False, label_strength=1.0).settings, []
    settings.memory, settings.points_per_step = 4, 8
    method = card("mixed-past").build(network(), Categorical(), settings, 0)
    method.end_task(data(0), HEADS[0])
    remembered = {tuple(point.tolist()) for point in method.memories[0].inputs}
    (x, y) = data(1)
    method.loss([(x, y, HEADS[1])])
    method.model.register_forward_pre_hook(lambda m, given: passes.append(given[0]))
    method.loss([(x, y, HEADS[1])])
    batch, drawn = passes
    assert (len(batch), len(drawn)) == (12, 8 + 4)  # and half as many for their labels
    assert {tuple(point.tolist()) for point in drawn} <= remembered


def test_it_learns_where_boundaries_are_not_given(tmp_path):
    """The same stream with and without them; the penalty of one head needs no minibatch."""
    changes = {"tasks": 2, "epochs": 3, "lr": 0.03, "schedule": "constant"}
    found = Plan.of("toy", "mixed-past", **changes, boundaries="calibrated")
    run = run_of(found, benchmark("toy"), 0, tmp_path / "found")
    boundaries = run.complete().boundaries
    assert (boundaries["misses"], boundaries["false_alarms"]) == (0, 0)
    assert [len(memory) for memory in run.method.memories] == [20]
    assert run.method.regulariser.penalty().item() > 0


def test_points_that_need_all_data_are_refused_where_boundaries_are_found(tmp_path):
    plan = Plan.of("toy", "mixed-past", points="medoids", boundaries="calibrated", schedule="constant")
    with pytest.raises(FrompError, match="points=medoids needs all data of a task"):
        run_of(plan, benchmark("toy"), 0, tmp_path)
