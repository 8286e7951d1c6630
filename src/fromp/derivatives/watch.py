"""Whether the weights are those that were saved, and whether training moves them."""

import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias, final

import torch
from torch import nn

from fromp.foundation.errors import FrompWarning

Fingerprint: TypeAlias = dict[str, list[float]]  # mean and norm of each weight

STILL_PENALTIES = 200  # after which some weight should have moved
CLOSE = 0.01  # of a weight's norm: a change of precision moves its mean and norm by less


def fingerprint(model: nn.Module) -> Fingerprint:
    """The mean and the norm of each weight that training changes."""
    found = {name: w.detach().double() for name, w in model.named_parameters() if w.requires_grad}
    return {name: [float(w.mean()), float(w.norm())] for name, w in found.items()}


@final
class WeightWatch:
    """Warns once if a penalty is computed at weights that it does not belong to, or if they never move.

    saved: the fingerprint of the weights beside which the memory was saved, if it was loaded.
    """

    def __init__(self, model: nn.Module, saved: Mapping[str, Any] | None = None) -> None:
        self._model, self._saved = model, saved
        self._penalties = 0
        self._first: Fingerprint = {}

    def look(self) -> None:
        """Called for each penalty."""
        if self._saved is not None:
            saved, self._saved = self._saved, None
            if not _same(saved, fingerprint(self._model)):
                _warn(
                    "the model's weights are not those that it had when this memory was saved, so that the penalty "
                    "pulls it elsewhere; load the weights that belong to the memory before training."
                )
        if torch.is_grad_enabled() and self._penalties < STILL_PENALTIES:
            self._penalties += 1
            if self._penalties == 1:
                self._first = fingerprint(self._model)
            elif self._penalties == STILL_PENALTIES and self._first == fingerprint(self._model):
                _warn(
                    f"{STILL_PENALTIES} penalties were computed, and no weight of the model has moved: is a copy of it "
                    "trained, or does the optimiser hold other weights? Give FROMP the model that is trained."
                )


def _same(one: Mapping[str, Any], other: Fingerprint) -> bool:
    if one.keys() != other.keys():
        return False
    pairs = ((a, b, norm) for name, (*of, norm) in other.items() for a, b in zip(one[name], [*of, norm], strict=True))
    return all(abs(a - b) <= CLOSE * norm for a, b, norm in pairs)


def _warn(text: str) -> None:
    warnings.warn(text, FrompWarning, stacklevel=4)
