"""A task's data, however it is given: inputs and labels, minibatches, a Dataset or a DataLoader."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fromp.foundation import inputs
from fromp.foundation.arrays import Array, as_tensor, as_tensors, describe, is_array, is_numbers
from fromp.foundation.errors import DataError
from fromp.foundation.inputs import Inputs

Batch = tuple[Inputs, Tensor]
LABELS = ("labels", "label")  # the names of labels in a dict, as Hugging Face has them


class Examples(ABC):
    """Labelled examples that can be walked through in order and picked by index."""

    weight: float = 1.0  # how many examples of the task each one stands for

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, indices: Tensor) -> Batch:
        """The examples at `indices`, in that order."""

    def batches(self, size: int) -> Iterator[Batch]:
        """All examples in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.take(torch.arange(start, min(start + size, len(self))))


@final
class TensorExamples(Examples):
    """Inputs and labels that are already tensors."""

    def __init__(self, x: Inputs, y: Tensor) -> None:
        self.x, self.y = x, y
        if inputs.num_examples(x) != len(y):
            raise DataError(f"{inputs.num_examples(x)} inputs but {len(y)} labels; give one label for each input.")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: Tensor) -> Batch:
        return inputs.take(self.x, indices), self.y[indices]

    def batches(self, size: int) -> Iterator[Batch]:
        for start in range(0, len(self), size):
            batch = slice(start, start + size)  # a slice is a view: nothing is copied
            yield inputs.take(self.x, batch), self.y[batch]


@final
class SomeExamples(Examples):
    """Those of other examples that have the given indices."""

    def __init__(self, examples: Examples, indices: Tensor) -> None:
        self._examples, self.indices = examples, indices

    def __len__(self) -> int:
        return len(self.indices)

    def take(self, indices: Tensor) -> Batch:
        return self._examples.take(self.indices[indices])


@final
class DatasetExamples(Examples):
    """A map-style dataset of (input, label) pairs, or of dicts with a label."""

    def __init__(
        self,
        dataset: Dataset,
        collate: Callable[[list], Any] | None = None,
        num_workers: int = 0,
        floats: torch.dtype | None = None,
    ) -> None:
        self.dataset, self.num_workers, self.floats = dataset, num_workers, floats
        self.collate = partial(_collate, floats=floats) if collate in (None, default_collate) else collate

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def take(self, indices: Tensor) -> Batch:
        return labelled(self.collate([self.dataset[i] for i in indices.tolist()]), self.floats)

    def batches(self, size: int) -> Iterator[Batch]:
        # A generator of its own: a loader without one draws a seed from the global random state.
        loader = DataLoader(
            self.dataset, size, collate_fn=self.collate, num_workers=self.num_workers, generator=torch.Generator()
        )
        for batch in loader:
            yield labelled(batch, self.floats)


