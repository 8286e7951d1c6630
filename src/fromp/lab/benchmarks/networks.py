"""The paper's networks as values."""

import math
from typing import Annotated, Literal, Protocol

import torch
from torch import nn

from fromp.lab.benchmarks.streams import Stream
from fromp.lab.settings import AtLeastOne, Listed, settings
from fromp.learn.networks import mlp


class Network(Protocol):
    """A kind of network; if it is a dataclass, its fields are settings of a run."""

    def build(self, stream: Stream) -> nn.Module:
        """A network for the inputs and outputs of a stream."""
        ...


@settings
class MLP:
    """A multi-layer perceptron on flattened inputs."""

    hidden: Annotated[tuple[AtLeastOne, ...], Listed]
    """Units of each hidden layer, as in 100,100."""
    activation: Literal["relu", "sigmoid", "tanh"] = "relu"
    """What follows each hidden layer."""

    def build(self, stream: Stream) -> nn.Module:
        """The network for a stream."""
        return mlp(math.prod(stream.input_shape), self.hidden, stream.num_outputs, self.activation)


@settings
class CifarCNN:
    """The network of Split CIFAR: four convolutions, two linear layers, dropout; for images (3, 32, 32)."""

    def build(self, stream: Stream) -> nn.Module:
        """The network for a stream."""
        return cifar_cnn(stream.num_outputs).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def cifar_cnn(num_outputs: int) -> nn.Module:
    """The layers of `CifarCNN`."""
    return nn.Sequential(
        *_convolutions(3, 32),
        *_convolutions(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, num_outputs),
    )


def num_weights(model: nn.Module) -> int:
    """The number of trainable weights."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)


def _convolutions(before: int, after: int) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(0.25),
    ]  # fmt: skip
