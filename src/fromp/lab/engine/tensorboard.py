"""Scalars for TensorBoard during a run: an extra, `pip install '.[tensorboard]'`."""

from collections.abc import Callable
from pathlib import Path

from fromp.foundation.errors import FrompError, install
from fromp.lab.engine.run import Progress

EVERY_STEPS = 50


def watcher(path: Path) -> Callable[[Progress], None]:
    """Writes loss, penalty and accuracies under `path`, to be seen with `tensorboard --logdir`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FrompError(f"TensorBoard is not installed; {install('tensorboard')}, or leave it out.") from error
    writer = SummaryWriter(str(path))

    def watch(progress: Progress) -> None:
        if progress.finished:
            for task, value in enumerate(progress.accuracy[-1] or ()):
                writer.add_scalar(f"accuracy/task {task + 1}", value, progress.task)
            writer.flush()
        elif progress.step % EVERY_STEPS == 0:
            step = progress.past_steps + progress.step
            writer.add_scalar("loss", float(progress.loss.data), step)
            writer.add_scalar("penalty", float(progress.loss.penalty), step)

    return watch
