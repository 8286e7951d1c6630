"""The detectors against plain loops, and their false-alarm rate against what they state."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import mannwhitneyu, norm, ttest_ind
from torch import nn

from fromp import FROMP, Calibrated, Categorical, Prediction, Welch, gp
from fromp.foundation.errors import FrompError
from fromp.lab.results.metrics import detection, threshold_range
from fromp.taskfree.detectors import Verdict
from fromp.taskfree.evidence import Evidence, distance, divergence_of, fit, jeffreys, squared_differences
from fromp.taskfree.ranks import chance_of_lower, chance_of_lower_mean, mann_whitney, rank_sum


def networks(seed=0):
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 4)) for _ in range(2)]


def evidence(model, past, size, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(size, 3, generator=generator), torch.randint(4, (size,), generator=generator)
    return Evidence(model, past.eval(), Categorical(), x, y)


def test_welch_is_scipys_averaged_over_outputs():
    model, past = networks()
    detector = Welch(threshold=100.0)
    last = None
    for place, size in enumerate([40, 40, 17, 33]):
        one = evidence(model, past, size, place)
        assert detector.examine(one) is Verdict.SAME
        squares = squared_differences(one).double().numpy()
        if last is not None:
            by_output = [ttest_ind(last[:, c], squares[:, c], equal_var=False).statistic for c in range(4)]
            assert detector.values[1] == pytest.approx(np.mean(by_output), rel=1e-10)
        last = squares


def test_welch_decides_by_its_threshold_once_armed():
    model, past = networks()
    for armed, verdict in ((True, Verdict.NEW), (False, Verdict.SAME)):
        detector = Welch(threshold=2.0)
        detector.examine(evidence(model, past, 50, 0))
        assert detector.examine(evidence(past, past, 50, 1), armed) is verdict  # they agree all of a sudden


def test_welch_takes_outputs_that_never_vary():
    model, past = networks()
    with torch.no_grad():
        for net in (model, past):
            net[3].weight[3], net[3].bias[3] = 0.0, -200.0  # a class not seen yet
    detector = Welch()
    for seed in range(2):
        detector.examine(evidence(model, past, 30, seed))
    assert math.isfinite(detector.values[1])


def test_the_signals_are_what_they_say():
    model, past = networks()
    one = evidence(model, past, 6, 0)
    p, q = (net.eval()(one.few).softmax(-1) for net in (model, past))
    assert torch.allclose(distance(one), ((p - q) ** 2).sum(-1))
    label = p[torch.arange(6), one.y]
    assert torch.allclose(fit(one), label / (1 + label))
    known = Evidence(model, past, Categorical(), one.few, one.y, examples=4, f=p.log())
    assert torch.allclose(distance(known), distance(one)[:4])
    assert torch.allclose(fit(known), fit(one))


def test_looking_leaves_the_modes_alone():
    model, past = networks()
    fit(evidence(model, past, 6, 0))
    assert all(module.training for module in model.modules())


def test_jeffreys_is_the_sum_of_two_integrals():
    p, q = norm(0.3, math.sqrt(0.5)), norm(-0.2, math.sqrt(2.0))
    kl = [quad(lambda z, a=a, b=b: a.pdf(z) * (a.logpdf(z) - b.logpdf(z)), -12, 12)[0] for a, b in ((p, q), (q, p))]
    one, other = (
        Prediction(torch.tensor([[mean]]).double(), torch.tensor([[variance]]).double())
        for mean, variance in ((0.3, 0.5), (-0.2, 2.0))
    )
    assert jeffreys(one, other).item() == pytest.approx(sum(kl), rel=1e-6)


def test_divergence_is_that_of_the_predictives():
    model, past = networks()
    one = evidence(model.eval(), past, 12, 0)
    variance = {name: torch.rand(p.shape) for name, p in model.named_parameters()}

    reg = FROMP(model, Categorical(), memory_size=4)
    reg.precision = {name: 1 / v for name, v in variance.items()}
    divergence = divergence_of(reg)

    def between(net, other):
        return divergence(Evidence(net, other, Categorical(), one.few, one.y, 5))

    assert between(model, model).tolist() == [0.0] * 5
    there = between(model, past)
    assert torch.allclose(there, between(past, model))
    now, before = (gp.predict(net, one.few[:5], Categorical(), variance) for net in (model, past))
    for b in range(5):
        outputs = [jeffreys(*(Prediction(p.mean[b, c], p.variance[b, c]) for p in (now, before))) for c in range(4)]
        assert there[b].item() == pytest.approx(sum(math.log1p(j) for j in outputs), rel=1e-4)


@pytest.mark.parametrize(("n", "r"), [(4, 1), (5, 3), (3, 6), (8, 4)])
def test_the_rank_sum_has_the_distribution_of_mann_and_whitney(n, r):
    """Every order of n + r values is a choice of the places that the r take."""
    sums = [sum(place - i for i, place in enumerate(own)) for own in itertools.combinations(range(n + r), r)]
    counted = [sum(u <= limit for u in sums) / len(sums) for limit in range(n * r // 2 + 1)]
    assert mann_whitney(n, r).tolist() == pytest.approx(counted)


@pytest.mark.parametrize("n", [10, 40, 250])
@pytest.mark.parametrize("least", [1, 4, 24])
def test_the_rank_sum_is_the_highest_allowed_of_the_fewest(n, least):
    run, highest = rank_sum(n, 5e-7, least)
    chance = mann_whitney(n, run)
    assert chance[highest] <= 5e-7 < chance[highest + 1]
    assert run == least or mann_whitney(n, run - 1)[0] > 5e-7


def watched(draw, minibatches, false_alarm, runs):
    """How often a calibrated detector raises an alarm on values drawn independently."""
    values = torch.zeros(1)

    def signal(evidence):
        return values

    detector = Calibrated(false_alarm, tests=[(signal, run) for run in runs], window=60, examples=None)
    unsampled = evidence(*networks(), 2, 0)
    alarms = 0
    for _ in range(minibatches):
        values[0] = draw()
        if detector.examine(unsampled) is Verdict.NEW:
            alarms += 1
            detector.begin_task()
    return alarms


@pytest.mark.parametrize("runs", [(2,), (2, 5)])
@pytest.mark.parametrize("name", ["normal", "cauchy", "skewed"])
def test_false_alarms_are_as_rare_as_stated_whatever_the_tails(name, runs):
    chance = random.Random(0)
    draw = {
        "normal": lambda: chance.gauss(0, 1),
        "cauchy": lambda: math.tan(math.pi * (chance.random() - 0.5)),
        "skewed": lambda: -(chance.expovariate(1.0) ** 3),
    }[name]
    minibatches, false_alarm = 30_000, 2e-3
    expected = minibatches * false_alarm
    alarms = watched(draw, minibatches, false_alarm, runs)
    assert 0.15 * expected < alarms < expected + 3 * math.sqrt(expected)


class Given:
    """Evidence that is a value itself."""

    def __init__(self, value, chance=0.0):
        self.value, self._chance = value, chance

    def chance(self, signal, minibatches):
        return self._chance


def itself(*runs):
    """A detector whose evidence is the signal."""

    def signal(evidence):
        return torch.tensor([float(evidence.value)])

    return Calibrated(tests=[(signal, run) for run in runs or (4, 12)])


def test_a_rise_raises_no_alarm_and_a_drop_does():
    detector = itself()
    chance = random.Random(1)
    for step in range(400):
        assert detector.examine(Given(step / 100 + chance.gauss(0, 1))) is not Verdict.NEW
    verdicts = [detector.examine(Given(-9.0 - step)) for step in range(4)]
    assert verdicts == [Verdict.UNSURE] * 3 + [Verdict.NEW]


def test_a_drop_that_the_task_shares_is_none():
    """The network was bad for a moment, and is so on the task's own examples: what is held back is let go."""
    detector = itself(4)
    for step in range(400):
        detector.examine(Given(math.sin(step)))
    verdicts = [detector.examine(Given(-9.0, chance=0.2)) for _ in range(4)]
    assert verdicts == [Verdict.UNSURE] * 3 + [Verdict.SAME]
    assert [detector.examine(Given(-19.0)) for _ in range(4)][-1] is Verdict.NEW


