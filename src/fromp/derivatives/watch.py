"""Whether the weights are those at which the means were fixed, or the memory was saved, and whether they move."""

import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from fromp.derivatives.model import Head, named_buffers, named_weights
from fromp.derivatives.sharded import whole
from fromp.foundation.collectives import Ranks
from fromp.foundation.errors import CheckpointError, DataError, FrompError, FrompWarning

Fingerprint: TypeAlias = dict[str, list[float]]  # mean and norm of each parameter and buffer

STILL_PENALTIES = 200  # after which some weight should have moved
CLOSE = 0.01  # share of a weight's norm: a change of precision moves its mean and norm by less
SAME = 1e-6  # share of a weight's norm by which two machines may differ when they compute it
EQUAL = 1e-12  # the same numbers, whatever the number of threads that add them up


def fingerprint(model: nn.Module, known: Mapping[str, Tensor] | None = None) -> Fingerprint:
    """Mean and norm of each parameter and buffer, of a layer that has grown in the rows that are known."""
    names, numbers = [], []
    for name, value in {**named_buffers(model), **named_weights(model)}.items():
        if value.numel() == 0 or value.layout != torch.strided or value.is_quantized:
            continue
        value = whole(value.detach())
        if known is not None and value.ndim and name in known:
            value = value[: len(known[name])]
        value = (value.abs() if value.is_complex() else value).double()
        names.append(name)
        numbers.append(torch.stack([value.mean(), value.norm()]))
    device = numbers[0].device if numbers else None
    found = torch.stack([pair.to(device) for pair in numbers]).tolist() if numbers else []  # waits for the device once
    return dict(zip(names, found, strict=True))


def as_fingerprint(saved: Mapping[str, Any]) -> Fingerprint:
    """A fingerprint read from a file, or an error that says that it is none."""
    if not all(isinstance(pair, list) and list(map(type, pair)) == [float, float] for pair in saved.values()):
        raise CheckpointError("the saved 'fingerprint' is not two numbers for each weight; restore it from a copy.")
    return dict(saved)


def check_alike(model: nn.Module, head: Head, ranks: Ranks) -> None:
    """An error unless every rank ends a task of the same head with the same weights."""
    if ranks.size == 1:
        return
    for rank, (weights, theirs) in enumerate(ranks.exchange([_of_weights(model, fingerprint(model)), head])):
        if rank == 0:
            first, expected = weights, theirs
        elif theirs != expected:
            raise DataError(f"rank {rank} ends a task with head={theirs}, rank 0 with head={expected}; give the same.")
        elif not _same(weights, first, SAME):
            raise FrompError(
                f"the weights of rank {rank} are not those of rank 0; train one model, as with "
                "DistributedDataParallel, or, if every rank learns by itself, make it with FROMP(..., ranks=Alone())."
            )


@final
class WeightWatch:
    """Warns once if a penalty is computed at weights that it does not belong to, or if they never move.

    saved: the fingerprint of the weights beside which the memory was saved, if it was loaded.
    fixed: the fingerprint of those at which the means were fixed, where that is known.
    known: the precision, whose shapes say which rows they had then.
    It looks at values at the first penalty and at number `STILL_PENALTIES`; all others cost nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        saved: Fingerprint | None = None,
        fixed: Fingerprint | None = None,
        known: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._model, self._saved, self.fixed, self._known = model, saved, fixed or {}, dict(known or {})
        self._first: Fingerprint | None = None
        self._penalties = 0

    @property
    def fresh(self) -> bool:
        """Whether no penalty has been computed yet."""
        return self._first is None

    def look(self) -> bool:
        """Called for each penalty: whether it is the first, at the very weights at which the means were fixed."""
        unmoved = False
        if self._first is None:
            self._first, here = fingerprint(self._model), fingerprint(self._model, self._known)
            unmoved = bool(self.fixed) and _same(self.fixed, here, EQUAL)
            if self._saved is not None and not _same(_of_weights(self._model, self._saved), here, CLOSE):
                _warn(
                    "the model's weights are not those that it had when this memory was saved, so that the penalty "
                    "pulls it elsewhere; load the weights that belong to the memory before training."
                )
        if torch.is_grad_enabled() and self._penalties < STILL_PENALTIES:
            self._penalties += 1
            last = self._penalties == STILL_PENALTIES
            if last and _same(_of_weights(self._model, self._first), fingerprint(self._model), 0):
                _warn(
                    f"{STILL_PENALTIES} penalties were computed, and no weight of the model has moved: is a copy of it "
                    "trained, or does the optimiser hold other weights? Give FROMP the model that is trained."
                )
        return unmoved

    def check_rows(self, grown: Mapping[str, int]) -> None:
        """An error if all weights are as they were but for the first rows of those that have grown, by name."""
        now = fingerprint(self._model, self._known)
        rest = {name: of for name, of in _of_weights(self._model, self.fixed).items() if name not in grown}
        if not rest or not _same(rest, now, EQUAL):
            return  # training has moved them all
        for name, rows in grown.items():
            if name in self.fixed and not _same({name: self.fixed[name]}, now, EQUAL):
                raise DataError(
                    f"'{name}' has grown, and its first {rows} rows are not those it had when the last task ended, so "
                    "that past tasks lose their outputs; copy them before training: with torch.no_grad(), "
                    f"new[:{rows}] = old."
                )


def _of_weights(model: nn.Module, one: Fingerprint) -> Fingerprint:
    """Without buffers, which a forward pass may move."""
    weights = named_weights(model)
    return {name: of for name, of in one.items() if name in weights}


def _same(one: Mapping[str, Any], other: Fingerprint, tolerance: float) -> bool:
    """Whether all that the one has is in the other, within a share of its norm."""
    for name, of in one.items():
        if name not in other:
            return False
        limit = tolerance * other[name][1]
        if any(abs(a - b) > limit for a, b in zip(of, other[name], strict=True)):
            return False
    return True


def _warn(text: str) -> None:
    warnings.warn(text, FrompWarning, stacklevel=5)
