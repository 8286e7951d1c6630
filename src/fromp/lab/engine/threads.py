"""Threads and memory of a run, by the size of the network."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fromp.lab.benchmarks.networks import num_weights

LARGE = 500_000  # weights; for smaller networks one thread is faster
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
    """Keep freed memory in this process for reuse; returns whether the C library can (glibc can).

    Otherwise a step of a large network gives hundreds of megabytes of activations back to the system and asks for them
    again, and the system has to clear every page of them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_MAX, 0)) and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1))
