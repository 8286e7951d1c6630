"""Heads in a ModuleDict, chosen by an argument of forward that is kept with each task; two tasks share a head."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import FEATURES, SETTINGS, Result, Task, blobs, fit, follow, share, show

from fromp import FROMP, Categorical


class Heads(nn.Module):
    """One trunk, and heads that need not have the same size."""

    def __init__(self, outputs: dict[str, int]) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(64, n) for name, n in outputs.items()})

    def forward(self, x: Tensor, task: str) -> Tensor:
        return self.heads[task](self.trunk(x))


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model, names = Heads({"four": 4, "two": 2}), ("four", "two", "four")
    first, second = blobs(0), blobs(1)
    tasks = [first, Task(second.x, second.y % 2, second.test_x, second.test_y % 2), second]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch], names[number]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y, task=names[number])

    def accuracy(number: int) -> float:
        *_, x, y = tasks[number]
        return share(model(x, names[number]), y)

    return follow(tasks, learn, accuracy)


if __name__ == "__main__":
    show(run)