@pytest.mark.parametrize(("correlation", "weight"), [(0.5, 0.5), (0.5, 1.0), (0.9, 0.5)])
def test_weights_that_come_and_go_raise_no_alarm(correlation, weight):
    """Values of a minibatch share what the weights do; those held back are all seen by the same weights."""
    generator = torch.Generator().manual_seed(0)
    common, values, held, alarms = torch.zeros(()), torch.zeros(16), [], 0

    def signal(one):
        return one.y + common

    detector = Calibrated(1e-4, tests=[(signal, 4), (signal, 24)], window=100)
    model, past = networks()
    task = torch.randn(500, generator=generator, dtype=torch.double)
    for _ in range(3000):
        values = torch.randn(16, generator=generator, dtype=torch.double)
        batch = torch.zeros(16, 3), values
        one = Evidence(model, past, Categorical(), *batch, held=held, sample=lambda: (torch.zeros(500, 3), task))
        verdict = detector.examine(one)
        if verdict is Verdict.NEW:
            alarms += 1
            detector.begin_task()
        if verdict is Verdict.UNSURE:
            held = [*held, batch]
        else:
            noise = torch.randn((), generator=generator)
            held, common = [], correlation * common + weight * (1 - correlation**2) ** 0.5 * noise
    assert alarms <= 2


