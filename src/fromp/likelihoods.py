"""Likelihoods p(y | f): what the outputs f mean. Appendix "GP posteriors from the minimiser of neural networks"."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, hessian, jacrev, vmap

from fromp.derivatives.last_layer import Slope
from fromp.foundation.checked import count
from fromp.foundation.errors import DataError, DerivativeError

NO_LABEL = -100  # as in `torch.nn.functional.cross_entropy`
LARGEST_PROBABILITY_VARIANCE = 0.25  # of p - p^2, at p = 1/2


class Likelihood(ABC):
    """l(y, f) = -log p(y | f) and what follows from it, for a batch of outputs f: (b, c)."""

    @abstractmethod
    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """l(y, f) for each example: (b,)."""

    @abstractmethod
    def mean(self, f: Tensor) -> Tensor:
        """m = E[y | f]: (b, c)."""

    def slope(self, f: Tensor) -> Slope | None:
        """d m / d f where it is diagonal but for a product of two vectors, as that of a softmax is; else None."""
        return None

    @abstractmethod
    def hessian(self, f: Tensor) -> Tensor:
        """Lambda = d2 l / d f2: (b, c, c)."""

    @abstractmethod
    def factor(self, f: Tensor) -> Tensor:
        """S with S S' = Lambda: (b, c, r)."""

    def columns(self, f: Tensor) -> Iterator[Tensor]:
        """The columns of S one at a time: (b, c)."""
        return iter(self.factor(f).unbind(-1))

    def root_times(self, f: Tensor, e: Tensor) -> Tensor:
        """S e for some S with S S' = Lambda and as many columns as outputs, or fewer: (b, c)."""
        s = self.factor(f)
        return torch.einsum("bcr,br->bc", s, e[:, : s.shape[-1]])

    def trace(self, f: Tensor) -> Tensor:
        """Tr Lambda: (b,)."""
        return self.hessian(f).diagonal(dim1=-2, dim2=-1).sum(-1)

    def numbers_formed(self, num_outputs: int) -> int:
        """How many numbers `hessian`, `factor` and what they are made of hold for each example."""
        return 5 * num_outputs**2

    @abstractmethod
    def noise(self, f: Tensor) -> Tensor:
        """Var[y | f], the observation term of the predictive variance: (b, c)."""

    def noise_scale(self, f: Tensor) -> Tensor:
        """The scale of Var[y]: its largest value where there is one, else its mean over the outputs f: (c,)."""
        return self.noise(f).mean(0)

    @abstractmethod
    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        """An error unless the labels fit a head of `num_outputs`."""

    def doubt(self, f: Tensor) -> str | None:
        """Why a model that gives f everywhere probably means something else by it, if it does."""
        return None

    def classes(self, y: Tensor) -> Tensor:
        """The class of each label, so that memory can be shared out evenly: (b,). One class unless overridden."""
        return torch.zeros(len(y), dtype=torch.long, device=y.device)

    def novelty(self, f: Tensor, variance: Tensor) -> Tensor:
        """How little is known of y if f has this variance, from 0 to 1: (b,).

        s2 / (s2 + 1 / Lambda_cc), the share of s2 in the variance of y, averaged over outputs. Of classes it is the
        entropy instead, over that of knowing nothing.
        """
        unknown = variance * self.hessian(f).diagonal(dim1=-2, dim2=-1)
        return (unknown / (1 + unknown)).mean(-1)

    def settings(self) -> dict[str, float]:
        """The arguments that make an equal likelihood."""
        return {}


