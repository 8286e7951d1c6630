"""Approximation 5: the covariance of q(w), which the paper takes to be diagonal.

Each kind holds Sigma^-1 = delta I + sum_tasks sum_i J(x_i)' Lambda(x_i) J(x_i), Eq. (4) and (9), as well as it can,
over the weights that it is given: all of them, or those of the last layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Self, final

import torch
from torch import Tensor, nn

from fromp import gp
from fromp.curvature import Curvature, ExactGGN
from fromp.derivatives.budget import MEMORY_BUDGET, chunks
from fromp.derivatives.gradients import Dense, Gradient, Outer
from fromp.derivatives.model import Head, detached, evaluating, named_weights, trainable
from fromp.derivatives.tape import Tape
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import Examples
from fromp.foundation.state import State, field, whole
from fromp.likelihoods import Likelihood
from fromp.prior import wide_weight

EXACT = ExactGGN()


class Covariance(ABC):
    """Sigma over some of a network's weights."""

    def __init__(self, weights: Mapping[str, Tensor], delta: float) -> None:
        self.names, self.delta = tuple(weights), delta
        self.shapes = {name: w.shape for name, w in weights.items()}
        self.device = next(iter(weights.values())).device

    @abstractmethod
    def with_task(self, model: nn.Module, examples: Examples, likelihood: Likelihood, head: Head) -> Self:
        """Another one, to which a task's GGN at the model's weights is added."""

    @abstractmethod
    def root(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """G with G G' = g Sigma g', from rows of gradients g, (n, *weight) for each weight: (n, w)."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """A deviation of the weights from N(0, Sigma)."""

    def _square(self, n: int) -> Tensor:
        return torch.zeros(n, n, dtype=torch.double, device=self.device)

    @abstractmethod
    def state_dict(self) -> State:
        """What `load_state_dict` needs."""

    @abstractmethod
    def load_state_dict(self, state: State) -> None:
        """Return to what `state_dict` gave."""


@final
class Diagonal(Covariance):
    """The paper's: one number for each weight.

    curvature: exact in one pass over the data, or from some of them, as the paper suggests (`SignGGN(share=...)`).
    """

    def __init__(
        self, weights: Mapping[str, Tensor], delta: float, curvature: Curvature = EXACT, seed: int = 0
    ) -> None:
        super().__init__(weights, delta)
        self.curvature, self.seed = curvature, seed
        self.precision = {name: torch.full_like(wide_weight(w), delta) for name, w in weights.items()}

    def with_task(self, model: nn.Module, examples: Examples, likelihood: Likelihood, head: Head) -> "Diagonal":
        budget, seed = MEMORY_BUDGET, self.seed + 1
        names = trainable(model)
        return self.with_share(gp.ggn_diagonal(model, names, examples, likelihood, head, budget, self.curvature, seed))

    def with_share(self, ggn: Mapping[str, Tensor]) -> "Diagonal":
        """Another one, to which a task's GGN is added that is known already."""
        new = Diagonal(self.precision, self.delta, self.curvature, self.seed + 1)
        new.precision = {name: self.precision[name] + ggn[name] for name in self.names}
        return new

    @property
    def variance(self) -> dict[str, Tensor]:
        """The diagonal of Sigma."""
        return {name: 1 / p for name, p in self.precision.items()}

    def root(self, gradients: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([(gradients[name] * p.rsqrt()).flatten(1) for name, p in self.precision.items()], 1)

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: _normal(p, generator) * p.rsqrt() for name, p in self.precision.items()}

    def state_dict(self) -> State:
        return {"seed": self.seed, "precision": dict(self.precision)}

    def load_state_dict(self, state: State) -> None:
        precision, seed = whole(state, "precision", self.precision), field(state, "seed", int)
        if wrong := [name for name, p in precision.items() if not bool((p > 0).all())]:
            raise CheckpointError(f"the saved precision of '{wrong[0]}' is not positive; restore it from a copy.")
        self.precision, self.seed = precision, seed


@final
class Blocks(Covariance):
    """Exact within each group of weights, none between groups: the whole covariance if there is one group."""

    def __init__(self, weights: Mapping[str, Tensor], delta: float, groups: Sequence[Sequence[str]]) -> None:
        super().__init__(weights, delta)
        self.groups = [tuple(group) for group in groups]
        sizes = [sum(weights[name].numel() for name in group) for group in self.groups]
        self.precision = [self._square(n).fill_diagonal_(delta) for n in sizes]  # (w, w) each
        self._factors: list[Tensor] = []  # lower Cholesky factors of the precision

    def with_task(self, model: nn.Module, examples: Examples, likelihood: Likelihood, head: Head) -> "Blocks":
        new = Blocks(detached(model, self.names), self.delta, self.groups)
        new.precision = [p.clone() for p in self.precision]
        for _, gradients in _columns(model, self.names, examples, likelihood, head):
            written = {name: g.dense().g for name, g in gradients.items()}
            for group, total in zip(self.groups, new.precision, strict=True):
                rows = self._flat(written, group).double()
                total += rows.T @ rows
        return new

    def root(self, gradients: Mapping[str, Tensor]) -> Tensor:
        rows = [self._flat(gradients, group) for group in self.groups]
        halves = zip(self.factors, rows, strict=True)  # Sigma = L^-T L^-1
        return torch.cat([torch.linalg.solve_triangular(f.to(g), g.T, upper=False).T for f, g in halves], 1)

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for group, factor in zip(self.groups, self.factors, strict=True):
            noise = _normal(factor[0], generator)[:, None]
            flat = torch.linalg.solve_triangular(factor.T, noise, upper=True)[:, 0]
            parts = flat.split([self.shapes[name].numel() for name in group])
            found |= {name: part.view(self.shapes[name]) for name, part in zip(group, parts, strict=True)}
        return found

    @property
    def factors(self) -> list[Tensor]:
        """The lower Cholesky factor of each group's precision."""
        if not self._factors:
            self._factors = [torch.linalg.cholesky(p) for p in self.precision]
        return self._factors

    def state_dict(self) -> State:
        return {"precision": list(self.precision)}

    def load_state_dict(self, state: State) -> None:
        found = {str(k): p for k, p in enumerate(field(state, "precision", list))}
        like = {str(k): p for k, p in enumerate(self.precision)}
        precision = [*whole({"precision": found}, "precision", like).values()]
        factors, failed = zip(*map(torch.linalg.cholesky_ex, precision), strict=True)
        if any(bool(code) for code in failed):
            raise CheckpointError("the saved 'precision' is not positive definite; restore it from a copy.")
        self.precision, self._factors = precision, [*factors]

    def _flat(self, gradients: Mapping[str, Tensor], group: Sequence[str]) -> Tensor:
        """The gradients of a group side by side, zero for a weight that they do not reach: (n, w)."""
        like = next(iter(gradients.values()))
        zero = like.new_zeros(len(like), 1)
        parts = (gradients.get(name, zero).flatten(1).expand(-1, self.shapes[name].numel()) for name in group)
        return torch.cat(list(parts), 1)


@final
class Kronecker(Covariance):
    """(sum g g') x (sum a a') / N for each weight matrix: the GGN, if a layer's inputs a and the gradients g at its
    outputs were independent. N, and both sums, are over all past tasks. A bias has a = 1, and is exact.
    """

    def __init__(self, weights: Mapping[str, Tensor], delta: float) -> None:
        super().__init__(weights, delta)
        if wrong := [name for name, w in weights.items() if w.ndim > 2]:
            raise FrompError(f"'{wrong[0]}' is of no linear layer; use covariance=diagonal for such a network.")
        square = {name: (len(w), w[0].numel()) for name, w in weights.items()}
        self.outputs = {n: self._square(o) for n, (o, _) in square.items()}  # sum g g'
        self.inputs = {n: self._square(i) for n, (_, i) in square.items()}  # sum a a'
        self.num_examples = 0
        self._spectra: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def with_task(self, model: nn.Module, examples: Examples, likelihood: Likelihood, head: Head) -> "Kronecker":
        new = Kronecker(detached(model, self.names), self.delta)
        new.outputs = {name: total.clone() for name, total in self.outputs.items()}
        new.inputs = {name: total.clone() for name, total in self.inputs.items()}
        new.num_examples = self.num_examples + len(examples)
        for column, gradients in _columns(model, self.names, examples, likelihood, head):
            for name, gradient in gradients.items():
                g, a = _factors(name, gradient)
                new.outputs[name] += g.T @ g
                if column == 0:  # a is the same for every column
                    new.inputs[name] += a.T @ a
        return new

    def root(self, gradients: Mapping[str, Tensor]) -> Tensor:
        found = []
        for name in self.names:
            left, right, values = (part.to(gradients[name]) for part in self.spectra[name])
            g = gradients[name].reshape(-1, *values.shape)
            found.append(((left.T @ g @ right) * values.rsqrt()).flatten(1))
        return torch.cat(found, 1)

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = {
            n: left @ (_normal(v, generator) * v.rsqrt()) @ right.T for n, (left, right, v) in self.spectra.items()
        }
        return {name: deviation.view(self.shapes[name]) for name, deviation in drawn.items()}

    @property
    def spectra(self) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """For each weight the eigenvectors of both factors, and the precision there: (o, o), (i, i), (o, i)."""
        if not self._spectra:
            for name in self.names:
                (g, left), (a, right) = (torch.linalg.eigh(of[name]) for of in (self.outputs, self.inputs))
                both = g.clamp_min(0)[:, None] * a.clamp_min(0) / max(1, self.num_examples)
                self._spectra[name] = left, right, both + self.delta
        return self._spectra

    def state_dict(self) -> State:
        return {"outputs": self.outputs, "inputs": self.inputs, "num_examples": self.num_examples}

    def load_state_dict(self, state: State) -> None:
        outputs, inputs = (whole(state, key, own) for key, own in (("outputs", self.outputs), ("inputs", self.inputs)))
        count = field(state, "num_examples", int)
        if count < 0:
            raise CheckpointError(f"the saved 'num_examples' is {count}; restore it from a copy.")
        self.outputs, self.inputs, self.num_examples, self._spectra = outputs, inputs, count, {}


def layers(names: Sequence[str]) -> list[list[str]]:
    """The weights in groups of one module each."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition(".")[0], []).append(name)
    return list(found.values())


def last_layer(model: nn.Module) -> tuple[str, ...]:
    """The trainable weights of the module that holds the model's last one."""
    return tuple(layers([name for name, w in named_weights(model).items() if w.requires_grad])[-1])


def _columns(
    model: nn.Module, names: tuple[str, ...], examples: Examples, likelihood: Likelihood, head: Head
) -> Iterator[tuple[int, dict[str, Gradient]]]:
    """For each chunk of examples and column s of S, S S' = Lambda: its number, the gradients of s . f by weight."""
    weights = detached(model, trainable(model))
    with evaluating(model):
        for x, _ in chunks(model, weights, examples, head, MEMORY_BUDGET):
            tape = Tape(model, weights, x, head)
            for column, s in enumerate(likelihood.columns(tape.f.detach())):
                yield column, {name: gradient for name, gradient in tape.gradients(s) if name in names}


def _factors(name: str, gradient: Gradient) -> tuple[Tensor, Tensor]:
    """A layer's gradients at its outputs, and its inputs: (b, o), (b, i)."""
    if isinstance(gradient, Outer):
        return gradient.g.double(), gradient.a.double()
    if isinstance(gradient, Dense) and gradient.g.ndim == 2:
        return gradient.g.double(), torch.ones_like(gradient.g[:, :1], dtype=torch.double)
    raise FrompError(f"'{name}' is not applied once per example by a linear layer; use covariance=diagonal.")


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
