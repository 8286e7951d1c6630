"""Kill a run at random moments, again and again, and see whether it still ends where it would have ended.

python tools/kill_runs.py --kills 50 --out results/kills/kills.json
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fromp.foundation import storage
from fromp.lab.results.environment import environment

METHODS = ("fromp", "frorp", "si", "vcl-coreset", "der++", "frcl-trace", "joint", "separate")
RUN = ["toy", "--tasks", "3", "--epochs", "5", "--quiet", "--checkpoint-seconds", "0.05"]


def command(out: Path, method: str) -> list[str]:
    return [sys.executable, "-m", "fromp", "run", *RUN, "--method", method, "--out", str(out)]


def outcome(out: Path) -> dict:
    manifest = json.loads((out / "seeds" / "0" / "checkpoint" / storage.MANIFEST).read_text())
    runs = json.loads((out / "results.json").read_text())["runs"]
    return {"digest": manifest["files"]["tensors"]["sha256"], "accuracy": runs[0]["accuracy"]}


def kill_until_done(out: Path, method: str, chance: random.Random) -> int:
    """Start the command, kill it after a random time, and so on until it finishes by itself; how often it died."""
    kills = 0
    while True:
        process = subprocess.Popen(command(out, method))
        start, limit = time.monotonic(), chance.uniform(1.5, 12.0)
        while process.poll() is None and time.monotonic() - start < limit:
            time.sleep(0.01)
        if process.poll() is not None:
            assert process.returncode == 0
            return kills
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    chance = random.Random(0)
    report: dict = {"environment": environment(), "command": RUN, "methods": {}, "kills": 0}
    with tempfile.TemporaryDirectory() as scratch:
        for round_ in range(1000):
            method = METHODS[round_ % len(METHODS)]
            entry = report["methods"].setdefault(method, {"kills": 0, "runs": 0, "equal": True})
            whole, killed = Path(scratch) / f"whole-{method}", Path(scratch) / f"killed-{round_}"
            if not whole.exists():
                subprocess.run(command(whole, method), check=True)
            entry["kills"] += (died := kill_until_done(killed, method, chance))
            entry["runs"] += 1
            entry["equal"] &= outcome(killed) == outcome(whole)
            report["kills"] += died
            print(f"{report['kills']} kills, {method}: equal {entry['equal']}", flush=True)
            if report["kills"] >= options.kills and round_ + 1 >= len(METHODS):
                break
    report["all_equal"] = all(entry["equal"] for entry in report["methods"].values())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    storage.replace(options.out, (json.dumps(report, indent=1) + "\n").encode())
    print(f"all equal: {report['all_equal']}; written: {options.out}")
    sys.exit(0 if report["all_equal"] else 1)


if __name__ == "__main__":
    main()