class Indexed(Protocol):
    """A map-style dataset that is not a torch one, such as a `datasets.Dataset` of Hugging Face."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


# Inputs alone, such as a tensor, are for `end_task(x, y)`. A list holds minibatches or examples.
TaskData: TypeAlias = (
    Examples
    | tuple[Any, Any]
    | list[Any]
    | Mapping[str, Any]
    | Dataset[Any]
    | DataLoader[Any]
    | Tensor
    | Array
    | Indexed
)


def as_examples(data: TaskData, floats: torch.dtype | None = None, ranks: int = 1) -> Examples:
    """The examples of a task, in any of the forms of `TaskData`; a DataLoader's order and batch size do not matter.

    floats: what the floating-point numbers of arrays and lists become; torch's default type unless given.
    ranks: how many processes share the task. A DistributedSampler's part is taken without the examples that it repeats.
    """
    if isinstance(data, Examples):
        examples = data
    elif isinstance(data, DataLoader):
        part = _part_of(data, ranks)
        examples = DatasetExamples(_map_style(data.dataset), data.collate_fn, data.num_workers, floats)
        if part is not None:
            examples = SomeExamples(examples, part)
    elif isinstance(data, list) and not _is_pair(data):
        examples = _listed(data, floats)
    elif isinstance(data, tuple | list | Mapping) or inputs_alone(data):
        examples = TensorExamples(*labelled(data, floats))
    else:
        examples = DatasetExamples(_map_style(data), floats=floats)
    if len(examples) == 0:
        raise DataError("the task has no examples; end_task needs at least one.")
    return examples


def inputs_alone(data: TaskData) -> bool:
    """Whether the labels have still to be given: a tensor, an array, or a dict that names none."""
    if isinstance(data, Mapping):
        return not any(name in data for name in LABELS)
    return isinstance(data, Tensor) or is_array(data)


def arrange(data: TaskData, more: Sequence[Any], head: Sequence[int] | None) -> tuple[TaskData, Sequence[int] | None]:
    """The data with their labels, and the head, of `end_task(data, head)` or `end_task(x, y, head)`."""
    rest = list(more)
    if rest and inputs_alone(data):
        data = (data, rest.pop(0))
    elif rest and isinstance(data, list | tuple) and data and all(isinstance(one, str) for one in data):
        raise DataError(f"{describe(data)} holds text; a network takes numbers: encode it first, as with a tokenizer.")
    elif rest and (isinstance(rest[0], Tensor) or is_array(rest[0])):
        raise DataError(
            f"{describe(rest[0])} was given beside {describe(data)}, which should hold labels already; give several "
            "inputs as end_task(((a, b), y)), and the outputs of a head as head=[2, 3]."
        )
    if rest and rest[0] is not None:
        if head is not None:
            raise DataError(f"the head was given twice, as {rest[0]} and as {head}; give it once.")
        head = rest[0]
    if len(rest) > 1:
        raise DataError("end_task takes (x, y) or x, y, then the head; give everything else by name, as in scores=...")
    return data, head


def labelled(given: Any, floats: torch.dtype | None = None) -> Batch:
    """The inputs and the labels of a pair, or of a dict with labels in it, as tensors."""
    if isinstance(given, Mapping) and not inputs_alone(given):
        names = [name for name in LABELS if name in given]
        if len(names) > 1:
            raise DataError(f"{describe(given)} has 'labels' and 'label'; leave one of them out.")
        x, y = {name: part for name, part in given.items() if name not in names}, given[names[0]]
    elif isinstance(given, tuple | list) and len(given) == 2:
        x, y = given
    elif inputs_alone(given):
        raise DataError(
            f"{describe(given)} holds no labels; give them beside the inputs, as in end_task(x, y) or (x, y), or in a "
            "dict under 'labels' or 'label'."
        )
    else:
        raise DataError(
            f"{describe(given)} is not labelled data; give (inputs, labels), or a dict with 'labels' or 'label'. "
            "Several inputs go in a tuple or dict of their own: ((a, b), labels)."
        )
    x, y = as_tensors(x, floats), _as_labels(y, floats)
    if any(part.is_meta for part in (*inputs.tensors(x), y)):
        raise DataError("the data are on the meta device and have no values; give real tensors.")
    return x, y


def _as_labels(y: Any, floats: torch.dtype | None) -> Tensor:
    if y is None:
        raise DataError("the labels are None; give one label for each input.")
    if isinstance(y, str) or (isinstance(y, list | tuple) and any(isinstance(one, str) for one in y)):
        raise DataError(f"the labels are text ({y if isinstance(y, str) else y[0]!r}); number the classes from 0.")
    if not _are_labels(y):
        raise DataError(f"the labels are {describe(y)}; give a tensor, an array or a list of numbers.")
    y = y if isinstance(y, Tensor) else as_tensor(y, floats)
    if y.ndim == 0:
        raise DataError(f"there is a single label ({y.item()}) without an axis of examples; give shape (examples,).")
    return y if y.is_floating_point() or y.dtype == torch.bool else y.long()


def _are_labels(y: Any) -> bool:
    return isinstance(y, Tensor) or is_array(y) or is_numbers(y)


def _is_pair(data: list) -> bool:
    """Whether a list is [inputs, labels], not minibatches or examples."""
    return len(data) == 2 and (_are_labels(data[1]) or _kind(data[0]) == "neither")


def _listed(data: list, floats: torch.dtype | None) -> Examples:
    """A list of minibatches, joined, or a list of single examples."""
    kinds = set(map(_kind, data))
    if kinds == {"an example"}:
        return DatasetExamples(data, floats=floats)  # type: ignore[arg-type]
    if kinds - {"a minibatch"}:
        other = next(one for one in data if _kind(one) != "a minibatch")
        raise DataError(
            f"a list is read as minibatches [(x, y), ...], and this one holds {describe(other)}; give inputs and "
            "labels as a tuple (x, y), and several inputs as ((a, b), y)."
        )
    batches = [labelled(batch, floats) for batch in data]
    for k, (x, y) in enumerate(batches):
        first, this = ((inputs.signature(x), y.shape[1:]) for x, y in (batches[0], (x, y)))
        if first != this:
            raise DataError(
                f"minibatch {k} has inputs and labels {_shapes(x, y)}, the first {_shapes(*batches[0])}, so that they "
                "cannot be joined; pad all to one length, or give the DataLoader, which pads what is kept."
            )
    if not batches:
        raise DataError("the task has no examples; end_task needs at least one.")
    return TensorExamples(inputs.concatenate([x for x, _ in batches]), torch.cat([y for _, y in batches]))


def _kind(one: Any) -> str:
    """What a member of a list is: its labels tell."""
    if isinstance(one, Mapping) and not inputs_alone(one):
        y = next(one[name] for name in LABELS if name in one)
    elif isinstance(one, tuple | list) and len(one) == 2:
        y = one[1]
    else:
        return "neither"
    return "an example" if isinstance(y, int | float) or getattr(y, "ndim", 1) == 0 else "a minibatch"


def _shapes(x: Inputs, y: Tensor) -> str:
    parts = (*inputs.tensors(x), y)
    return ", ".join(f"{str(part.dtype).removeprefix('torch.')} {tuple(part.shape)}" for part in parts)


def _collate(items: list, floats: torch.dtype | None) -> Any:
    """Examples stacked as torch does it, with their arrays and lists of numbers as tensors."""

    def number(part: Any) -> Any:
        return torch.tensor(part, dtype=floats) if isinstance(part, float) else part  # torch would make it a double

    def converted(item: Any) -> Any:
        item = as_tensors(item, floats)
        if isinstance(item, Mapping):
            return {name: number(part) for name, part in item.items()}
        return tuple(map(number, item)) if isinstance(item, tuple) else item

    try:
        return default_collate([converted(item) for item in items])
    except (RuntimeError, TypeError, KeyError) as error:
        raise DataError(
            f"the examples of the dataset, such as {describe(items[0])}, cannot be stacked ({error}); make them alike, "
            "or give a DataLoader with a collate_fn that pads them."
        ) from error


def _part_of(loader: DataLoader, ranks: int) -> Tensor | None:
    """The part that a DistributedSampler gives to this process; None for all, an error for any other part."""
    _map_style(loader.dataset)
    if loader.batch_sampler is None:
        raise DataError(
            "the DataLoader has batch_size=None, so that its dataset gives minibatches of any size; give list(loader)."
        )
    by_batch = loader.batch_size is None
    sampler = getattr(loader.batch_sampler, "sampler", loader.batch_sampler) if by_batch else loader.sampler
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas == ranks:
        return torch.arange(sampler.rank, len(loader.dataset), ranks)  # type: ignore[arg-type]
    whole = isinstance(sampler, SequentialSampler) or (isinstance(sampler, RandomSampler) and not sampler.replacement)
    if not (whole and len(sampler) == len(loader.dataset)):  # type: ignore[arg-type]
        raise DataError(
            f"the DataLoader's {type(sampler).__name__} takes only some of its dataset, or some twice; "
            "give the examples of the task as a torch.utils.data.Subset."
        )
    return None


def _map_style(dataset: Any) -> Dataset:
    if isinstance(dataset, IterableDataset | Iterator):
        raise DataError(
            f"{describe(dataset)} can only be gone through in order, and end_task comes back to single examples; "
            "give list(...) of its minibatches, or a Dataset with __len__ and __getitem__."
        )
    if isinstance(dataset, str | bytes | type) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError(
            f"{describe(dataset)} is not the data of a task; give (x, y), a list of such minibatches, a dict with "
            "'labels', a Dataset with __len__ and __getitem__, or a DataLoader."
        )
    return dataset
