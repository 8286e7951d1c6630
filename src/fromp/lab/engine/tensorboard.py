"""Scalars for TensorBoard while a run goes on: an extra, `pip install '.[tensorboard]'`."""

from pathlib import Path

from fromp.foundation.errors import FrompError, install
from fromp.lab.engine.run import Moment, Watch

EVERY_STEPS = 50


def watcher(path: Path) -> Watch:
    """Writes loss, penalty and accuracies under `path`, to be seen with `tensorboard --logdir`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FrompError(f"TensorBoard is not installed; {install('tensorboard')}, or leave it out.") from error
    writer = SummaryWriter(str(path))

    def watch(moment: Moment) -> None:
        if moment.finished:
            for task, value in enumerate(moment.accuracy[-1]):
                writer.add_scalar(f"accuracy/task {task + 1}", value, moment.task)
            writer.flush()
        elif moment.step % EVERY_STEPS == 0:
            step = moment.past_steps + moment.step
            writer.add_scalar("loss", float(moment.loss.data), step)
            writer.add_scalar("penalty", float(moment.loss.penalty), step)

    return watch
