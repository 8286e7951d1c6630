"""A transformer whose padded positions are masked: several inputs go in a dict, by the names of forward's arguments."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from two_tasks import CLASSES, FEATURES, LENGTH, SETTINGS, Result, fit, follow, sequences, share, show

from fromp import FROMP, Categorical


class Reader(nn.Module):
    """One encoder layer, and the mean over the positions that are not padded."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 32, batch_first=True, dropout=0.0)
        self.encode = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        encoded = self.encode(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
        return self.out(encoded.sum(1) / (~padding).sum(1, keepdim=True))


def padding(examples: int) -> Tensor:
    """True beyond each sequence's own length, of three to six."""
    return torch.arange(LENGTH) >= 3 + torch.arange(examples)[:, None] % 4


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model, tasks = Reader(), [sequences(0), sequences(1)]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        x, y, *_ = tasks[number]
        mask = padding(len(x))

        def loss(batch: Tensor) -> Tensor:
            nll = cross_entropy(model(x[batch], mask[batch]), y[batch])
            return nll + reg.penalty() if hold else nll

        fit(loss, model.parameters(), len(y), 60)
        reg.end_task({"x": x, "padding": mask, "labels": y})

    def accuracy(number: int) -> float:
        *_, x, y = tasks[number]
        return share(model(x, padding(len(x))), y)

    return follow(tasks, learn, accuracy)


if __name__ == "__main__":
    show(run)