def test_the_chance_of_lower_values_is_scipys_with_ties():
    generator = torch.Generator().manual_seed(0)
    for size, shift in ((40, 0.0), (40, 0.4), (300, 0.2)):
        some = (torch.randn(size, generator=generator) - shift).mul(3).round()
        others = torch.randn(120, generator=generator).mul(3).round()
        expected = mannwhitneyu(some, others, alternative="less", use_continuity=False, method="asymptotic").pvalue
        assert chance_of_lower(some, others) == pytest.approx(expected, rel=1e-6)
    assert chance_of_lower(torch.ones(5), torch.ones(7)) == 1.0


@pytest.mark.parametrize("sizes", [(20, 200), (200, 20), (50, 50)])
def test_the_chance_of_a_lower_mean_is_never_too_small(sizes):
    """Of values that are mostly high and rarely very low, as the fit to the labels is; level by level."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(4000):
        every = torch.rand(sum(sizes), generator=generator) ** 0.2 * (
            torch.rand(sum(sizes), generator=generator) > 0.02
        )
        found.append(chance_of_lower_mean(*every.split(sizes)))
    for level in (0.3, 0.1, 0.03, 0.01):
        assert sum(one <= level for one in found) <= 4000 * level + 3 * math.sqrt(4000 * level)
    assert min(found) < 0.1  # it is no more than a bound, but it is one


def test_a_few_examples_that_are_much_worse_off_lower_the_mean_and_not_the_ranks():
    known = 0.49 + 0.01 * torch.rand(2000, generator=torch.Generator().manual_seed(0))
    doubtful = torch.cat([torch.full((30,), 0.05), torch.full((50,), 0.4999)])
    assert chance_of_lower(doubtful, known) > 1e-2
    assert chance_of_lower_mean(doubtful, known) < 1e-12
    assert chance_of_lower_mean(known, doubtful) == 1.0
    assert chance_of_lower_mean(torch.ones(4), torch.ones(9)) == 1.0


def test_the_chance_is_that_of_the_last_minibatches_against_the_sample():
    model, past = networks()
    batches = [(torch.randn(20, 3), torch.randint(4, (20,))) for _ in range(3)]
    x, y = torch.randn(90, 3), torch.randint(4, (90,))
    one = Evidence(model, past, Categorical(), *batches[2], 8, held=batches[:2], sample=lambda: (x, y))
    at = [distance(Evidence(model, past, Categorical(), *batch)) for batch in (*batches, (x, y))]
    for minibatches, doubtful in ((2, torch.cat(at[1:3])), (1, at[2])):
        both = [test(doubtful, at[3]) for test in (chance_of_lower, chance_of_lower_mean)]
        assert one.chance(distance, minibatches) == pytest.approx(min(1.0, 2 * min(both)))


@pytest.mark.parametrize("detector", [Welch(), itself()])
def test_what_is_not_finite_is_no_evidence(detector):
    model, past = networks()
    one = evidence(model, past, 20, 0)
    one.value = math.nan
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    with pytest.raises(FrompError, match=r"the minibatch\'s statistics are not finite \(.* = nan"):
        detector.examine(one)


def test_welch_passes_over_a_minibatch_of_one_example():
    model, past = networks()
    one, other = Welch(threshold=2.0), Welch(threshold=2.0)
    for detector in (one, other):
        detector.examine(evidence(model, past, 50, 0))
    assert one.examine(evidence(model, past, 1, 1)) is Verdict.SAME
    assert [d.examine(evidence(past, past, 50, 2)) for d in (one, other)] == [Verdict.NEW] * 2
    assert one.values == other.values


def test_a_small_drop_takes_a_long_run_and_is_placed_where_it_began():
    detector = itself()
    for step in range(400):
        assert detector.examine(Given(math.sin(step))) is Verdict.SAME or step > 20
    while detector._held:
        detector.examine(Given(0.9))
    verdicts = [detector.examine(Given(-0.995)) for _ in range(12)]
    assert verdicts == [Verdict.UNSURE] * 11 + [Verdict.NEW]
    assert detector.fresh == 12


def test_a_task_that_is_confirmed_late_began_with_the_first_value_as_low():
    """Four small minibatches can be too few to be sure of; those before were of the new task all the same."""
    detector = itself(4, 48)
    for step in range(400):
        detector.examine(Given(math.sin(step)))
    while detector._held:
        detector.examine(Given(0.9))
    chances = [0.2] * 7 + [0.0]
    verdicts = [detector.examine(Given(-9.0, chance)) for chance in chances]
    assert verdicts == [Verdict.UNSURE] * 7 + [Verdict.NEW]
    assert detector.fresh == 8


def test_a_doubt_outlasts_a_single_value_that_is_not_low():
    detector = itself(12)
    for step in range(400):
        detector.examine(Given(math.sin(step)))
    while detector._held:
        detector.examine(Given(0.9))
    verdicts = [detector.examine(Given(value)) for value in [-2.0, -0.5, *[-2.0] * 10]]
    assert verdicts == [Verdict.UNSURE] * 11 + [Verdict.NEW]


def test_one_outlier_is_held_back_and_then_let_go():
    detector = itself()
    for step in range(100):
        detector.examine(Given(math.sin(step)))
    assert detector.examine(Given(-5.0)) is Verdict.UNSURE
    assert detector.examine(Given(0.5)) is Verdict.SAME


@pytest.mark.parametrize("make", [Welch, Calibrated])
def test_a_restored_detector_goes_on(make):
    model, past = networks()
    one = make()
    for seed in range(60):
        one.examine(evidence(model, past, 20, seed))
    other = make()
    other.load_state_dict(one.state_dict())
    for seed in range(60, 80):
        pair = [detector.examine(evidence(past, past, 20, seed)) for detector in (one, other)]
        assert pair[0] is pair[1]
        assert one.values == other.values


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Welch(0.0), r"threshold must be positive and finite, such as 1.3 \(got 0.0\)"),
        (lambda: Welch(examples=1), "examples must be at least 2"),
        (lambda: Calibrated(1.0), r"false_alarm must be in \(0, 1\)"),
        (lambda: Calibrated(tests=[(fit, 0)]), r"runs of \[0\]"),
        (lambda: Calibrated(tests=[]), r"runs of \[\]"),
        (lambda: Calibrated(window=9), "a window of 9"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(FrompError, match=message):
        make()


def test_delays_misses_and_false_alarms_worked_out_by_hand():
    found = detection([100, 200, 300], [(50, 52), (100, 103), (150, 150), (310, 315)])
    assert found["delays"] == [3, None, 15]
    assert found["shifts"] == [0, None, 10]
    assert (found["misses"], found["false_alarms"]) == (1, 2)
    assert detection([], [(5, 5)])["false_alarms"] == 1


def test_the_range_of_thresholds_that_work():
    statistic = [9.0, 0.1, 0.4, 3.0, 0.2, 0.3, 2.0, 0.5, 0.1]
    assert threshold_range(statistic, [3, 6], first=1) == (0.5, 2.0)
