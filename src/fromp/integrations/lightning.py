"""Lightning: a callback adds the penalty, ends the task when a fit has ended, and travels with the checkpoints."""

import os
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fromp.derivatives.model import device_of, dtype_of
from fromp.foundation.errors import CheckpointError, FrompError, install
from fromp.foundation.state import State
from fromp.integrations.part import check_trained, part_of, penalty_of
from fromp.protocol import Regulariser

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise FrompError(f"Lightning is not installed; {install('lightning')}.") from error


class RegulariserCallback(Callback):
    """Adds `reg.penalty()` to the loss of every step, and ends the task when `trainer.fit` has trained to its end.

        reg = FROMP(module.network, Categorical())
        Trainer(callbacks=[RegulariserCallback(reg)]).fit(module, loader)

    how: further arguments of `end_task`, such as head=[2, 3]. They can change between fits:
        `callback.how["head"] = [4, 5]`.

    With `automatic_optimization=False` each `manual_backward` adds the penalty.
    """

    def __init__(self, regulariser: Regulariser, **how: Any) -> None:
        self.regulariser, self.how = regulariser, how
        self._batch: Any = None  # of the step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What is kept goes where the Trainer has brought the model, and has its precision."""
        check_trained(pl_module, self.regulariser)
        bring = getattr(self.regulariser, "to", None)
        if bring is not None:
            model = self.regulariser.model
            bring(device_of(model), dtype_of(model))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Note the minibatch, for a penalty that looks at it."""
        self._batch = batch

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Add the penalty in place, in the units of the loss: divided by the accumulated batches, scaled for fp16."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        share = 1 / trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1.0
        penalty = penalty_of(self.regulariser, self._batch, self.how)
        loss.add_(share * (penalty if scaler is None else scaler.scale(penalty)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The training data of this fit are a task; an interrupted fit does not come here."""
        self._batch = None
        data: Any = trainer.train_dataloader
        if isinstance(data, DataLoader):  # end_task names what anything else is
            data = part_of(data, self.regulariser, trainer.precision_plugin.convert_input)
        self.regulariser.end_task(data, **self.how)

    def state_dict(self) -> State:
        """What the checkpoint keeps of it: the state of the regulariser."""
        return self.regulariser.state_dict()

    def load_state_dict(self, state_dict: State) -> None:
        """Called by `trainer.fit(..., ckpt_path=...)`."""
        self.regulariser.load_state_dict(state_dict)

    def load_from_checkpoint(self, path: str | os.PathLike) -> "RegulariserCallback":
        """What a checkpoint keeps, beside `LightningModule.load_from_checkpoint`, which reads the weights alone."""
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)  # numbers and texts, and no other object
        except Exception as error:  # torch names a damaged file in many ways
            raise CheckpointError(f"cannot read {path} ({error}); give a checkpoint of Lightning.") from error
        kept = found.get("callbacks", {}) if isinstance(found, dict) else None
        if not isinstance(kept, dict):
            raise CheckpointError(f"{path} is not a checkpoint of Lightning; give one.")
        if self.state_key not in kept:
            names = ", ".join(sorted(map(str, kept))) or "none"
            raise CheckpointError(
                f"{path} holds no memory: it was saved without this callback. It holds the callbacks {names}."
            )
        self.load_state_dict(kept[self.state_key])
        return self
