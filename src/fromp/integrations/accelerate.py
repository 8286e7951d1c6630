"""Accelerate: the memory in its checkpoints, and each process's part of a prepared loader."""

from typing import Any, TypeVar

from torch.utils.data import DataLoader

from fromp.integrations.part import part_of
from fromp.protocol import Regulariser

R = TypeVar("R", bound=Regulariser)


def prepared(accelerator: Any, regulariser: R) -> R:
    """The same regulariser, whose memory `accelerator.save_state` and `load_state` now keep.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    reg = prepared(accelerator, FROMP(accelerator.unwrap_model(model), Categorical()))
    accelerator.backward(loss + reg.penalty())  # in the loop
    end_task(reg, loader)                       # after each task, on every process
    """
    accelerator.register_for_checkpointing(regulariser)
    return regulariser


def end_task(regulariser: Regulariser, loader: DataLoader, **how: Any) -> None:
    """End the task whose loader `accelerator.prepare` gave; how: further arguments, such as head=[2, 3]."""
    regulariser.end_task(part_of(loader, regulariser), **how)
