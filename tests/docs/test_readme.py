"""README.md and docs/ are programs: their blocks run, in order, and print what they say they print."""

import contextlib
import functools
import importlib
import io
import re
import shlex
from pathlib import Path
from unittest import mock

import pytest
import torch
from fill_tables import documents
from torch import nn

from fromp.lab import cli
from fromp.lab.benchmarks.catalogue import BENCHMARKS
from fromp.lab.methods import METHODS

ROOT = Path(__file__).parents[2]
DOCUMENTS = documents(ROOT)  # README.md, docs and results/*/README.md
PAGES = [*DOCUMENTS, ROOT / "examples/README.md", *(path for path in ROOT.glob("*.md") if path not in DOCUMENTS)]
TOLERANCE = 0.03  # of accuracies that another machine computes a little differently
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PROMISE = re.compile(r"^ *print\(.*\)  # (.+)$", re.M)


def blocks(path, language):
    return [body for kind, body in FENCE.findall(path.read_text()) if kind == language]


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.fixture
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if blocks(path, "python")], ids=ids)
def test_python_blocks_print_what_they_promise(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "document"}
    with torch.random.fork_rng(devices=[]), mock.patch.dict(METHODS), mock.patch.dict(BENCHMARKS):
        torch.manual_seed(0)
        for number, block in enumerate(blocks(path, "python"), 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, f"{path.name}, block {number}", "exec"), namespace)
            lines, promises = printed.getvalue().splitlines(), PROMISE.findall(block)
            assert len(lines) == len(promises), f"{path.name}, block {number} printed {lines}, promised {promises}"
            for line, promise in zip(lines, promises, strict=True):
                assert agrees(line, promise), f"{path.name}, block {number} printed {line}, promised {promise}"


def agrees(line, promise):
    """The same text, or two fractions that are close."""
    fraction = re.compile(r"[01]\.\d+")
    if fraction.fullmatch(line) and fraction.fullmatch(promise):
        return abs(float(line) - float(promise)) <= TOLERANCE + 1e-9  # both are rounded
    return line == promise


@pytest.mark.parametrize(
    ("line", "promise", "same"),
    [
        ("0.95", "0.94", True), ("0.95", "0.9", False), ("5", "6", False), ("[1, 2]", "[1, 2]", True),
        ("[1, 2]", "[1, 3]", False), ("1.0", "0.99", True),
    ],
)  # fmt: skip
def test_a_broken_promise_is_seen(line, promise, same):
    assert agrees(line, promise) is same


def test_the_diff_is_a_training_loop():
    """The lines that are left after applying it, run on a small stream."""
    (diff,) = blocks(ROOT / "README.md", "diff")
    after = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))
    before = "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+"))
    for text in (before, after):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        namespace = {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), 0.1),
            "cross_entropy": nn.functional.cross_entropy,
            "tasks": [
                torch.utils.data.DataLoader(
                    torch.utils.data.TensorDataset(torch.randn(300, 3) + shift, torch.arange(300) % 2), 100
                )
                for shift in range(2)
            ],
        }
        exec(compile(text, "diff", "exec"), namespace)
    assert [len(memory) for memory in namespace["reg"].memories] == [200, 200]
    assert namespace["loss"].requires_grad


LANGUAGES = {"python", "sh", "diff", "toml", "bibtex"}  # Python and the diff run; the lines of sh are parsed


@pytest.mark.parametrize("path", PAGES, ids=ids)
def test_no_block_escapes_the_tests(path):
    """An indented fence, or one of another language, would not be found by them."""
    marks = re.findall(r"^ *```.*$", path.read_text(), re.M)
    opened, closed = marks[::2], marks[1::2]
    frameworks = {f"```python {name}" for name in FRAMEWORKS} if path.name == "integrations.md" else set()
    assert set(opened) <= {f"```{language}" for language in LANGUAGES} | frameworks
    assert set(closed) <= {"```"}
    assert len(opened) == len(closed) == len(FENCE.findall(path.read_text())) + len(frameworks & set(opened))


# The blocks of docs/library/integrations.md that tests/integrations runs.
FRAMEWORKS = ("lightning", "transformers", "accelerate", "skorch", "avalanche", "ranks")


@pytest.mark.parametrize("path", PAGES, ids=ids)
def test_commands_exist(path):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    for block in blocks(path, "sh"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                assert set(words[1:]) <= targets, line
            if words[:1] == ["fromp"]:
                _, bound = cli.parse(words[1:])
                bound.apply_defaults()
                if "benchmark" in bound.arguments and "--plugin" not in words:  # tests/lab/test_plugins.py runs those
                    given = bound.arguments
                    assert given["benchmark"] in BENCHMARKS, line
                    for method in given["methods"].split(",") if "methods" in given else [given["method"]]:
                        given["learning"].plan(given["benchmark"], method, given.get("task_free", False))


LINK = re.compile(r"\]\(([^)\s]*?)(?:#([\w-]+))?\)")


def broken_links(path):
    """Relative links of a document to a file that is not there, or to a heading that the file does not have."""
    found = []
    for target, anchor in LINK.findall(re.sub(r"```.*?```", "", path.read_text(), flags=re.S)):
        file = path.parent / target if target else path
        if target.startswith("http"):
            continue
        if not file.exists() or (anchor and anchor not in anchors(file)):
            found.append(f"{target}#{anchor}")
    return found


def anchors(path):
    """The headings of a document as links name them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=ids)
def test_links_lead_somewhere(path):
    assert broken_links(path) == []


def test_links_of_all_kinds_are_read():
    assert sum(len(LINK.findall(path.read_text())) for path in PAGES) > 150


def test_a_broken_link_is_seen(tmp_path):
    (tmp_path / "a.md").write_text(
        "# A heading, with: signs\n[b](b.md) [c](#a-heading-with-signs) [d](a.md#gone) [e](f/)"
    )
    assert broken_links(tmp_path / "a.md") == ["b.md#", "a.md#gone", "f/#"]


def test_the_homes_of_the_equations_exist():
    """`module.name` in docs/library/method.md is a name in that module."""
    modules = {file.stem for file in (ROOT / "src" / "fromp").glob("*.py")}
    found = 0
    for path in re.findall(r"`(\w+(?:\.\w+)+)(?:\(.*?\))?`", (ROOT / "docs" / "library" / "method.md").read_text()):
        module, *names = path.split(".")
        if module in modules and names != ["py"]:
            functools.reduce(getattr, names, importlib.import_module(f"fromp.{module}"))
            found += 1
    assert found > 20


def test_the_error_messages_are_those_of_the_code():
    """Every piece of the messages in docs/library/own-data.md, between its dots, stands in the source."""
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "fromp").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # strings that go on in the next line
    table = (ROOT / "docs" / "library" / "own-data.md").read_text().partition("## Error messages")[2]
    messages = re.findall(r"^\| `(.+?)` \|", table, re.M)
    assert len(messages) > 10
    for message in messages:
        for piece in message.split("..."):
            assert piece.strip(" '") in joined, message
