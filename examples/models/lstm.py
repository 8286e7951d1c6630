"""An LSTM over sequences, with its outputs beside its state: what a tuple begins with is taken for the outputs."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, fit, follow, sequences, share, show

from fromp import FROMP, Categorical


class Reader(nn.Module):
    """Reads a sequence, and says from its last state what it is."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(FEATURES, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, (state, _) = self.lstm(x)
        return self.out(state[-1]), state[-1]


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model, tasks = Reader(), [sequences(0), sequences(1)]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch])[0], y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y))
        reg.end_task(x, y)

    def accuracy(number: int) -> float:
        *_, x, y = tasks[number]
        return share(model(x)[0], y)

    return follow(tasks, learn, accuracy)


if __name__ == "__main__":
    show(run)
