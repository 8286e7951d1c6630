"""Commands that are interrupted end with the codes that are documented. All of them: `tools/reliability/signals.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.slow
def test_every_end_is_as_documented(tmp_path):
    out = tmp_path / "signals.json"
    command = [sys.executable, "-m", "reliability.signals", "--rounds", "1", "--commands", "run", "learn"]
    done = subprocess.run([*command, "--out", str(out)], cwd=TOOLS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["commands"]
    assert {what for command in found.values() for what in command} >= {"SIGTERM", "disk full", "removed"}
