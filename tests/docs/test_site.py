"""The documentation site: links that lead somewhere there too, and a build without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import site_pages

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[data](docs/library/own-data.md#the-loop)", "[data](library/own-data.md#the-loop)"),
        ("index.md", "![picture](docs/figures/forgetting.gif)", "![picture](figures/forgetting.gif)"),
        ("library/own-data.md", "[all](../../results/toy/README.md)", "[all](../results/toy/README.md)"),
        ("library/own-data.md", "[`toy`](../../results/toy/README.md)", "[`toy`](../results/toy/README.md)"),
        ("library/own-data.md", "[front](../../README.md#three-lines)", "[front](../index.md#three-lines)"),
        ("library/method.md", "[code](../../src/fromp/gp.py)", "code"),
        ("index.md", "[text](examples/notebooks/text.ipynb)", "[text](examples/notebooks/text.md)"),
        (
            "examples/notebooks/text.md",
            "[what](../../docs/library/what-to-use.md)",
            "[what](../../library/what-to-use.md)",
        ),
        ("results/toy/README.md", "[back](../../docs/lab/results.md)", "[back](../../lab/results.md)"),
        ("library/method.md", "[paper](https://arxiv.org/abs/2004.14070)", "[paper](https://arxiv.org/abs/2004.14070)"),
        ("library/method.md", "[above](#the-loop)", "[above](#the-loop)"),
        ("library/method.md", "```python\nf[k](x)\n```\n[code](../../src/a.py)", "```python\nf[k](x)\n```\ncode"),
        ("library/method.md", "`f[k](x)` and [code](../../src/a.py)", "`f[k](x)` and code"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page, text, expected):
    assert site_pages.rewritten(text, page) == expected


def test_every_page_has_its_place():
    """In `nav` of mkdocs.yml stands every document, and nothing that is not there."""
    nav = re.split(r"^nav:$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)[1]
    placed = set(re.findall(r": (\S+\.md)$", nav, re.M)) - {"reference.md"}
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert placed == {site_pages.page_of(path) for path in {*documents, *notebooks, *site_pages.BESIDE}}


def test_a_notebook_becomes_a_page_with_its_outputs():
    page = site_pages.notebook(ROOT / "examples" / "notebooks" / "images.ipynb")
    assert page.startswith("# Images")
    assert "after upright" in page
    assert 'src="data:image/png;base64,' in page


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Holds a network" in (tmp_path / "site" / "reference.html").read_text()
    assert "https://fonts" not in (tmp_path / "site" / "index.html").read_text()


def test_the_version_is_the_same_everywhere():
    import fromp

    assert f"version: {fromp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version = "{fromp.__version__}"\n' in (ROOT / "pyproject.toml").read_text()
