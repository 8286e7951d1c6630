"""Imports point down: a module may use what stands below it, and the library only torch and safetensors."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src"
SOURCES = sorted((ROOT / "fromp").rglob("*.py"))
ORDER = [
    "foundation",
    "derivatives",
    "keeping",
    "likelihoods",
    "curvature",
    "gp",
    "memory",
    "medoids",
    "metrics",
    "contexts",
    "room",
    "refresh",
    "formats",
    "naming",
    "prior",
    "constancy",
    "growth",
    "compatible",
    "restoring",
    "ownership",
    "inspection",
    "uncertainty",
    "protocol",
    "remembering",
    "regulariser",
    "tuning",
    "holding",
    "parabola",
    "old_network",
    "functional_state",
    "functional",
    "composed",
    "mixed_past",
    "taskfree",
    "integrations",
    "reading",
    "learn",
    "lab.settings",
    "lab.data",
    "lab.benchmarks",
    "lab.methods",
    "lab.plugins",
    "lab.results",
    "lab.engine",
    "lab.report",
    "lab.paper",
    "lab.bench",
    "lab.cli",
]
LIBRARY_MAY = {"torch", "safetensors", "fromp"}  # integrations import theirs inside functions


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path) for path in SOURCES}


def layer(module: str) -> int | None:
    """The place of a module's layer in ORDER; None for the package itself."""
    name = module.removeprefix("fromp").lstrip(".")
    return next((k for k, own in enumerate(ORDER) if name == own or name.startswith(own + ".")), None)


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def wrong_imports(path: Path) -> set[str]:
    """The imports of a file that point up, or out of what the library may use."""
    own, outside = layer(dotted(path)), {"lab", "integrations", "learn", "reading"} & set(path.parts)
    found = set()
    for name in imports(path):
        theirs = layer(name) if name.startswith("fromp.") else None
        upwards = own is not None and theirs is not None and theirs > own
        foreign = not outside and name.split(".")[0] not in LIBRARY_MAY | sys.stdlib_module_names
        if upwards or foreign:
            found.add(name)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=dotted)
def test_imports_point_down(path: Path) -> None:
    """Nothing imports what stands above it, also not inside a function."""
    assert not wrong_imports(path)


def test_every_module_has_a_layer() -> None:
    """A new folder must be given its place."""
    outside = {"fromp", "fromp.__main__", "fromp.lab"}
    assert not {module for module in MODULES if layer(module) is None} - outside
