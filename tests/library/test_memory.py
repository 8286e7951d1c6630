"""Which examples are kept, and that nothing else is."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fromp import FROMP, Bernoulli, Categorical, Gaussian, least_memorable, memorability, per_class, random_score, top
from fromp.derivatives.budget import activation_bytes
from fromp.derivatives.model import detached, trainable
from fromp.foundation.errors import FrompError
from fromp.memory import assess


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
    wanted[[3, 7, 11, 30]] = torch.tensor([4.0, 3.0, 2.0, 1.0])
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
    from fromp.foundation.examples import as_examples

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


def test_equal_scores_are_not_kept_in_the_order_of_the_data():
    """In regression all scores are equal, and data is often sorted."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 500)[:, None]
    reg = FROMP(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), Gaussian(4.0), memory_size=50, jitter=1e-2)
    reg.end_task((x, x.square()))
    kept = reg.memories[0].inputs.flatten()
    assert len(kept.unique()) == 50
    counts = kept.histc(5, -1, 1)
    assert counts.min() >= 4
    for select in (per_class, top):
        chosen = select(torch.ones(500), torch.zeros(500, dtype=torch.long), 50)
        assert chosen.float().mean() == pytest.approx(250, abs=60)


def test_a_task_can_be_forgotten():
    def remembering():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4))
        reg = FROMP(model, Categorical(), memory_size=6, jitter=1e-2)
        for task in range(3):
            x = torch.randn(20, 3, generator=torch.Generator().manual_seed(task)) + task
            reg.end_task((x, torch.arange(20) % 2), head=[2 * (task % 2), 2 * (task % 2) + 1])
        return model, reg

    model, reg = remembering()
    kept = [memory.inputs.clone() for memory in reg.memories]
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1
    each = [0.5 * reg.tau * reg._prior.squared_distance(model, torch.tensor([s])).item() for s in range(3)]
    reg.forget(1)
    assert [torch.equal(memory.inputs, kept[s]) for memory, s in zip(reg.memories, (0, 2), strict=True)] == [True, True]
    assert reg.penalty().item() == pytest.approx(each[0] + each[2], rel=1e-5)
    assert len(reg.drift()) == 2
    held = reg._prior.blocks[0].inputs  # of both: the points of the one that is gone are nowhere any more
    assert [memory.inputs.untyped_storage().nbytes() for memory in reg.memories] == [held.nbytes] * 2
    for wrong in (2, -1):
        with pytest.raises(FrompError, match=f"no task {wrong} to forget: 2 are remembered"):
            reg.forget(wrong)
    reg.end_task((torch.randn(20, 3), torch.arange(20) % 2), head=[0, 1])
    assert len(reg.memories) == len(reg.drift()) == 3
    for _ in range(3):
        reg.forget(0)
    assert reg.penalty().item() == 0


def test_what_is_saved_is_what_holds_the_network(tmp_path):
    """`memories` is a view that cannot be edited: `forget` is the one way to remove something."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    reg = FROMP(model, Categorical(), memory_size=6, jitter=1e-2)
    for task in range(3):
        reg.end_task((torch.randn(20, 3) + task, torch.arange(20) % 2))
    with pytest.raises((TypeError, AttributeError)):
        del reg.memories[0]
    with pytest.raises(AttributeError):
        reg.memories = ()
    with pytest.raises(FrompError, match="no task 3 to forget: 3 are remembered"):
        reg.forget(3)
    with pytest.raises(TypeError):
        reg.forget(0.5)
    reg.save(tmp_path / "memory")
    again = FROMP.load(tmp_path / "memory", model)
    assert len(again.memories) == 3
    assert again.penalty().item() < 1e-9  # all tasks in one pass round otherwise than one by one
    assert max(again.drift()) < 1e-6
