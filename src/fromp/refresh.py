"""Which kernels of past tasks are computed anew when a task ends; the others stay as they were."""

from collections.abc import Callable
from typing import TypeAlias

# (task, tasks) -> whether task number `task`, counted from 1, is due when the last of `tasks` tasks has ended
Refresh: TypeAlias = Callable[[int, int], bool]


def at_every_end(task: int, tasks: int) -> bool:
    """Every kernel at every task's end, as in the paper: over t tasks t^2 / 2 of them are computed."""
    return True


def when_doubled(task: int, tasks: int) -> bool:
    """A kernel whenever there are twice as many tasks as when it was computed: over t tasks 2 t of them.

    The precision is a sum over tasks, so that no kernel is of a sum that has lost more than half of its terms.
    """
    ratio, rest = divmod(tasks, task)
    return rest == 0 and ratio.bit_count() == 1


def never(task: int, tasks: int) -> bool:
    """No kernel after its own task's end: over t tasks t of them."""
    return False
