"""Hugging Face Trainer: a mixin adds the penalty, ends the task after `train`, and keeps the memory with the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from fromp.foundation import storage
from fromp.integrations.part import check_trained, part_of, penalty_of
from fromp.protocol import Regulariser

FOLDER = "fromp"  # within a checkpoint or a saved model


class RegulariserMixin:
    """Before `transformers.Trainer`, or a subclass of it, among the bases of a class.

        class RegularisedTrainer(RegulariserMixin, Trainer): ...

        reg = FROMP(model, Categorical())
        RegularisedTrainer(model, args, train_dataset=task, regulariser=reg).train()

    ending: further arguments of `end_task`, such as {"head": [2, 3]}.
    """

    def __init__(
        self, *args: Any, regulariser: Regulariser, ending: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.regulariser, self._ending = regulariser, dict(ending or {})
        self._data: DataLoader | None = None
        super().__init__(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss of the Trainer, and in training the penalty."""
        batch = dict(inputs)  # the Trainer may take the labels out
        found = super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        if not (model.training and torch.is_grad_enabled()):
            return found
        penalty = penalty_of(self.regulariser, batch, self._ending)
        if self._is_scaled(kwargs.get("num_items_in_batch")):  # by the Trainer, which then leaves the sum as it is
            penalty = penalty / self.current_gradient_accumulation_steps  # type: ignore[attr-defined]
        return (found[0] + penalty, *found[1:]) if isinstance(found, tuple) else found + penalty

    def get_train_dataloader(self) -> DataLoader:
        """The Trainer's, whose dataset and collator are those of the task."""
        check_trained(self.model, self.regulariser)  # type: ignore[attr-defined]  # `train` has made its model by now
        self._data = super().get_train_dataloader()  # type: ignore[misc]
        return self._data

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the Trainer does, and end the task; a checkpoint brings back the memory that was saved with it."""
        folder = resume_from_checkpoint
        if folder is True:
            from transformers.trainer_utils import get_last_checkpoint

            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[attr-defined]
        if folder:
            self.regulariser.load_state_dict(storage.read(Path(folder) / FOLDER, FOLDER))
        result = super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        assert self._data is not None
        whole = DataLoader(self._data.dataset, collate_fn=self._data.collate_fn)  # however the Trainer walks through it
        self.regulariser.end_task(part_of(whole, self.regulariser), **self._ending)
        return result

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """The model and, in a folder beside its files, the memory; the Trainer calls this for its checkpoints too."""
        super().save_model(output_dir, *args, **kwargs)  # type: ignore[misc]
        folder = Path(output_dir or self.args.output_dir) / FOLDER  # type: ignore[attr-defined]
        if self.is_world_process_zero():  # type: ignore[attr-defined]
            storage.write(folder, FOLDER, self.regulariser.state_dict())

    def _is_scaled(self, num_items: Any) -> bool:
        """Whether the loss is a sum over the accumulated batches already: the Trainer's own rule."""
        told = getattr(self, "loss_is_scaled_for_ga", None)
        if told is not None:
            return bool(told)
        accepts = self.model_accepts_loss_kwargs and num_items is not None  # type: ignore[attr-defined]
        return accepts or self.compute_loss_func is not None  # type: ignore[attr-defined]
