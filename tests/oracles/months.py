"""Small months of customers, whose columns have very different scales, for tests of `fromp.learn`."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PLANS = ("basic", "family", "pro")
COLUMNS = ("age", "income", "plan", "churn")


def customers(number: int, rows: int = 60) -> list[list[str]]:
    """A month's rows: age in years, income in cents, plan and churn, whose rule moves a little from month to month."""
    draw = np.random.default_rng(number)
    age, income = draw.uniform(18, 80, rows), draw.uniform(1e6, 9e6, rows)
    plan = draw.integers(0, len(PLANS), rows)
    churn = (age - 50) / 18 + (income - 5e6) / 2.5e6 + (plan - 1) + 0.3 * number > 0
    return [
        [f"{a:.1f}", f"{i:.0f}", PLANS[p], "yes" if c else "no"]
        for a, i, p, c in zip(age, income, plan, churn, strict=True)
    ]


def write_csv(
    path: Path, rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS, separator: str = ","
) -> Path:
    """A CSV file with a header."""
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([columns, *rows])
    return path


def month(folder: Path, number: int, rows: int = 60) -> Path:
    """The CSV file of a month."""
    return write_csv(folder / f"month-{number}.csv", customers(number, rows))


def blinking(folder: Path, number: int, size: int = 8, rows: int = 40) -> Path:
    """A folder of grey images of two classes: bright above, or bright below; the background differs by month."""
    from PIL import Image

    draw = np.random.default_rng(number)
    for k in range(rows):
        place = folder / f"images-{number}" / ("above", "below")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 60 + 40 * number, (size, size), dtype=np.uint8)
        half = slice(0, size // 2) if k % 2 == 0 else slice(size // 2, size)
        pixels[half] += 100
        Image.fromarray(pixels).save(place / f"{k}.png")
    return folder / f"images-{number}"
