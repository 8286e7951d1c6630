"""What the end of a task costs on text, where nine tenths of the weights are an embedding."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fromp.lab.bench.timing import interleaved
from fromp.learn.networks import initialise
from fromp.likelihoods import Categorical
from fromp.regulariser import FROMP

WORDS, LENGTH = 30_522, 64


class TextClassifier(nn.Module):
    """A transformer of 4.3 million weights, as `nn.TransformerEncoder` builds it."""

    def __init__(self, classes: int, width: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 3), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(self.words(x) + self.places).mean(1))


def text_cost(classes: int, repetitions: int, examples: int = 100, points: int = 50) -> dict[str, Any]:
    """`end_task` against an epoch of plain training on the same examples."""
    generator, batch_size = torch.Generator().manual_seed(0), 16
    model = initialise(lambda: TextClassifier(classes), seed=0)
    x, y = zipf((examples, LENGTH), generator), torch.arange(examples) % classes
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def epoch() -> None:
        model.train()
        for chosen in torch.randperm(examples, generator=generator).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()

    def end_task() -> None:
        FROMP(model, Categorical(), memory_size=points).end_task((x, y))

    seconds = interleaved({"epoch": epoch, "end_task": end_task}, repetitions)
    return {
        "weights": sum(w.numel() for w in model.parameters()),
        "classes": classes,
        "examples": examples,
        "points": points,
        "batch_size": batch_size,
        "seconds": seconds,
        "epochs": seconds["end_task"] / seconds["epoch"],
    }


def zipf(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Words that are drawn as often as in a text: the n-th most frequent one in proportion to 1 / n."""
    odds = 1 / torch.arange(1, WORDS + 1)
    return torch.multinomial(odds, math.prod(shape), replacement=True, generator=generator).view(shape)