@final
class Categorical(Likelihood):
    """Softmax over c >= 2 outputs; labels are integers that count within the head."""

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(f, y, reduction="none")

    def mean(self, f: Tensor) -> Tensor:
        return f.softmax(-1)

    def slope(self, f: Tensor) -> Slope:
        p = f.double().softmax(-1)
        return Slope(p, p, p)

    def hessian(self, f: Tensor) -> Tensor:
        p = f.softmax(-1)
        return torch.diag_embed(p) - torch.einsum("bc,bd->bcd", p, p)

    def factor(self, f: Tensor) -> Tensor:
        return torch.stack(list(self.columns(f)), -1)

    def columns(self, f: Tensor) -> Iterator[Tensor]:
        p, rest, diagonal = self._cholesky(f)
        for r in range(p.shape[-1] - 1):
            column = torch.zeros_like(p)
            column[:, r] = 1
            column[:, r + 1 :] -= p[:, r + 1 :] / rest[:, r, None]
            yield column * diagonal[:, r, None]

    def root_times(self, f: Tensor, e: Tensor) -> Tensor:
        # Nothing of size c x c exists: what earlier columns leave for output c is a running sum.
        p, rest, diagonal = self._cholesky(f)
        own = F.pad(diagonal * e[:, : rest.shape[1]], (0, 1))
        earlier = F.pad((own[:, :-1] / rest).cumsum(-1), (1, 0))
        return own - p * earlier

    def _cholesky(self, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """p, and of each column of the Cholesky factor, in closed form, the rest of p behind it and its diagonal.

        Lambda has rank c - 1: the last column is zero, and left out.
        """
        p = f.softmax(-1)
        tiny = torch.finfo(p.dtype).tiny
        left = p.flip(-1).cumsum(-1).flip(-1)  # (b, c): p_c + ... + p_last
        rest = left[:, 1:]
        diagonal = (p[:, :-1] / left[:, :-1].clamp_min(tiny) * rest).sqrt()  # (b, r)
        return p, rest.clamp_min(tiny), diagonal

    def trace(self, f: Tensor) -> Tensor:
        return self.noise(f).sum(-1)

    def numbers_formed(self, num_outputs: int) -> int:
        return 8 * num_outputs

    def noise(self, f: Tensor) -> Tensor:
        p = f.softmax(-1)
        return p - p.square()

    def noise_scale(self, f: Tensor) -> Tensor:
        return torch.full_like(f[0], LARGEST_PROBABILITY_VARIANCE)

    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        if num_outputs < 2:
            raise DataError(f"Categorical needs at least 2 outputs, the head has {num_outputs}; use Bernoulli.")
        if y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
            raise DataError(
                f"Categorical labels are {y.dtype} of shape {tuple(y.shape)}; give integers of shape (examples,), "
                f"{_as_integers(y, num_outputs)}."
            )
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= num_outputs):
            wrong = int(y.max()) if int(y.max()) >= num_outputs else int(y.min())
            raise DataError(
                f"label {wrong} is outside the head of {num_outputs} outputs; "
                f"labels count within the head: 0 to {num_outputs - 1}."
            )

    def doubt(self, f: Tensor) -> str | None:
        if bool((f >= 0).all()) and bool(((f.sum(-1) - 1).abs() < 1e-3).all()):
            return (
                "the model's outputs are not negative and add up to 1 at every example, as probabilities do; "
                "Categorical takes logits and applies the softmax itself: leave it out of the model."
            )
        return None

    def novelty(self, f: Tensor, variance: Tensor) -> Tensor:
        log_p = moderated(f, variance).log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1) / math.log(f.shape[-1])

    def classes(self, y: Tensor) -> Tensor:
        return y


