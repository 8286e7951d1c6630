"""What a run asks of the machine, and what results say of it."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fromp
from fromp.lab.benchmarks.networks import num_weights

LARGE = 500_000  # weights: below, threads wait for each other longer than they work
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # the names that glibc's malloc.h has for these numbers


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """One thread for a small network; all of them, and memory that is kept, for a large one."""
    before, large = torch.get_num_threads(), num_weights(model) >= LARGE
    if large:
        keep_memory()
    torch.set_num_threads(before if large else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_memory() -> bool:
    """Keep for this process what it frees, to be used again; whether the C library lets one choose (glibc does).

    Otherwise a step of a large network gives hundreds of megabytes of activations back to the system and asks for them
    again, and the system has to clear every page of them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))


def environment() -> dict[str, Any]:
    """Versions and machine, as far as they bear on the numbers."""
    return {
        "fromp": fromp.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
