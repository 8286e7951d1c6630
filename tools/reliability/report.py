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


def kept(out: Path) -> dict[str, Any]:
    """What an earlier call of the same campaign has found so far; nothing if there was none."""
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def keep(out: Path, found: Mapping[str, Any], findings: list[str], quiet: bool = False, before: int = 0) -> int:
    """Write a campaign's report; the exit code is 1 if it has found anything. before: the seconds of earlier calls."""
    said = {
        "command": ["python", "-m", f"reliability.{Path(sys.argv[0]).stem}", *sys.argv[1:]],
        "environment": environment(),
        "seconds": before + round(time.monotonic() - START),
        **found,
        "findings": findings[:100],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    storage.replace(out, (json.dumps(said, indent=1) + "\n").encode())
    if not quiet:
        print(f"{json.dumps(found)}\n{len(findings)} findings; written: {out}")
        for finding in findings[:20]:
            print(f"  {finding}")
    return 1 if findings else 0
