"""`import fromp` costs nothing; its names come when they are used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import fromp


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_loads_nothing():
    assert run("import sys, fromp; print('torch' in sys.modules, 'FROMP' in dir(fromp))") == "False True"
    assert run("import sys; from fromp import FROMP; print('torch' in sys.modules, FROMP.__module__)") == (
        "True fromp.regulariser"
    )


def test_everything_public_is_there_and_comes_from_its_home():
    for name in fromp.__all__:
        value = getattr(fromp, name)
        assert value is getattr(import_module(fromp._HOME[name]), name)
    assert set(fromp.__all__) <= set(dir(fromp))
    assert "__version__" in dir(fromp)
    assert run("from fromp import *; print(FROMP.__name__, top.__name__)") == "FROMP top"


def test_what_type_checkers_see_is_what_there_is():
    tree = ast.parse(Path(fromp.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: line.module for line in block.body for alias in line.names}
    assert seen == fromp._HOME
    assert set(seen) == set(fromp.__all__)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fromp' has no attribute 'FROPM'"):
        fromp.FROPM  # noqa: B018
    with pytest.raises(ImportError, match="FROPM"):
        from fromp import FROPM  # noqa: F401
