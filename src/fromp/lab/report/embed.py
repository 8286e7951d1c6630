"""Figures and pictures as pieces of HTML that refer to nothing outside."""

import base64
import html
import io
import re
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from fromp.lab.report.figures import INK, STYLE


def svg(figure: Figure, label: str) -> str:
    """The figure as an <svg> whose ink is the colour of the text around it."""
    file = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": label}):  # the salt keeps the ids of two figures on a page apart
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return inline(file.getvalue(), label)


def inline(text: str, label: str) -> str:
    """An SVG file of one of our figures as an <svg> whose ink is the colour of the text around it."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"| id="[\w.]+_\d+"', "", text)
    text = text.replace("xlink:href=", "href=").replace(INK, "currentColor")
    start = f'<svg class="chart" role="img" aria-label="{html.escape(label)}"'
    return start + re.sub(r'^<svg width="[^"]*" height="[^"]*"', "", text)


def png(figure: Figure, dpi: float) -> str:
    """The figure as a data address of a transparent PNG."""
    file = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(file, format="png", dpi=dpi, transparent=True)
    return _address("image/png", file.getvalue())


def pixels(image: NDArray[np.float64]) -> str:
    """An image in [0, 1], (height, width, 3), as a data address of a PNG."""
    file = io.BytesIO()
    imsave(file, np.clip(image, 0, 1), format="png")
    return _address("image/png", file.getvalue())


def csv(rows: list[list[Any]]) -> str:
    """Rows of numbers as a data address."""
    text = "\n".join(",".join(str(value) for value in row) for row in rows) + "\n"
    return _address("text/csv", text.encode())


def _address(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
