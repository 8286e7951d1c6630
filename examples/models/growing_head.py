"""New classes arrive while old ones look different, and the last layer gains outputs: a larger one, the rows copied."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, Task, blobs, fit, follow, share, show

from fromp import FROMP, Categorical


def grow(layer: nn.Linear, rows: int) -> nn.Linear:
    """The layer with more outputs, of which the first are those it had."""
    larger = nn.Linear(layer.in_features, layer.out_features + rows)
    with torch.no_grad():
        larger.weight[: layer.out_features] = layer.weight
        larger.bias[: layer.out_features] = layer.bias
    return larger


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    first, other = blobs(0), blobs(1)
    new = Task(other.x.roll(1, 1), other.y + CLASSES, other.test_x.roll(1, 1), other.test_y + CLASSES)
    tasks = [first, Task(*(torch.cat(parts) for parts in zip(other, new, strict=True)))]
    outputs = [CLASSES, 2 * CLASSES]  # those that a task knows of
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]
        if number:
            model[2] = grow(model[2], CLASSES)

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y)

    def accuracy(number: int) -> float:
        *_, x, y = tasks[number]
        return share(model(x)[:, : outputs[number]], y)

    return follow(tasks, learn, accuracy)


if __name__ == "__main__":
    show(run)
