"""Streams of tasks."""

import pytest
import torch

from fromp.lab import data
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.benchmarks.streams import (
    Concatenated,
    FirstTasks,
    Permuted,
    Rotated,
    Split,
    Validation,
    one_head,
    output_a_class,
)
from fromp.lab.benchmarks.toy import TOY_VARIATIONS, Blobs
from fromp.lab.data.arrays import Arrays
from fromp.lab.engine.run import Run
from fromp.lab.results.plan import Plan


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (60, 1, 6, 6), generator=generator, dtype=torch.uint8)
    y = torch.arange(60) % 6
    return Arrays(x[:40], y[:40], x[40:], y[40:], tuple("abcdef"))


def test_blobs_lie_where_the_design_says():
    shapes = TOY_VARIATIONS["toy-sixth-task"]
    stream = Blobs(shapes, seed=3)
    assert len(stream) == 6
    for place, task in enumerate(stream):
        assert task.train is task.test
        assert len(task.train) == 4000
        for c in range(2):
            x = task.train.x[task.train.y == c]
            spread = torch.tensor(shapes.deviations[c][place])
            assert bool(((x.mean(0) - torch.tensor(shapes.centres[c][place])).abs() < 5 * spread / 2000**0.5).all())
            assert bool(((x.std(0) / spread - 1).abs() < 0.1).all())
    assert not torch.equal(stream.task(0).train.x, Blobs(shapes, seed=4).task(0).train.x)


def test_split_with_a_head_each(images):
    stream = Split(images, [[0, 1], [4, 2]])
    assert stream.num_outputs == 4
    task = stream.task(1)
    assert task.head == (2, 3)
    original = images.train_y[torch.isin(images.train_y, torch.tensor([4, 2]))]
    assert torch.equal(task.train.y, (original == 2).long())  # class 4 is 0, class 2 is 1
    assert float(task.train.x.max()) <= 1.0


def test_split_into_domains_shares_its_outputs(images):
    stream = Split(images, [[0, 1], [4, 2]], one_head)
    assert stream.num_outputs == 2
    assert stream.task(1).head is None
    original = images.train_y[torch.isin(images.train_y, torch.tensor([4, 2]))]
    assert torch.equal(stream.task(1).train.y, (original == 2).long())


def test_split_with_an_output_a_class_keeps_its_labels(images):
    stream = Split(images, [[0, 1], [2, 5]], output_a_class)
    assert stream.num_outputs == 6
    assert stream.task(1).head is None
    assert stream.task(1).train.y.unique().tolist() == [2, 5]


@pytest.mark.parametrize(
    ("name", "first_classes"),
    [
        ("split-cifar", [0, *range(100, 150, 10)]),
        ("split-cifar-11", [0, *range(100, 200, 10)]),
        ("split-cifar-100", list(range(100, 200, 10))),
    ],
)
def test_cifar_is_split_into_tens_of_consecutive_classes(monkeypatch, name, first_classes):
    def load(dataset):
        classes, lightest = {"cifar10": (10, 0), "cifar100": (100, 100)}[dataset]
        y = torch.arange(2 * classes) % classes
        x = (y + lightest).to(torch.uint8)[:, None, None, None].expand(-1, 3, 32, 32)  # the brightness tells the class
        return Arrays(x, y, x, y, tuple(map(str, range(classes))))

    monkeypatch.setattr(data, "load", load)
    stream, model = Plan.of(name, "fromp").make(seed=0)
    assert len(stream) == len(first_classes)
    assert stream.num_outputs == model(stream.task(0).train.x).shape[1] == 10 * len(first_classes)
    for place, (task, first) in enumerate(zip(stream, first_classes, strict=True)):
        assert task.head == tuple(range(10 * place, 10 * place + 10))
        for part in (task.train, task.test):
            assert len(part) == 20
            assert torch.equal((255 * part.x[:, 0, 0, 0]).round().long(), part.y + first)


