"""A task's data, however it is given: a pair of tensors, a Dataset or a DataLoader."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from fromp.foundation import inputs
from fromp.foundation.errors import DataError
from fromp.foundation.inputs import Inputs

Batch = tuple[Inputs, Tensor]


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
        self._examples, self._indices = examples, indices

    def __len__(self) -> int:
        return len(self._indices)

    def take(self, indices: Tensor) -> Batch:
        return self._examples.take(self._indices[indices])


@final
class DatasetExamples(Examples):
    """A map-style dataset of (input, label) pairs."""

    def __init__(self, dataset: Dataset, collate: Any = default_collate, num_workers: int = 0) -> None:
        self.dataset, self.collate, self.num_workers = dataset, collate, num_workers

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def take(self, indices: Tensor) -> Batch:
        return _pair(self.collate([self.dataset[i] for i in indices.tolist()]))

    def batches(self, size: int) -> Iterator[Batch]:
        # A generator of its own: a loader without one draws a seed from the global random state.
        loader = DataLoader(
            self.dataset, size, collate_fn=self.collate, num_workers=self.num_workers, generator=torch.Generator()
        )
        for batch in loader:
            yield _pair(batch)


def as_examples(data: Any) -> Examples:
    """The examples of a task given as (x, y), a Dataset, or a DataLoader (its order and batch size do not matter)."""
    if isinstance(data, Examples):
        examples = data
    elif isinstance(data, DataLoader):
        _check_sampler(data)
        collate = default_collate if data.collate_fn is None else data.collate_fn
        examples = DatasetExamples(_map_style(data.dataset), collate, data.num_workers)
    elif isinstance(data, Dataset) or not isinstance(data, tuple | list):
        examples = DatasetExamples(_map_style(data))
    else:
        examples = TensorExamples(*_pair(data))
    if len(examples) == 0:
        raise DataError("the task has no examples; end_task needs at least one.")
    return examples


def _check_sampler(loader: DataLoader) -> None:
    by_batch = loader.batch_size is None and loader.batch_sampler is not None
    sampler = getattr(loader.batch_sampler, "sampler", loader.batch_sampler) if by_batch else loader.sampler
    whole = isinstance(sampler, SequentialSampler) or (isinstance(sampler, RandomSampler) and not sampler.replacement)
    if not isinstance(loader.dataset, IterableDataset) and not (whole and len(sampler) == len(loader.dataset)):  # type: ignore[arg-type]
        raise DataError(
            f"the DataLoader's {type(sampler).__name__} takes only some of its dataset, or some twice; "
            "give the examples of the task as a torch.utils.data.Subset."
        )


def _map_style(dataset: Any) -> Dataset:
    by_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, Mapping)
    if isinstance(dataset, IterableDataset) or not by_index:
        raise DataError(
            f"{type(dataset).__name__} cannot be picked from by index; "
            "give (x, y) tensors or a Dataset with __len__ and __getitem__."
        )
    return dataset


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        length = f" of length {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise DataError(
            f"a batch is (inputs, labels), not {type(batch).__name__}{length}; several inputs go in a tuple."
        )
    x, y = batch
    if not isinstance(y, Tensor):
        raise DataError(f"labels are {type(y).__name__}; give a tensor.")
    return x, y
