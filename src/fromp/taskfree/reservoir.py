"""A bounded, uniform sample of the examples a task has shown, for when the data itself is gone."""

import heapq
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from fromp.foundation import inputs
from fromp.foundation.errors import CheckpointError, FrompError
from fromp.foundation.examples import Batch, Examples
from fromp.foundation.inputs import Inputs
from fromp.foundation.state import State, field, tensor


@final
class Sample(Examples):
    """A sample of a task, each example standing for `weight` of the task's."""

    def __init__(self, x: Inputs, y: Tensor, weight: float) -> None:
        self.x, self.y, self.weight = x, y, weight

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Tensor) -> Batch:
        return inputs.take(self.x, indices), self.y[indices]


@final
class Reservoir:
    """The `capacity` distinct examples whose hashes are lowest: each example shown so far is as likely to be there.

    An example counts once, however often it is shown, so that ten epochs of a task are the same task. The number of
    distinct examples follows from the sample: exact until it is full, then (capacity - 1) / its highest hash.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        if capacity < 2:
            raise FrompError(f"a reservoir must hold at least 2 examples (got {capacity}).")
        self.capacity, self.seed = capacity, seed
        self.clear()

    def __len__(self) -> int:
        return len(self._heap)

    def clear(self) -> None:
        """Forget everything."""
        self._heap: list[tuple[float, int]] = []  # (-hash, slot): the highest hash is the next to go
        self._hashes: set[float] = set()
        self._store: Batch | None = None  # `capacity` slots

    @property
    def distinct(self) -> float:
        """About how many distinct examples have been shown."""
        full = len(self) == self.capacity
        return (self.capacity - 1) / -self._heap[0][0] if full else float(len(self))

    def add(self, x: Inputs, y: Tensor) -> None:
        """Add a minibatch to the sample."""
        slots: dict[int, int] = {}
        for index, number in enumerate(hashes([*inputs.tensors(x), y], self.seed).tolist()):
            if number in self._hashes:
                continue
            if len(self) < self.capacity:
                slot = len(self)
                heapq.heappush(self._heap, (-number, slot))
            elif number < -self._heap[0][0]:
                highest, slot = self._heap[0]
                heapq.heapreplace(self._heap, (-number, slot))
                self._hashes.remove(-highest)
            else:
                continue
            self._hashes.add(number)
            slots[slot] = index
        if slots:
            self._put(list(slots), list(slots.values()), x, y)

    def sample(self) -> Sample:
        """What is kept, as the data of a task."""
        if self._store is None:
            raise FrompError("the reservoir is empty; a task needs at least one example.")
        x, y = self._store
        kept = slice(0, len(self))
        return Sample(inputs.take(x, kept), y[kept], self.distinct / len(self))

    def state_dict(self) -> State:
        """What is kept."""
        if self._store is None:
            return {"sample": None}
        sample = self.sample()
        numbers = [-number for number, _ in sorted(self._heap, key=lambda entry: entry[1])]
        return {"sample": [sample.x, sample.y], "hashes": torch.tensor(numbers, dtype=torch.double)}

    def load_state_dict(self, state: State) -> None:
        """Return to a state that `state_dict` gave."""
        sample = field(state, "sample", list, type(None))
        if sample is None:
            self.clear()
            return
        hashes = tensor(state, "hashes", -1, floating=True)
        sound = 0 < len(hashes) <= self.capacity and len(hashes.unique()) == len(hashes)
        if not sound or not bool(((hashes > 0) & (hashes < 1)).all()):
            raise CheckpointError("the saved 'hashes' are not those of a reservoir; restore it from a copy.")
        x, y = _examples(sample, len(hashes))
        self.clear()
        numbers = hashes.tolist()
        self._heap = [(-number, slot) for slot, number in enumerate(numbers)]
        heapq.heapify(self._heap)
        self._hashes = set(numbers)
        places = list(range(len(numbers)))
        self._put(places, places, x, y)

    def _put(self, slots: list[int], places: list[int], x: Inputs, y: Tensor) -> None:
        if self._store is None:
            self._store = inputs.transform(self._slots, x), self._slots(y)
        store_x, store_y = self._store
        for kept, part in zip([*inputs.tensors(store_x), store_y], [*inputs.tensors(x), y], strict=True):
            kept[slots] = part.detach()[places].to(kept.device)

    def _slots(self, part: Tensor) -> Tensor:
        return torch.empty(self.capacity, *part.shape[1:], dtype=part.dtype, device=part.device)


def _examples(sample: Any, count: int) -> Batch:
    """A saved sample of so many examples."""
    x, y = sample if len(sample) == 2 else (None, None)
    y = tensor({"labels": y}, "labels")
    if not isinstance(x, Tensor | list | tuple | dict) or not y.ndim or {inputs.num_examples(x), len(y)} != {count}:
        raise CheckpointError(f"the saved sample does not hold {count} examples; restore it from a copy.")
    inputs.check_finite(x)
    return x, y


def hashes(parts: list[Tensor], seed: int) -> Tensor:
    """A number in (0, 1) for each row that depends on its bytes and the seed alone, uniform over rows: (b,)."""
    words = torch.cat([_words(part) for part in parts], 1)  # (b, words)
    factors = _factors(1 + words.shape[1], seed).to(words.device)
    mixed = factors[0] + (words * factors[1:]).sum(1)  # integers wrap: the order of the sum does not matter
    for shift in (32, 29, 32):
        mixed = (mixed ^ ((mixed >> shift) & (2 ** (64 - shift) - 1))) * 0x5851F42D4C957F2D
    return ((mixed >> 11) & (2**53 - 1)).double().cpu() / 2**53 + 2.0**-54


def _words(part: Tensor) -> Tensor:
    """The bytes of each row, eight to a number: (b, words)."""
    rows = part.detach().reshape(len(part), -1).contiguous().view(torch.uint8)
    if short := -rows.shape[1] % 8:
        rows = torch.nn.functional.pad(rows, (0, short))
    return rows.view(torch.int64)


@lru_cache(maxsize=8)
def _factors(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator) | 1
