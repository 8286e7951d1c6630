"""Which examples are kept, and that nothing else is."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fromp import FROMP, Bernoulli, Categorical, Gaussian, least_memorable, memorability, per_class, random_score, top
from fromp.memory import assess
from fromp.model import detached, trainable
from fromp.tape import activation_bytes


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 4)


def task(n=40, classes=4):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 3, generator=generator), torch.arange(n) % classes


def test_the_highest_traces_within_each_class():
    model, (x, y) = linear(), task()
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task((x, y))
    p = model(x).softmax(-1).detach()
    trace = (p - p * p).sum(-1)
    memory = reg.memories[0]
    for c in range(4):
        expected = trace[y == c].sort(descending=True).values[:2]
        torch.testing.assert_close(memory.scores[memory.labels == c], expected)


def test_top_takes_the_highest_of_all():
    model, (x, y) = linear(), task()
    reg = FROMP(model, Categorical(), memory_size=5, select=top)
    reg.end_task((x, y))
    generator = torch.Generator()
    trace = memorability(Categorical(), model(x).detach(), y, generator)
    torch.testing.assert_close(reg.memories[0].scores, trace.sort(descending=True).values[:5])


def test_least_memorable_is_the_other_end():
    model, (x, y) = linear(), task()
    most, least = (FROMP(model, Categorical(), memory_size=4, score=s) for s in (memorability, least_memorable))
    most.end_task((x, y))
    least.end_task((x, y))
    assert float(most.memories[0].scores.min()) > float(-least.memories[0].scores.max())


def test_scores_of_ones_own():
    model, (x, y) = linear(), task()
    reg = FROMP(model, Categorical(), memory_size=4, select=top)
    wanted = torch.zeros(len(y))
    wanted[[3, 7, 11, 30]] = 1.0
    reg.end_task((x, y), scores=wanted)
    torch.testing.assert_close(reg.memories[0].inputs, x[[3, 7, 11, 30]])


def test_random_scores_depend_on_the_seed_alone():
    model, (x, y) = linear(), task()
    picks = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(picks))  # the global random state must not matter
        reg = FROMP(model, Categorical(), memory_size=8, score=random_score, seed=seed)
        reg.end_task((x, y))
        picks.append(reg.memories[0].inputs)
    assert torch.equal(picks[0], picks[1])
    assert not torch.equal(picks[0], picks[2])


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [([10, 10], 4, [2, 2]), ([10, 10, 10], 7, [3, 2, 2]), ([1, 10, 10], 9, [1, 4, 4]), ([2, 1, 3], 6, [2, 1, 3])],
)
def test_even_shares(counts, size, expected):
    classes = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    picked = per_class(torch.arange(len(classes)).float(), classes, size)
    assert [int((classes[picked] == c).sum()) for c in range(len(counts))] == expected


def test_regression_has_one_class_and_bernoulli_two():
    generator = torch.Generator()
    model = nn.Linear(3, 1)
    from fromp.examples import as_examples

    x, _ = task()
    _, classes = assess(model, as_examples((x, torch.randn(40))), Gaussian(), generator)
    assert classes.unique().tolist() == [0]
    _, classes = assess(model, as_examples((x, torch.arange(40) % 2)), Bernoulli(), generator)
    assert classes.unique().tolist() == [0, 1]


class Pairs(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@pytest.mark.parametrize(
    "give",
    [
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        TensorDataset,
        Pairs,
        lambda x, y: DataLoader(Pairs(x, y), batch_size=7, shuffle=True, drop_last=True),
    ],
    ids=["tuple", "list", "TensorDataset", "Dataset", "DataLoader"],
)
def test_every_way_to_give_a_task_gives_the_same(give):
    model, (x, y) = linear(), task()
    expected, reg = (FROMP(model, Categorical(), memory_size=8) for _ in range(2))
    expected.end_task((x, y))
    reg.end_task(give(x, y))
    torch.testing.assert_close(reg.memories[0].inputs, expected.memories[0].inputs)
    for name, value in expected.precision.items():
        torch.testing.assert_close(reg.precision[name], value)


def test_the_dataset_is_let_go():
    model, (x, y) = linear(), task()
    dataset = Pairs(x, y)
    watch, storage = weakref.ref(dataset), weakref.ref(dataset.x)
    reg = FROMP(model, Categorical(), memory_size=8)
    reg.end_task(dataset)
    del dataset, x
    gc.collect()
    assert watch() is None
    assert storage() is None
    assert reg.memories[0].inputs.untyped_storage().nbytes() == 8 * 3 * 4


def test_all_of_a_small_memory_goes_through_the_network_at_once():
    """Its size is measured on a few rows, which must not be taken for the tensor they are a part of."""
    torch.manual_seed(0)
    reg = FROMP(nn.Linear(50, 2), Categorical(), memory_size=100)
    for task in range(4):
        reg.end_task((torch.randn(2000, 50) + task, torch.arange(2000) % 2))
    assert [block.tasks.tolist() for block in reg._prior.blocks] == [[0, 1, 2, 3]]
    few = reg.memories[0].inputs[:2]
    weights = detached(reg.model, trainable(reg.model))
    assert activation_bytes(reg.model, weights, few, None) == activation_bytes(reg.model, weights, few.clone(), None)
