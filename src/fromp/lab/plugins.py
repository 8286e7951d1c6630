"""Methods and benchmarks of one's own: files that are named, and entry points of installed packages."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path

from fromp.foundation.errors import FrompError
from fromp.lab.benchmarks import catalogue
from fromp.lab.benchmarks.catalogue import BENCHMARKS, Benchmark
from fromp.lab.methods import METHODS, MethodCard, card

GROUP = "fromp.plugins"

_files: list[Path] = []  # those loaded, in order
_entry_points: set[str] = set()


def register(what: MethodCard | Benchmark) -> None:
    """Let a method or a benchmark be known by its name."""
    if isinstance(what, MethodCard):
        card.register(what)
    elif isinstance(what, Benchmark):
        catalogue.register(what)
    else:
        raise FrompError(f"{what!r} cannot be registered; give a MethodCard or a Benchmark.")


def load(paths: Iterable[Path | str] = ()) -> None:
    """Run the files, and the entry points of the group `fromp.plugins`, each once; they call `fromp.lab.register`."""
    for point in entry_points(group=GROUP):
        if point.value not in _entry_points:
            _register(f"the plug-in {point.name} ({point.value})", point.load)
            _entry_points.add(point.value)
    for path in (Path(path).resolve() for path in paths):
        if not path.is_file():
            raise FrompError(f"the plug-in {path} does not exist; give the path of a Python file.")
        if path not in _files:
            _register(f"the plug-in {path}", lambda path=path: _run(path))  # type: ignore[misc]
            _files.append(path)


def loaded() -> tuple[Path, ...]:
    """The files loaded so far: another process has to load them too."""
    return tuple(_files)


def _register(what: str, run: Callable[[], object]) -> None:
    """Call `run`, which has to register something; if it fails, nothing of it stays."""
    before = dict(METHODS), dict(BENCHMARKS)
    try:
        run()
    except (Exception, SystemExit) as error:
        _restore(*before)
        reason = str(error).rstrip(".")
        raise FrompError(f"{what} fails with {type(error).__name__}: {reason}; correct it, or leave it out.") from error
    if before == (METHODS, BENCHMARKS):
        raise FrompError(f"{what} registers nothing; call fromp.lab.register in it with a MethodCard or a Benchmark.")


def _restore(methods: dict[str, MethodCard], benchmarks: dict[str, Benchmark]) -> None:
    METHODS.clear()
    METHODS.update(methods)
    BENCHMARKS.clear()
    BENCHMARKS.update(benchmarks)


def _run(path: Path) -> None:
    name = f"fromp_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FrompError(f"{path.name} does not end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
