"""How many folders of older formats there are and load, and how many packages an install brings.

cd tools && python -m reliability.counts --out ../results/reliability/counts.json
"""

import argparse
import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from safetensors.torch import load_file

from fromp import FROMP, FrompError
from fromp.foundation import storage
from reliability.old_folders import KERNELS, network
from reliability.report import keep

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def brought(lines: list[str]) -> set[str]:
    """Every package that these requirements bring, by name."""
    found: set[str] = set()
    seen, waiting = set(), [Requirement(line) for line in lines]
    while waiting:
        one = waiting.pop()
        name = re.sub("[-_.]+", "-", one.name).lower()
        if (name, *sorted(one.extras)) in seen:
            continue
        seen.add((name, *sorted(one.extras)))
        found.add(name)
        for line in requires(one.name) or ():
            further = Requirement(line)
            if any(further.marker is None or further.marker.evaluate({"extra": e}) for e in one.extras or {""}):
                waiting.append(further)
    return found


def folders() -> tuple[dict[str, Any], list[str]]:
    """The folders that older versions wrote: how many, of which formats, and how many load."""
    formats, loaded, findings = set(), 0, []
    every = [path for path in sorted((ROOT / "tests" / "oracles" / "folders").glob("*/*")) if path.name in KERNELS]
    for path in every:
        model = network()
        model.load_state_dict(load_file(path.with_suffix(".safetensors")))
        formats.add(storage.kind_and_format(path)[1])
        try:
            loaded += len(FROMP.load(path, model).memories) == 2
        except FrompError as error:
            findings.append(f"{path}: {error}")
    return {"folders": len(every), "formats": sorted(formats), "loaded": loaded}, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    found, findings = folders()
    torch = brought(["torch"])
    brings = {"the library": sorted(brought(PROJECT["dependencies"]) - torch | {"torch"})}
    for extra in ("lab", "learn"):
        lines = PROJECT["optional-dependencies"][extra]
        brings[extra] = sorted(brought(lines) - torch - {"safetensors"})
    return keep(out, {**found, "brings": brings}, findings)


if __name__ == "__main__":
    sys.exit(main())
