"""The documentation site: hooks for MkDocs, which `make site` builds from docs/ and the pages beside it.

README.md is the first page, and each notebook of examples/notebooks is a page with its outputs. Links in the pages are
those of the repository; here they become links of the site, and a link to a file that is no page, such as a module,
becomes its text.
"""

import importlib.util
import inspect
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import fromp

ROOT = Path(__file__).resolve().parent.parent
BESIDE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
BLOCK = re.compile(r"(^```.*?^```$)", re.M | re.S)
CODE_OR_LINK = re.compile(r"`[^`\n]+`|(!?)\[((?:`[^`\n]*`|[^\]`])*)\]\(([^)\s]+)\)")  # a label may hold code


def page_of(path: str) -> str | None:
    """The place in the site of a file of the repository; None if it has none."""
    if path == "README.md":
        return "index.md"
    if path.startswith("examples/notebooks/") and path.endswith(".ipynb"):
        return path.replace(".ipynb", ".md")
    if path in BESIDE or (path.startswith("results/") and path.endswith("README.md")):
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def source_of(page: str) -> str:
    """The file of the repository that a page of the site is made from."""
    if page == "index.md":
        return "README.md"
    return page if page in BESIDE or page.startswith(("results/", "examples/")) else f"docs/{page}"


def rewritten(text: str, page: str) -> str:
    """The links of a page, as the site needs them; code stays as it is."""
    here = posixpath.dirname(source_of(page))

    def link(match: re.Match[str]) -> str:
        image, label, address = match.groups()
        if address is None:
            return match[0]
        path, mark, anchor = address.partition("#")
        if not path or ":" in address:
            return match[0]
        target = page_of(posixpath.normpath(posixpath.join(here, path)))
        if target is None:
            return label
        return f"{image}[{label}]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{mark}{anchor})"

    return "".join(part if BLOCK.fullmatch(part) else CODE_OR_LINK.sub(link, part) for part in BLOCK.split(text))


def notebook(path: Path) -> str:
    """A notebook as a page: text as it is, code in blocks, outputs below them."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text'])}\n```")
            elif picture := output.get("data", {}).get("image/png"):
                parts.append(
                    f'<img alt="The figure that this cell draws" src="data:image/png;base64,{picture.strip()}">'
                )
    return "\n\n".join(parts) + "\n"


FIRST = ("FROMP", "MixedPast", "Composed", "TaskFree", "Categorical", "Bernoulli", "Gaussian")


def reference() -> str:
    """Every public name, from its docstring: what a loop begins with, then the others by name."""
    homes = {name: getattr(fromp, name) for name in fromp.__all__}
    parts = ["# Reference\n", "Every name that `from fromp import ...` knows.\n"]
    for name in sorted(homes, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name.lower())):
        thing = homes[name]
        if inspect.isclass(thing) or inspect.isfunction(thing):
            parts.append(f"::: {thing.__module__}.{thing.__qualname__}\n")
        else:
            parts.append(f"## {name}\n\nA type of `{homes_module(name)}`.\n")
    return "\n".join(parts)


def homes_module(name: str) -> str:
    """The module that defines a public name."""
    return fromp._HOME[name]


def on_files(files: Any, config: Any) -> Any:
    """MkDocs asks for the files of the site: those beside docs/ come in, and the reference is written."""
    from mkdocs.structure.files import File

    beside = [ROOT / name for name in BESIDE]
    for path in [*beside, *sorted(ROOT.glob("results/*/README.md"))]:
        target = page_of(path.relative_to(ROOT).as_posix())
        assert target is not None
        files.append(File.generated(config, target, content=path.read_text(encoding="utf-8")))
    for path in sorted(ROOT.glob("examples/notebooks/*.ipynb")):
        target = page_of(path.relative_to(ROOT).as_posix())
        assert target is not None
        files.append(File.generated(config, target, content=notebook(path)))
    if importlib.util.find_spec("mkdocstrings") is not None:
        files.append(File.generated(config, "reference.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """MkDocs has read a page."""
    return rewritten(markdown, page.file.src_uri)
