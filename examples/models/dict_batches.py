"""Batches as dicts with `labels`, and a model that returns an object with `logits`: the conventions of Hugging Face."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from two_tasks import CLASSES, FEATURES, SETTINGS, Result, Task, blobs, follow, share, show

from fromp import FROMP, Categorical


@dataclass
class Output:
    """What the model returns."""

    logits: Tensor
    loss: Tensor | None = None


class Classifier(nn.Module):
    """A network that computes its own loss where it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.net(features)
        return Output(logits, None if labels is None else cross_entropy(logits, labels))


def loader(task: Task) -> DataLoader:
    """Minibatches of dicts."""
    examples = [{"features": x, "labels": y} for x, y in zip(task.x, task.y, strict=True)]
    return DataLoader(examples, batch_size=32, shuffle=True)  # type: ignore[arg-type]


def run(hold: bool) -> Result:
    torch.manual_seed(0)
    model, tasks = Classifier(), [blobs(0), blobs(1)]
    reg = FROMP(model, Categorical(), **SETTINGS)

    def learn(number: int) -> None:
        batches = loader(tasks[number])
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(8):
            for batch in batches:
                optimizer.zero_grad()
                loss = model(**batch).loss
                (loss + reg.penalty() if hold else loss).backward()
                optimizer.step()
        reg.end_task(batches)

    return follow(tasks, learn, lambda number: share(model(tasks[number].test_x).logits, tasks[number].test_y))


if __name__ == "__main__":
    show(run)
