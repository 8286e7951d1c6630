"""Sentences about films, goods and everyday life, rated by twenty people each: C. J. Hutto's sets of 2014, MIT licence.

They lie in the source archive of the PyPI package vaderSentiment, of which nothing is imported.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ARCHIVE = "vaderSentiment-3.3.2.tar.gz"
DIGEST = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INSIDE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
KINDS = ("movieReviewSnippets", "amazonReviewSnippets", "tweets")
CACHE = Path(__file__).resolve().parent.parent / "runs" / "data"
CLEAR = 0.8  # mean ratings go from -4 to 4; below this one people do not agree


def sentences(kind: str) -> list[tuple[str, int]]:
    """Each sentence of one kind on which people agree, with 1 for a good opinion and 0 for a bad one."""
    with tarfile.open(_archive()) as outer:
        inner = outer.extractfile(INSIDE)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as sets:
            file = sets.extractfile(f"hutto_ICWSM_2014/{kind}_GroundTruth.txt")
            assert file is not None
            rows = [line.split("\t") for line in file.read().decode().splitlines()]
    return [(text, int(float(rating) > 0)) for _, rating, text in rows if abs(float(rating)) >= CLEAR]


def _archive() -> Path:
    """The archive, which pip brings once and checks."""
    if not (CACHE / ARCHIVE).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write(f"vaderSentiment==3.3.2 --hash=sha256:{DIGEST}\n")
            wanted.flush()
            options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
            command = (sys.executable, "-m", "pip", "download", *options, "-r", wanted.name, "-d", str(CACHE))
            subprocess.run(command, check=True)
    return CACHE / ARCHIVE
