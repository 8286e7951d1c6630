"""A network whose first layer is frozen after the first task: what is frozen keeps its precision and costs nothing."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, blobs, fit, follow, share, show

from fromp import FROMP, Categorical


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    tasks = [blobs(0), blobs(1)]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y)
        model[0].requires_grad_(False)

    return follow(tasks, learn, lambda number: share(model(tasks[number].test_x), tasks[number].test_y))


if __name__ == "__main__":
    show(run)
