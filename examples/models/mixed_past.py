"""MixedPast with heads chosen by an argument: the second comes with its task, the third task has the first again."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, Result, blobs, fit, follow, share, show

from fromp import Categorical, MixedPast


class Heads(nn.Module):
    """A trunk, and the heads that there are so far."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.heads = nn.Linear(FEATURES, 64), nn.ModuleDict()

    def forward(self, x: Tensor, task: str) -> Tensor:
        return self.heads[task](self.trunk(x).relu())


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model, names = Heads(), ("here", "there", "here")
    tasks = [blobs(0), blobs(1), blobs(1)]
    reg = MixedPast(model, Categorical(), memory_size=40)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]
        name = names[number]
        if name not in model.heads:
            model.heads[name] = nn.Linear(64, CLASSES)

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch], name), y[batch])
            return nll + reg.penalty(x[batch], task=name) if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y, task=name)

    def accuracy(number: int) -> float:
        *_, x, y = tasks[number]
        return share(model(x, names[number]), y)

    return follow(tasks, learn, accuracy)


if __name__ == "__main__":
    show(run)