def test_permutations_are_the_same_for_training_and_test_and_differ_between_tasks(images):
    stream = Permuted(images, 3, 6, seed=0)
    plain, first, second = stream
    assert torch.equal(plain.train.x, images.train_x.flatten(1).float() / 255)
    assert not torch.equal(first.train.x, second.train.x)
    same = (first.train.x.T[:, None] == plain.train.x.T[None]).all(-1)  # which pixel became which
    assert bool((same.sum(0) == 1).all())
    assert torch.equal(first.test.x, plain.test.x[:, same.float().argmax(1)])
    assert torch.equal(Permuted(images, 3, 6, seed=0).task(2).train.x, second.train.x)


@pytest.mark.parametrize(
    "stream",
    [
        lambda images: Split(images, [[0, 1], [2, 3]]),
        lambda images: Permuted(images, 2, 6, seed=0),
        lambda images: Rotated(images, [0.0, 30.0], 6),
    ],
    ids=["split", "permuted", "rotated"],
)
def test_inputs_that_are_floats_already_are_not_scaled_again(images, stream):
    for of_bytes, of_floats in zip(stream(images), stream(images.floats()), strict=True):
        assert torch.equal(of_floats.train.x, of_bytes.train.x)
        assert torch.equal(of_floats.test.x, of_bytes.test.x)


def test_rotation_by_a_quarter_is_exact(images):
    stream = Rotated(images, [0, 90], 6)
    upright, turned = stream
    torch.testing.assert_close(upright.train.x, images.train_x.float() / 255, atol=1e-5, rtol=0)
    torch.testing.assert_close(turned.train.x, torch.rot90(upright.train.x, 1, (2, 3)), atol=1e-5, rtol=0)


def test_a_chain_puts_heads_side_by_side(images):
    stream = Concatenated([Split(images, [[0, 1, 2]]), Split(images, [[0, 1], [2, 3]])])
    assert (len(stream), stream.num_outputs) == (3, 7)
    assert [task.head for task in stream] == [(0, 1, 2), (3, 4), (5, 6)]
    assert len(FirstTasks(stream, 2)) == 2


def test_validation_takes_from_the_training_data_alone(images):
    whole = Split(images, [[0, 1], [2, 3]])
    stream = Validation(whole, 0.25, seed=0)
    for before, after in zip(whole, stream, strict=True):
        assert len(after.test) == round(0.25 * len(before.train))
        assert len(after.train) + len(after.test) == len(before.train)
        together = torch.cat([after.train.x, after.test.x]).flatten(1)
        assert torch.equal(together.sum(1).sort().values, before.train.x.flatten(1).sum(1).sort().values)


def test_a_setting_asks_for_validation():
    stream, _ = Plan.of("split-digits", "fromp", validation=0.2).make(0)
    plain, _ = Plan.of("split-digits", "fromp").make(0)
    assert len(stream.task(0).train) + len(stream.task(0).test) == len(plain.task(0).train)


def test_digits_forget_less_with_fromp(tmp_path):
    """The newcomer's benchmark, without any download: seconds, and clearly less forgetting than plain training."""
    forgotten = {}
    for method in ("fromp", "finetune"):
        plan = Plan.of("permuted-digits", method, tasks=3, epochs=20)
        run = Run(plan, BENCHMARKS["permuted-digits"], 0, tmp_path / method)
        forgotten[method] = run.complete().forgetting
    assert forgotten["fromp"] < 0.5 * forgotten["finetune"]


def test_held_out_images_are_the_same_in_all_guises(images):
    """Else an image that is learned upright would be tested turned."""
    for stream in (Permuted(images, 3, 6, seed=0), Rotated(images, [0.0, 30.0], 6)):
        whole, held_out = stream.task(1).train, Validation(stream, 0.25, seed=1)
        places = [_places(part.x, stream.task(0).train.x) for part in (held_out.task(0).train, held_out.task(0).test)]
        assert torch.equal(held_out.task(1).train.x, whole.x[places[0]])
        assert torch.equal(held_out.task(1).test.x, whole.x[places[1]])


def _places(some, every):
    return [int((every == x).flatten(1).all(1).nonzero()) for x in some]
