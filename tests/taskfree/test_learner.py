"""A learner that is not told where tasks begin: it finds out, and then does what one that is told does."""

import contextlib
import itertools
import json
from pathlib import Path

import pytest
import torch
from reliability.damage import damaged
from torch import nn

from fromp import FROMP, Calibrated, Categorical, CheckpointError, Gaussian, TaskFree, Welch
from fromp.derivatives.model import trainable
from fromp.foundation import storage
from fromp.foundation.errors import FrompError
from fromp.foundation.examples import TensorExamples
from fromp.foundation.state import flatten
from fromp.gp import ggn_diagonal
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.cli import main
from fromp.lab.engine.run import run_of
from fromp.lab.methods.bounds import Joint
from fromp.lab.methods.quadratic import EWC
from fromp.lab.results.plan import Plan
from fromp.taskfree.detectors import Detector, Verdict
from fromp.taskfree.reservoir import Reservoir, Sample, hashes

PER_TASK = 120


class Never(Detector):
    """Finds nothing."""

    names = ()

    def begin_task(self):
        pass

    def examine(self, evidence, armed=True):
        return Verdict.SAME

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def stream(tasks=3):
    """Blobs that move to another place with each task, single-headed, in minibatches of new examples."""
    generator = torch.Generator().manual_seed(0)
    for task in range(tasks):
        angle = torch.tensor(2.0 * task)
        centre = 3 * torch.stack([angle.cos(), angle.sin()])
        for _ in range(PER_TASK):
            y = torch.randint(2, (16,), generator=generator)
            x = torch.randn(16, 2, generator=generator) * 0.5 + centre + (2 * y[:, None] - 1) * torch.tensor([0.0, 1.0])
            yield x, y


on_divergence = Calibrated.on_divergence


def learner(detector=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    reg = FROMP(model, Categorical(), tau=1.0, memory_size=10, prior_precision=1e-3, jitter=1e-3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    detector = detector(reg) if detector is on_divergence else detector
    return TaskFree(reg, optimizer, detector, **{"reservoir": 300, "min_task_examples": 100, **options})


def other_kind(method=FROMP, optimizer=torch.optim.Adam, hidden=16, layers=3):
    model = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))[:layers]
    one = EWC(model, Categorical(), 1.0) if method is EWC else FROMP(model, Categorical(), memory_size=10)
    return TaskFree(one, optimizer(model.parameters(), 1e-2), reservoir=300, min_task_examples=100)


def weights(one):
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


def test_it_finds_the_tasks_and_equals_one_that_is_told_of_them():
    alone, told = learner(), learner(Never(None))
    for place, (x, y) in enumerate(stream()):
        if place and place % PER_TASK == 0:
            told.end_task()
        alone.observe(x, y)
        told.observe(x, y)
    alone.end_task()
    told.end_task()
    assert [found.begins for found in alone.boundaries] == [PER_TASK, 2 * PER_TASK, 3 * PER_TASK]
    assert torch.equal(weights(alone), weights(told))
    for a, b in zip(alone.regulariser.memories, told.regulariser.memories, strict=True):
        assert torch.equal(a.inputs, b.inputs)
    assert all(
        torch.equal(alone.regulariser.precision[name], told.regulariser.precision[name])
        for name in told.regulariser.precision
    )


def test_nothing_is_learned_from_a_minibatch_in_doubt():
    one = learner()
    for place, (x, y) in enumerate(stream(2)):
        before = weights(one)
        kept = len(one.reservoir)
        verdict = one.observe(x, y)
        assert torch.equal(before, weights(one)) == (verdict is Verdict.UNSURE)
        if verdict is Verdict.UNSURE:
            assert len(one.reservoir) == kept
        if verdict is Verdict.NEW:
            assert place > PER_TASK
            assert len(one.reservoir) == 16 * (place + 1 - PER_TASK)  # what was held back belongs to the new task
    assert len(one.boundaries) == 1


