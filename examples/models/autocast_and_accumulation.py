"""Half precision under autocast, and gradients accumulated over two minibatches: the penalty is added once per step."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, blobs, follow, share, show

from fromp import FROMP, Categorical


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    tasks = [blobs(0), blobs(1)]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(100):
            optimizer.zero_grad()
            for batch in torch.randint(len(y), (2, 16)):
                with torch.autocast("cpu", torch.float16):
                    nll = cross_entropy(model(x[batch]), y[batch])
                (nll / 2).backward()
            if hold:
                reg.penalty().backward()  # in single precision, inside autocast or outside
            optimizer.step()
        reg.end_task(x, y)

    return follow(tasks, learn, lambda number: share(model(tasks[number].test_x), tasks[number].test_y))


if __name__ == "__main__":
    show(run)
