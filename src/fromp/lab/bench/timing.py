"""How things are timed: in turn, or in a process of their own."""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable


def interleaved(cases: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median seconds of each case, taken in turn, so that a busy moment of the machine falls on all of them.

    The order changes from turn to turn: behind a large case, another one finds its data gone from the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(repetitions + 1):
        for name in random.Random(repetition).sample(list(cases), len(cases)):
            start = time.perf_counter()
            cases[name]()
            if repetition:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def in_a_process(call: str) -> float:
    """The number that a function of `fromp.lab.bench.memory` prints, called in a process of its own."""
    command = [sys.executable, "-c", f"from fromp.lab.bench import memory; memory.{call}"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
