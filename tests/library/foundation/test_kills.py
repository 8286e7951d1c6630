"""What is killed goes on and ends with the same bits. Two hundred times: `tools/reliability/kills.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.mark.slow
def test_what_is_killed_ends_with_the_same_bits(tmp_path):
    out = tmp_path / "kills.json"
    command = [sys.executable, "-m", "reliability.kills", "--kills", "3", "--works", "fromp", "two ranks"]
    done = subprocess.run([*command, "--out", str(out)], cwd=TOOLS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["kills"] >= 3
    assert found["works"]["two ranks"]["equal"] == found["works"]["two ranks"]["runs"] > 0
