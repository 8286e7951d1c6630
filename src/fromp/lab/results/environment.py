"""The machine and the versions that results were computed with."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

import fromp


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