@final
class Tokens(Likelihood):
    """`Categorical` at each of T positions, such as a token's class or the next token, out of `outputs` classes.

    The model gives (b, T, outputs); f is that as (b, T * outputs). The likelihood factorises: nll is a sum over
    positions, and neither scores, `SignGGN` nor a penalty without kernels form anything of the size of classes squared.
    A position whose outputs are all zero counts for nothing, as does every position whose `attention_mask` among the
    inputs is 0. Labels are (b, T), -100 where there is none.
    """

    def __init__(self, outputs: int) -> None:
        self.outputs, self._each = count("outputs", outputs), Categorical()

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        each, there = self._positions(f)
        if y.is_floating_point():  # a mean of f: the nll is affine in it
            return (self._each.nll(each, y.reshape(each.shape)) * there).view(len(f), -1).sum(1)
        flat = y.reshape(-1)
        return (self._each.nll(each, flat.clamp_min(0)) * (there & (flat != NO_LABEL))).view(len(f), -1).sum(1)

    def mean(self, f: Tensor) -> Tensor:
        return self._each.mean(self._positions(f)[0]).view_as(f)

    def hessian(self, f: Tensor) -> Tensor:
        return self._blocks(self._each.hessian, f)

    def factor(self, f: Tensor) -> Tensor:
        return torch.stack(list(self.columns(f)), -1)

    def columns(self, f: Tensor) -> Iterator[Tensor]:
        each, there = self._positions(f)
        for column in self._each.columns(each):
            at = (column * there[:, None]).view(len(f), -1, self.outputs)
            for position in range(at.shape[1]):
                alone = torch.zeros_like(at)
                alone[:, position] = at[:, position]
                yield alone.view_as(f)

    def root_times(self, f: Tensor, e: Tensor) -> Tensor:
        each, there = self._positions(f)
        return (self._each.root_times(each, e.reshape(each.shape)) * there[:, None]).view_as(f)

    def trace(self, f: Tensor) -> Tensor:
        return self.noise(f).sum(-1)

    def numbers_formed(self, num_outputs: int) -> int:
        return self._each.numbers_formed(num_outputs)

    def noise(self, f: Tensor) -> Tensor:
        each, there = self._positions(f)
        return (self._each.noise(each) * there[:, None]).view_as(f)

    def noise_scale(self, f: Tensor) -> Tensor:
        return self._each.noise_scale(f)

    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        length, rest = divmod(num_outputs, self.outputs)
        if rest:
            raise DataError(
                f"Tokens(outputs={self.outputs}) needs {self.outputs} outputs at each position, and the model gives "
                f"{num_outputs} per example, which is no multiple of it; give the number of classes of a position."
            )
        if y.shape[1:] != (length,) or y.is_floating_point():
            raise DataError(
                f"Tokens labels are {y.dtype} of shape {tuple(y.shape)}; give integers of shape (examples, {length}), "
                f"{NO_LABEL} where a position has none."
            )
        self._each.check_labels(y[y != NO_LABEL], self.outputs)

    def settings(self) -> dict[str, float]:
        return {"outputs": self.outputs}

    def _positions(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs of each position, (b T, c), and whether it counts, (b T,)."""
        each = f.reshape(-1, self.outputs)
        return each, (each != 0).any(-1)

    def _blocks(self, function: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
        """The square matrices of all positions on one diagonal: (b, T c, T c)."""
        each, there = self._positions(f)
        matrices = (function(each) * there[:, None, None]).view(len(f), -1, self.outputs, self.outputs)
        return torch.stack([torch.block_diag(*example) for example in matrices])


@final
class Bernoulli(Likelihood):
    """Sigmoid of each output on its own; labels are 0 or 1, of shape (b,) for one output, else (b, c)."""

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        y = _like("Bernoulli", y, f).to(f.dtype)
        return F.binary_cross_entropy_with_logits(f, y, reduction="none").sum(-1)

    def mean(self, f: Tensor) -> Tensor:
        return f.sigmoid()

    def slope(self, f: Tensor) -> Slope:
        return Slope(self.noise(f.double()), *[torch.zeros_like(f)] * 2)

    def hessian(self, f: Tensor) -> Tensor:
        return torch.diag_embed(self.noise(f))

    def factor(self, f: Tensor) -> Tensor:
        return torch.diag_embed(self.noise(f).sqrt())

    def root_times(self, f: Tensor, e: Tensor) -> Tensor:
        return self.noise(f).sqrt() * e

    def trace(self, f: Tensor) -> Tensor:
        return self.noise(f).sum(-1)

    def noise(self, f: Tensor) -> Tensor:
        return f.sigmoid() * (-f).sigmoid()

    def noise_scale(self, f: Tensor) -> Tensor:
        return torch.full_like(f[0], LARGEST_PROBABILITY_VARIANCE)

    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        _check_shape("Bernoulli", y, num_outputs)
        wrong = y[(y != 0) & (y != 1)]
        if len(wrong):
            raise DataError(f"Bernoulli label {wrong[0].item()} is neither 0 nor 1.")

    def novelty(self, f: Tensor, variance: Tensor) -> Tensor:
        f = moderated(f, variance)
        return -(f.sigmoid() * F.logsigmoid(f) + (-f).sigmoid() * F.logsigmoid(-f)).mean(-1) / math.log(2)

    def classes(self, y: Tensor) -> Tensor:
        y = y.reshape(len(y), -1)
        return y[:, 0].long() if y.shape[1] == 1 else super().classes(y)


@final
class Gaussian(Likelihood):
    """y = f + noise of the given precision: regression. Labels have shape (b,) for one output, else (b, c)."""

    def __init__(self, noise_precision: float = 1.0) -> None:
        if not noise_precision > 0:
            raise DataError(f"noise_precision={noise_precision} must be positive.")
        self.noise_precision = noise_precision

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        return 0.5 * self.noise_precision * (_like("Gaussian", y, f) - f).square().sum(-1)

    def mean(self, f: Tensor) -> Tensor:
        return f

    def slope(self, f: Tensor) -> Slope:
        return Slope(torch.ones_like(f), *[torch.zeros_like(f)] * 2)

    def hessian(self, f: Tensor) -> Tensor:
        return torch.diag_embed(torch.full_like(f, self.noise_precision))

    def factor(self, f: Tensor) -> Tensor:
        return torch.diag_embed(torch.full_like(f, self.noise_precision**0.5))

    def root_times(self, f: Tensor, e: Tensor) -> Tensor:
        return self.noise_precision**0.5 * e

    def trace(self, f: Tensor) -> Tensor:
        return torch.full_like(f, self.noise_precision).sum(-1)

    def noise(self, f: Tensor) -> Tensor:
        return torch.full_like(f, 1 / self.noise_precision)

    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        _check_shape("Gaussian", y, num_outputs)
        _check_finite("Gaussian", y)

    def settings(self) -> dict[str, float]:
        return {"noise_precision": self.noise_precision}


class GLM(Likelihood):
    """Any generalised linear model from its negative log likelihood alone: subclass it and write `nll`.

    The score s = d l / d f of a GLM is affine in y and has expectation zero, so s(f, y) = a + B y gives
    m = -B^-1 a. Lambda is the expected second derivative, which is the one at y = m; for canonical
    links it does not depend on y at all. Both come from automatic differentiation.
    """

    def mean(self, f: Tensor) -> Tensor:
        return vmap(self._mean)(f)

    def hessian(self, f: Tensor) -> Tensor:
        return vmap(lambda f: hessian(self._one)(f, self._mean(f).detach()))(f)

    def factor(self, f: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self.hessian(f))
        smallest = float(values.min()) if values.numel() else 0.0
        if smallest < -1e-5 * float(values.abs().max()):
            raise DerivativeError(
                f"the second derivative of {type(self).__name__}.nll has the eigenvalue {smallest:.3g}; "
                "it must not be negative: a GLM's nll is convex in f at y = mean(f)."
            )
        return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)

    def noise(self, f: Tensor) -> Tensor:
        # Fisher information Lambda = D' Var^-1 D with D = dm/df, so Var = D Lambda^-1 D'.
        slope = vmap(jacrev(self._mean))(f)
        return torch.einsum("bcd,bde,bce->bc", slope, torch.linalg.pinv(self.hessian(f)), slope)

    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        _check_shape(type(self).__name__, y, num_outputs)
        _check_finite(type(self).__name__, y)

    def _one(self, f: Tensor, y: Tensor) -> Tensor:
        return self.nll(f[None], y[None]).sum()

    def _mean(self, f: Tensor) -> Tensor:
        score = grad(self._one)
        zero = torch.zeros_like(f)
        slope = jacrev(lambda y: score(f, y))(zero)
        return -torch.linalg.solve(slope, score(f, zero))


@final
class Poisson(GLM):
    """Counts with rate exp(f). The worked example of `GLM`: the nll is all there is to write."""

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        return (f.exp() - _like("Poisson", y, f) * f).sum(-1)

    def check_labels(self, y: Tensor, num_outputs: int) -> None:
        super().check_labels(y, num_outputs)
        if len(y) and float(y.min()) < 0:
            raise DataError(f"Poisson label {float(y.min())} is negative; counts start at 0.")


def moderated(f: Tensor, variance: Tensor) -> Tensor:
    """f / sqrt(1 + pi s2 / 8): the outputs whose probabilities are about those averaged over N(f, s2) (MacKay 1992)."""
    return f / (1 + math.pi / 8 * variance).sqrt()


def _as_integers(y: Tensor, num_outputs: int) -> str:
    """How labels of another kind become integers."""
    if y.ndim == 2 and not y.is_floating_point() and 1 < y.shape[1] < num_outputs and num_outputs % y.shape[1] == 0:
        return f"or use Tokens({num_outputs // y.shape[1]}) if each has a label at {y.shape[1]} positions"
    if y.ndim == 2 and y.shape[1] == 1:
        return "as y.squeeze(1)" if not y.is_floating_point() else "as y.squeeze(1).long()"
    if y.ndim == 2 and y.shape[1] == num_outputs:
        return "as y.argmax(1) where they are one-hot"
    if y.ndim == 1 and (y.dtype == torch.bool or torch.equal(y, y.round())):
        return "as y.long()"
    return "or use Gaussian() for regression"


def _check_shape(name: str, y: Tensor, num_outputs: int) -> None:
    if y.shape[1:] not in {torch.Size([num_outputs])} | ({torch.Size([])} if num_outputs == 1 else set()):
        raise DataError(
            f"{name} labels have the shape {tuple(y.shape)}; a head of {num_outputs} outputs "
            f"needs (examples, {num_outputs})."
        )


def _like(name: str, y: Tensor, f: Tensor) -> Tensor:
    """Labels in the shape of the outputs: a column may be given as a row, but nothing else."""
    if y.shape != f.shape and (f.shape[-1] != 1 or y.shape != f.shape[:-1]):
        raise DataError(
            f"{name} labels have the shape {tuple(y.shape)}, the outputs {tuple(f.shape)}; give that shape."
        )
    return y.reshape(f.shape)


def _check_finite(name: str, y: Tensor) -> None:
    if not bool(torch.isfinite(y).all()):
        raise DataError(f"{name} labels hold values that are not finite; remove those examples.")
