"""One small stream, and the loop that one writes by hand: what every framework has to end with."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fromp import FROMP, Categorical, MixedPast, Regulariser

TASKS, EPOCHS, BATCH, LR = 3, 2, 10, 1e-2
HEADS = [[0, 1, 2], [5, 3, 4], [6, 7, 8]]
NAMES = ["a", "b", "a"]  # one of them comes back


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))


class Named(nn.Module):
    """A head for each task, chosen by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads = network(16), nn.ModuleDict({name: nn.Linear(16, 3) for name in "ab"})

    def forward(self, x: torch.Tensor, task: str) -> torch.Tensor:
        return self.heads[task](self.trunk(x).relu())


def task(k: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(k)
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=generator) * 0.4
    x[torch.arange(60), (y + k) % 4] += 1.5
    return TensorDataset(x, y)


def loader(k: int) -> DataLoader:
    return DataLoader(task(k), BATCH)


def regulariser(model: nn.Module) -> FROMP:
    return FROMP(model, Categorical(), tau=1.0, memory_size=12, prior_precision=0.1, jitter=1e-2)


def mixed(model: nn.Module) -> MixedPast:
    """Most of whose penalty is at the present minibatch, where there is a head per task."""
    return MixedPast(model, Categorical(), 12, 0.1, 2.0, points_per_step=16)


def mixed_by_hand(model: nn.Module) -> MixedPast:
    """A head per task, each with a penalty that looks at the minibatch."""
    reg = mixed(model)
    for k, head in enumerate(HEADS):
        optimizer = torch.optim.Adam(model.parameters(), LR)
        for _ in range(EPOCHS):
            for x, y in loader(k):
                optimizer.zero_grad()
                (F.cross_entropy(model(x)[:, head], y) + reg.penalty(x, head)).backward()
                optimizer.step()
        reg.end_task(loader(k), head=head)
    return reg


def by_hand(model: nn.Module, tasks: int = TASKS, accumulated: int = 1, clip: float | None = None) -> FROMP:
    """Adam restarts with each task; gradients are averages over the accumulated minibatches."""
    reg = regulariser(model)
    for k in range(tasks):
        optimizer = torch.optim.Adam(model.parameters(), LR)
        for _ in range(EPOCHS):
            for step, (x, y) in enumerate(loader(k), 1):
                ((F.cross_entropy(model(x), y) + reg.penalty()) / accumulated).backward()
                if step % accumulated == 0:
                    if clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                    optimizer.zero_grad()
        reg.end_task(loader(k))
    return reg


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def assert_same_memory(reg: Regulariser, other: Regulariser) -> None:
    from fromp.foundation.state import flatten

    (tensors, tree), (others, other_tree) = flatten(reg.state_dict()), flatten(other.state_dict())
    assert tensors.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in tensors.items())
    assert tree == other_tree