def test_the_old_task_is_remembered_at_the_weights_before_the_new_one():
    one, at_end = learner(), {}
    end_task = one.regulariser.end_task

    def spy(sample, head=None):
        at_end["weights"], at_end["sample"] = weights(one), sample.x.clone()
        end_task(sample, head)

    one.regulariser.end_task = spy
    for place, (x, y) in enumerate(stream(2)):
        one.observe(x, y)
        if place == PER_TASK - 1:
            last = weights(one)
    assert torch.equal(at_end["weights"], last)
    old = torch.cat([x for place, (x, _) in enumerate(stream(2)) if place < PER_TASK])
    assert all(bool((old == row).all(1).any()) for row in at_end["sample"])


def test_a_loop_of_ones_own_gets_the_same_minibatches():
    one, own = learner(), learner()
    for x, y in stream(2):
        one.observe(x, y)
        for a, b in own.admit(x, y):
            own.optimizer.zero_grad()
            (nn.functional.cross_entropy(own.model(a), b) + own.regulariser.penalty()).backward()
            own.optimizer.step()
    assert own.boundaries == one.boundaries
    assert torch.allclose(weights(one), weights(own), atol=1e-6)


def test_what_is_held_back_can_be_had_for_a_loop_of_ones_own():
    one = learner()
    for place, (x, y) in enumerate(stream(2)):
        if place == PER_TASK + 2:
            break
        list(one.admit(x, y))
    assert one.verdict is Verdict.UNSURE
    assert len(list(one.release())) >= 2
    assert not list(one.release())


def test_the_caller_may_fill_the_same_tensors_again():
    one, other = learner(), learner()
    x, y = torch.empty(16, 2), torch.empty(16, dtype=torch.long)
    for a, b in stream(2):
        one.observe(a, b)
        other.observe(x.copy_(a), y.copy_(b))
    assert one.boundaries == other.boundaries
    assert torch.equal(weights(one), weights(other))


