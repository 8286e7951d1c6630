"""What can go wrong, by name. Every message names the value, the limit and the way out."""

import sys
import warnings


class FrompError(ValueError):
    """A value that fromp cannot work with; nothing was changed."""


class DataError(FrompError):
    """Data that is missing, damaged, or does not fit the model, the head or the memory."""


class DerivativeError(FrompError):
    """A derivative that the method needs does not exist or is not finite."""


class KernelError(FrompError):
    """A kernel matrix that is not positive definite."""


class CheckpointError(FrompError):
    """A folder that cannot be read, is damaged, or belongs to something else."""


class FrompWarning(UserWarning):
    """Something that works, but probably not as it is meant."""


def warn(text: str) -> None:
    """A warning at the line outside the package that led to it, however many calls lie between."""
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FrompWarning, stacklevel=level)


def install(extra: str) -> str:
    """How to get what an extra of the package needs."""
    return f"pip install 'fromp[{extra}]', or in a clone pip install '.[{extra}]'"
