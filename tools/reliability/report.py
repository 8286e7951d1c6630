"""How a campaign's figure is kept: as JSON with the command, the versions and the time it took."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fromp.foundation import storage
from fromp.lab.results.environment import environment

START = time.monotonic()


def keep(out: Path, found: Mapping[str, Any], findings: list[str]) -> int:
    """Write a campaign's report; the exit code is 1 if it has found anything."""
    said = {
        "command": ["python", "-m", f"reliability.{Path(sys.argv[0]).stem}", *sys.argv[1:]],
        "environment": environment(),
        "seconds": round(time.monotonic() - START),
        **found,
        "findings": findings[:100],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    storage.replace(out, (json.dumps(said, indent=1) + "\n").encode())
    print(f"{json.dumps(found)}\n{len(findings)} findings; written: {out}")
    for finding in findings[:20]:
        print(f"  {finding}")
    return 1 if findings else 0
