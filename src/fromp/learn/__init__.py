"""Learning from one's own data as it comes, months apart: `Learner`, and the commands of `fromp` that use it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fromp.learn.learner import Learner

__all__ = ["Learner"]

COMMANDS = (
    "learn",
    "evaluate",
    "predict",
    "inspect",
    "forget",
    "merge",
    "upgrade",
)  # they need the extra `learn` alone


def __getattr__(name: str) -> Any:
    """The learner when it is first asked for: the command line prints its help without loading torch."""
    if name != "Learner":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from fromp.learn.learner import Learner

    return Learner
