"""Runs the notebooks of examples/notebooks and keeps their outputs in them.

    python tools/notebooks.py [NAME ...]

Nothing of the machine stays in a notebook: no paths, no times, no warnings.
"""

import argparse
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def executed(path: Path) -> Any:
    """The notebook with the outputs of a run in a fresh kernel; an error if a cell raises one."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    ).execute()
    for number, cell in enumerate(notebook.cells):
        cell.metadata.clear()
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = nbformat.from_dict(KERNEL)
    return notebook


def printed(notebook: Any) -> list[str]:
    """What each code cell prints, one text per cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run notebooks and keep their outputs.")
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in FOLDER.glob("*.ipynb")))
    for name in parser.parse_args().names:
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(executed(path), path)
        print(path.name)


if __name__ == "__main__":
    main()
