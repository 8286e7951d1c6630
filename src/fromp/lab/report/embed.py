"""Figures and pictures as data addresses, so that a page refers to nothing outside."""

import io

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from fromp.lab.report.figures.style import INK, STYLE
from fromp.learn.pages import address

# An SVG shown as an image does not see the page's colours; its own style follows the reader's preference.
THEME = "svg { color: #5d6675 } @media (prefers-color-scheme: dark) { svg { color: #9aa5b5 } } "


def svg(figure: Figure) -> str:
    """A figure as SVG whose ink suits light and dark paper."""
    file = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return themed(file.getvalue())


def themed(text: str) -> str:
    """The text of one of our SVG files, as `svg` gives it."""
    style = '<style type="text/css">'
    return address("image/svg+xml", text.replace(INK, "currentColor").replace(style, style + THEME, 1).encode())


def png(figure: Figure, dpi: float) -> str:
    """A figure as a transparent PNG."""
    file = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(file, format="png", dpi=dpi, transparent=True)
    return address("image/png", file.getvalue())


def pixels(image: NDArray[np.float64]) -> str:
    """An image in [0, 1], (height, width, 3), as a PNG."""
    file = io.BytesIO()
    imsave(file, np.clip(image, 0, 1), format="png")
    return address("image/png", file.getvalue())