def test_looking_is_without_dropout():
    """The two networks are the same before the first step: their distance is 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    reg = FROMP(model, Categorical(), memory_size=10, jitter=1e-3)
    one = TaskFree(reg, torch.optim.Adam(model.parameters(), 1e-2))
    x, y = next(stream())
    one.observe(x, y)
    assert one.detector.values[0] == 0.0
    one.observe(x, y)
    assert one.detector.values[0] > 0.0


@pytest.mark.parametrize("lr", [1e-2, 1e-3])
def test_regression_finds_its_change_and_no_other(lr):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 1))
    reg = FROMP(model, Gaussian(), tau=1.0, memory_size=50, jitter=1e-2)
    one = TaskFree(reg, torch.optim.Adam(model.parameters(), lr))
    for place in range(500):
        x = torch.randn(32, 2)
        y = torch.sin(x.sum(1, keepdim=True)) + 0.1 * torch.randn(32, 1)
        one.observe(x, y if place < 450 else -y)
    assert [found.begins for found in one.boundaries] == [450]


def test_a_minibatch_in_doubt_leaves_batch_statistics_alone():
    one = learner()
    norm = nn.BatchNorm1d(16)
    model = nn.Sequential(one.model[0], norm, *one.model[1:])
    two = TaskFree(FROMP(model, Categorical(), memory_size=10, jitter=1e-3), torch.optim.Adam(model.parameters(), 1e-2))
    for x, y in stream(2):
        before = norm.running_mean.clone()
        verdict = two.observe(x, y)
        assert torch.equal(before, norm.running_mean) == (verdict is Verdict.UNSURE)


@pytest.mark.parametrize(
    ("detector", "stop", "tasks"),
    [
        (None, 50, 3),
        (None, PER_TASK + 2, 3),  # in doubt
        (None, PER_TASK + 40, 3),  # with a past
        (on_divergence, PER_TASK + 40, 2),  # for these blobs it is too weak to find more than one
    ],
)
def test_saved_and_loaded_it_goes_on_bit_for_bit(tmp_path, detector, stop, tasks):
    one, other = learner(detector), learner(detector, seed=0)
    for place, (x, y) in enumerate(stream(3)):
        if place == stop:
            one.save(tmp_path)
            with torch.no_grad():
                other.model[0].weight += 1.0
            other.load(tmp_path)
        one.observe(x, y)
        if place >= stop:
            other.observe(x, y)
            assert torch.equal(weights(one), weights(other))
    assert one.boundaries == other.boundaries
    assert len(one.boundaries) == tasks - 1
    for a, b in zip(one.regulariser.memories, other.regulariser.memories, strict=True):
        assert torch.equal(a.inputs, b.inputs)


def test_tied_weights_and_inputs_that_are_labels_can_be_saved(tmp_path):
    def autoencoder():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
        model[2].weight = model[0].weight
        reg = FROMP(model, Gaussian(), memory_size=10, jitter=1e-2)
        return TaskFree(reg, torch.optim.Adam(model.parameters(), 1e-2), reservoir=300, min_task_examples=100)

    one, other = autoencoder(), autoencoder()
    for place, (x, _) in enumerate(stream(2)):
        if place == PER_TASK + 2:
            assert one.verdict is Verdict.UNSURE
            one.save(tmp_path)
            other.load(tmp_path)
        one.observe(x, x)
        if place >= PER_TASK + 2:
            other.observe(x, x)
    assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: learner(Welch()), "was saved with detector's kind Calibrated, this learner has Welch"),
        (lambda: learner(on_divergence), "detector's values"),
        (lambda: learner(seed=1), "reservoir's seed 0, this learner has 1"),
        (lambda: learner(reservoir=200), "reservoir's size 300, this learner has 200"),
        (lambda: other_kind(method=EWC), "regulariser's kind FROMP, this learner has EWC"),
        (lambda: other_kind(optimizer=torch.optim.SGD), "optimiser's kind Adam, this learner has SGD"),
        (lambda: other_kind(hidden=8), r"the model's 0.weight of shape \[16, 2\], this learner has \[8, 2\]"),
        (lambda: other_kind(layers=1), r"the model's 2.weight of shape \[2, 16\], this learner has None"),
    ],
)
def test_another_kind_of_learner_is_refused_and_left_alone(tmp_path, make, message):
    one = learner()
    for x, y in stream(1):
        one.observe(x, y)
    one.save(tmp_path)
    other = make()
    before = weights(other)
    with pytest.raises(CheckpointError, match=message):
        other.load(tmp_path)
    assert torch.equal(weights(other), before)


def test_the_divergence_gets_the_precision_of_the_past():
    seen = []
    one = learner(on_divergence)
    variance = one.regulariser.variance
    one.regulariser.variance = lambda names: seen.append(variance(names)) or seen[-1]
    for place, (x, y) in enumerate(stream(2)):
        if place == PER_TASK:
            one.end_task()
            before = len(seen)
        one.observe(x, y)
    assert all(torch.allclose(v, torch.tensor(1e3)) for v in seen[before - 1].values())
    assert all(torch.equal(seen[-1][name], 1 / precision) for name, precision in one.regulariser.precision.items())


def test_the_divergence_needs_a_regulariser_with_a_precision():
    with pytest.raises(FrompError, match="EWC keeps no precision of the weights"):
        Calibrated.on_divergence(EWC(nn.Linear(2, 2), Categorical(), 1.0))


def test_another_folder_is_refused(tmp_path):
    learner().regulariser.save(tmp_path)
    with pytest.raises(CheckpointError, match="holds 'fromp', not 'task-free'"):
        learner().load(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: learner(reservoir=50), "reservoir=50 is smaller than min_task_examples=100"),
        (
            lambda: learner(reservoir=5, min_task_examples=5),
            "memory_size=10 is larger than min_task_examples=5",
        ),
        (lambda: TaskFree(Joint(nn.Linear(2, 2), Categorical(), 2), None), "Joint needs to know when a task begins"),
        (lambda: learner().end_task(), "the reservoir is empty"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(FrompError, match=message):
        make()


def test_a_reservoir_of_one_is_impossible():
    with pytest.raises(FrompError, match="a reservoir must hold at least 2 examples"):
        Reservoir(1)


def test_the_reservoir_is_bounded_and_uniform():
    """Every example is as likely to be kept, whenever it came and however often it was shown."""
    counts = torch.zeros(200)
    for seed in range(400):
        reservoir = Reservoir(20, seed)
        for start in range(0, 200, 10):
            x = torch.arange(start, start + 10).float()[:, None]
            reservoir.add(x, torch.zeros(10))
            if start >= 100:
                reservoir.add(x, torch.zeros(10))
            assert len(reservoir) <= 20
        sample = reservoir.sample()
        assert len(sample.x.unique()) == 20
        counts[sample.x.flatten().long()] += 1
    assert counts.sum() == 400 * 20
    deviation = (counts - 40) / (40 * 0.9) ** 0.5
    assert deviation.abs().max() < 4.5
    assert deviation[:100].mean().abs() < 0.4


def test_the_number_of_distinct_examples_is_estimated():
    reservoir = Reservoir(400, seed=3)
    reservoir.add(torch.arange(300.0)[:, None], torch.zeros(300))
    assert reservoir.distinct == 300
    for _ in range(2):
        reservoir.add(torch.arange(8000.0)[:, None], torch.zeros(8000))
    assert reservoir.distinct == pytest.approx(8000, rel=4 / 400**0.5)
    assert reservoir.sample().weight * 400 == pytest.approx(reservoir.distinct)


def test_hashes_are_uniform_and_tell_rows_apart():
    x = torch.arange(20_000.0)[:, None]
    numbers = hashes([x, torch.zeros(20_000, dtype=torch.long)], seed=0)
    assert len(numbers.unique()) == 20_000
    assert ((numbers > 0) & (numbers < 1)).all()
    counts = torch.histc(numbers, 20, 0.0, 1.0)
    assert ((counts - 1000) / 1000**0.5).abs().max() < 4.5
    assert torch.equal(numbers[5:9], hashes([x[5:9], torch.zeros(4, dtype=torch.long)], seed=0))
    assert not torch.equal(numbers[5:9], hashes([x[5:9], torch.ones(4, dtype=torch.long)], seed=0))
    assert len(hashes([torch.tensor([[True, False], [False, True]])], seed=1).unique()) == 2


def test_a_sample_stands_for_the_whole():
    model = nn.Linear(2, 3)
    x, y = torch.randn(10, 2), torch.arange(10) % 3
    names = trainable(model)
    whole = ggn_diagonal(model, names, TensorExamples(x.repeat(4, 1), y.repeat(4)), Categorical())
    sampled = ggn_diagonal(model, names, Sample(x, y, weight=4.0), Categorical())
    assert all(torch.allclose(whole[name], sampled[name]) for name in names)


SETTINGS = {"tasks": 3, "epochs": 3, "schedule": "constant"}


@pytest.mark.parametrize("boundaries", ["calibrated", "welch"])
def test_a_run_taken_up_again_ends_where_it_would_have(tmp_path, boundaries):
    threshold = {"threshold": 0.9} if boundaries == "welch" else {}
    plan = Plan.of("permuted-digits", "fromp", boundaries=boundaries, **SETTINGS, **threshold)

    def learn(path, deaths):
        for last in [*deaths, None]:
            run, steps = run_of(plan, BENCHMARKS["permuted-digits"], 0, path), iter(range(10_000))

            for _ in run.learn(checkpoint_seconds=0.05):
                if next(steps) == last:
                    break
        return (
            run.result(),
            flatten(storage.read(path / "checkpoint", "run"))[0],
            flatten(storage.read(path / "trace", "trace")),
        )

    whole, tensors, trace = learn(tmp_path / "whole", [])
    again, tensors_again, trace_again = learn(tmp_path / "again", [90, 70, 80])
    assert again.accuracy == whole.accuracy
    assert again.boundaries == whole.boundaries
    assert tensors.keys() == tensors_again.keys()
    assert all(torch.equal(tensors[name], tensors_again[name]) for name in tensors)
    assert torch.equal(trace[0]["values"], trace_again[0]["values"])
    assert len(trace[0]["values"]) == 3 * 135
    assert whole.boundaries["misses"] == 0
    if boundaries == "calibrated":
        assert whole.boundaries["shifts"] == [0, 0]
        assert whole.boundaries["false_alarms"] == 0


@pytest.mark.parametrize(
    ("chosen", "detector", "misses"),
    [([], "calibrated", 0), (["--set", "boundaries=divergence"], "divergence", 1)],  # which needs a longer task
)
def test_the_command_line(tmp_path, chosen, detector, misses):
    arguments = ["run", "permuted-digits", "--task-free", "--tasks", "2", "--epochs", "2", "--quiet", *chosen]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["settings"]["boundaries"] == detector
    boundaries = found["runs"][0]["boundaries"]
    assert (boundaries["true"], boundaries["misses"], boundaries["false_alarms"]) == ([90], misses, 0)
    assert len(found["runs"][0]["accuracy"]) == 2
    assert found["runs"][0]["task_largest_norm"] == [None, None]
    assert Path(tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["split-digits", "--task-free"], "choose a benchmark with one head for all tasks"),
        (["permuted-digits", "--task-free", "--set", "schedule=linear-decay"], "use schedule=constant"),
        (["permuted-digits", "--task-free", "--set", "late-lr=0.1"], "late_lr=0.1 needs tasks that are announced"),
        (["permuted-digits", "--task-free", "--method", "joint"], "joint needs to know when a task begins"),
        (["permuted-digits", "--task-free", "--set", "boundaries=welsh"], "did you mean 'welch'?"),
        (["permuted-digits", "--task-free", "--set", "false_alarm=2"], "false_alarm must be less than 1 (got 2)"),
        (["permuted-digits", "--task-free", "--set", "reservoir=20"], "at least memory=50"),
        (["permuted-digits", "--task-free", "--set", "boundaries=given"], "contradict each other"),
    ],
)
def test_wrong_commands(arguments, message, tmp_path, capsys):
    assert main(["run", *arguments, "--quiet", "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_detectors_are_public():
    assert isinstance(TaskFree(FROMP(nn.Linear(2, 2), Categorical()), None).detector, Calibrated)
    assert Welch().threshold == 1.3


def test_a_damaged_state_is_refused_before_anything_changes_or_is_harmless(tmp_path):
    """With hashes that fit: our error, or a learner that goes on; never another error."""
    one, refused, wrong = learner(), 0, []
    for x, y in stream(1):
        one.observe(x, y)
    one.end_task()
    for x, y in itertools.islice(stream(2), 20):
        one.observe(x, y)
    one.save(tmp_path / "sound")
    state = storage.read(tmp_path / "sound", "task-free")
    for number in range(120):
        broken, what = damaged(state, number)
        if broken is None:
            continue
        other = learner(seed=0)
        before = weights(other).clone()
        storage.write(tmp_path / "broken", "task-free", broken)
        try:
            other.load(tmp_path / "broken")
        except FrompError:
            refused += 1
            assert torch.equal(before, weights(other)), what
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__} {error}")
        else:
            with contextlib.suppress(FrompError):
                other.observe(*next(iter(stream(1))))
    assert not wrong, "\n".join(wrong)
    assert refused > 60


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("detector", "recent", [[0.1]]), ("detector", "recent", [["a", "b"]]), ("detector", "runs", [{"signal": 9}]),
        ("detector", "age", -1), ("reservoir", "hashes", torch.tensor([2.0])), ("reservoir", "sample", [1, 2]),
        (None, "held", [[torch.ones(2, 2), torch.ones(1)]]), (None, "boundaries", [[5, 2]]), (None, "seen", "many"),
        (None, "past", {}), (None, "optimizer", {"0": {"exp_avg": torch.ones(3)}}),
        (None, "optimizer", {str(n): {"step": torch.tensor(-1.0)} for n in range(6)}),
    ],
)  # fmt: skip
def test_each_part_of_a_state_is_checked(part, key, value):
    one = learner()
    for x, y in itertools.islice(stream(1), 20):
        one.observe(x, y)
    state = one.state_dict()
    (state if part is None else state[part])[key] = value
    with pytest.raises(FrompError):
        learner().load_state_dict(state)


def test_moments_of_welch_are_checked():
    detector = Welch()
    for last in ([[0.1], [0.2]], [[0.1], ["a"], 5], [[0.1], [0.2, 0.3], 5], [[0.1], [0.2], 0]):
        with pytest.raises(FrompError):
            detector.load_state_dict({"last": last})
    detector.load_state_dict({"last": [[0.1], [0.2], 5]})
