"""The networks that a month can be learned with: three by name, or the `build` of one's own Python file."""

import importlib.util
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fromp.derivatives.model import evaluating, outputs
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.state import State, field

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}
Shape = tuple[int, ...]
LARGEST_WIDTH = 100_000  # units of a layer


def mlp(num_inputs: int, hidden: Sequence[int], num_outputs: int, activation: str = "relu") -> nn.Module:
    """A multi-layer perceptron on flattened inputs."""
    sizes = [num_inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], num_outputs))


def cnn(shape: Shape, hidden: Sequence[int], num_outputs: int) -> nn.Module:
    """3 x 3 convolutions, each followed by ReLU and, if 4 pixels are left, max-pooling by 2; then a linear layer."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise([channels, *hidden]):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        if min(height, width) >= 4:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(hidden[-1] * height * width, num_outputs))


def linear(shape: Shape, hidden: Sequence[int], num_outputs: int) -> nn.Module:
    """One linear layer on flattened inputs."""
    return mlp(math.prod(shape), (), num_outputs)


def _perceptron(shape: Shape, hidden: Sequence[int], num_outputs: int) -> nn.Module:
    return mlp(math.prod(shape), hidden, num_outputs)


BUILDERS: dict[str, Callable[[Shape, Sequence[int], int], nn.Module]] = {
    "mlp": _perceptron, "cnn": cnn, "linear": linear
}  # fmt: skip
HIDDEN: dict[str, tuple[int, ...]] = {"mlp": (64, 64), "cnn": (16, 32), "linear": ()}
OWN = "own"


@dataclass(frozen=True)
class Network:
    """What built the network: a name and the sizes of its hidden layers. Code is never part of it."""

    name: str
    hidden: tuple[int, ...] = ()

    @classmethod
    def named(cls, name: str | None, hidden: Sequence[int] | None, shape: Shape) -> "Network":
        """The network of that name, or the one that suits inputs of a shape; a name that ends in .py is a file."""
        if name is not None and name.endswith(".py"):
            if hidden is not None:
                raise FrompError(
                    f"hidden={list(hidden)} is for a named network, and {name} builds its own; leave it out."
                )
            return cls(OWN)
        name = name or ("cnn" if len(shape) == 3 else "mlp")
        if name not in BUILDERS:
            raise FrompError(f"unknown network {name!r}; use {', '.join(BUILDERS)}, or a Python file that has build().")
        if name == "cnn" and len(shape) != 3:
            raise FrompError(f"network 'cnn' is for images, the inputs have shape {shape}; use 'mlp' or 'linear'.")
        if wrong := [units for units in hidden or () if not 1 <= units <= LARGEST_WIDTH]:
            raise FrompError(f"hidden={wrong[0]} units; a layer has 1 to {LARGEST_WIDTH}.")
        if name == "linear" and hidden:
            raise FrompError(f"network 'linear' has no hidden layers (got hidden={list(hidden)}); use 'mlp'.")
        if name != "linear" and hidden is not None and not hidden:
            raise FrompError(f"hidden is empty; network {name!r} needs the sizes of its layers, as in 64,64.")
        return cls(name, HIDDEN[name] if hidden is None else tuple(hidden))

    def build(self, shape: Shape, num_outputs: int, seed: int, file: Path | None = None) -> nn.Module:
        """The network for inputs of a shape, with weights drawn for this seed. file: the user's own, at each call."""
        if (self.name == OWN) != (file is not None):
            given = f"network={file} builds another network" if file else "no network was given"
            way_out = "leave it out" if file else "name the Python file that builds it, as in the first month"
            raise FrompError(f"{given}, and the state was learned with {self}; {way_out}.")
        if file is None:
            return initialise(lambda: BUILDERS[self.name](shape, self.hidden, num_outputs), seed)
        build = _build_in(file)
        return initialise(lambda: _checked(file, build, shape, num_outputs), seed)

    def __str__(self) -> str:
        if self.name == OWN:
            return "a network of one's own"
        return f"{self.name} {','.join(map(str, self.hidden))}".strip()

    def state(self) -> State:
        """Its name and sizes."""
        return {"name": self.name, "hidden": list(self.hidden)}

    @classmethod
    def from_state(cls, state: State) -> "Network":
        """The network that `state` describes."""
        name, hidden = field(state, "name", str), field(state, "hidden", list)
        whole = all(type(units) is int and 1 <= units <= LARGEST_WIDTH for units in hidden)
        if name not in (*BUILDERS, OWN) or not whole or (name == "cnn" and not hidden):
            raise CheckpointError(f"the saved network is {name!r} with the layers {hidden}; restore it from a copy.")
        return cls(name, tuple(hidden))


def initialise(network: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The network with PyTorch's own initial weights for this seed; the global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network()


def load_weights(model: nn.Module, saved: State) -> None:
    """Put saved weights and buffers into a model; an error unless they are those of the same network."""
    present = model.state_dict()
    if differing := sorted(present.keys() ^ saved.keys()):
        raise CheckpointError(f"the network and the saved one differ in '{differing[0]}'; give the network it was.")
    for name, new in present.items():
        old = saved[name]
        if not isinstance(old, Tensor) or old.shape != new.shape:
            shape = tuple(old.shape) if isinstance(old, Tensor) else type(old).__name__
            raise CheckpointError(
                f"'{name}' is {tuple(new.shape)} in the network, {shape} in the saved one; give the network it was."
            )
        if not bool(old.isfinite().all()):
            raise CheckpointError(f"the saved '{name}' holds NaN or infinity; restore it from a copy.")
    model.load_state_dict(saved)


def _build_in(file: Path) -> Callable[[Shape, int], Any]:
    """The function `build` of the user's own file, which is executed."""
    spec = importlib.util.spec_from_file_location("_fromp_network", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise FrompError(f"{file} is not a Python file; name one that has build(input_shape, num_outputs).")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise FrompError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    build = getattr(module, "build", None)
    if not callable(build):
        raise FrompError(f"{file} has no function build; write def build(input_shape, num_outputs) in it.")
    return build


def _checked(file: Path, build: Callable[[Shape, int], Any], shape: Shape, num_outputs: int) -> nn.Module:
    """What the user's function builds, once it has been found to take such inputs and give such outputs."""
    try:
        built = build(shape, num_outputs)
    except Exception as error:
        raise FrompError(f"build in {file} failed: {type(error).__name__}: {error}") from error
    if not isinstance(built, nn.Module):
        raise FrompError(f"build in {file} returned {type(built).__name__}; let it return a torch.nn.Module.")
    try:
        with evaluating(built), torch.no_grad():
            found = outputs(built, torch.zeros(2, *shape)).shape[1]
    except Exception as error:
        raise FrompError(f"the network of {file} cannot take inputs of shape {(2, *shape)}: {error}") from error
    if found != num_outputs:
        raise FrompError(f"the network of {file} gives {found} outputs, not {num_outputs}; use what build is given.")
    return built
