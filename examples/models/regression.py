"""Regression, on the left half of a line and then on the right: what is lost is an error, not a share of examples."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from two_tasks import Result, Task, fit, follow, show

from fromp import FROMP, Gaussian

NOISE = 0.1


def half(number: int) -> Task:
    """y = sin(3 x) with noise, for x from -2 to 0, or from 0 to 2."""
    parts = []
    for part in range(2):
        generator = torch.Generator().manual_seed(10 * number + part)
        x = 2 * torch.rand(200, 1, generator=generator) - 2 * (1 - number)
        parts += [x, torch.sin(3 * x) + NOISE * torch.randn(200, 1, generator=generator)]
    return Task(*parts)


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model, tasks = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 1)), [half(0), half(1)]
    precision = NOISE**-2  # of the noise: what turns a squared error into a negative log likelihood
    reg = FROMP(model, Gaussian(precision), tau=1.0, memory_size=40, prior_precision=1.0, jitter=1e-2)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]

        def loss(batch: Tensor) -> Tensor:
            nll = 0.5 * precision * mse_loss(model(x[batch]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y), 400)
        reg.end_task(x, y)

    def right(number: int) -> float:
        """One less the root of the mean squared error."""
        *_, x, y = tasks[number]
        return 1 - mse_loss(model(x), y).item() ** 0.5

    return follow(tasks, learn, right)


if __name__ == "__main__":
    show(run)
