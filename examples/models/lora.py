"""A frozen layer with a low-rank addition that is trained, written by hand: only what is trained is held."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, blobs, fit, follow, share, show

from fromp import FROMP, Categorical


class LowRank(nn.Module):
    """W x + B A x, of which W is frozen."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(LowRank(nn.Linear(FEATURES, 64)), nn.ReLU(), LowRank(nn.Linear(64, CLASSES)))
    tasks = [blobs(0), blobs(1)]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y)

    return follow(tasks, learn, lambda number: share(model(tasks[number].test_x), tasks[number].test_y))


if __name__ == "__main__":
    show(run)
