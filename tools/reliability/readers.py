"""Everything that reads a file or a text from outside, under Hypothesis and under a coverage-guided fuzzer.

cd tools && python -m reliability.readers --seconds 1800 --out ../results/reliability/readers.json

Each reader is given sound files with bytes changed, cut, added and exchanged: it reads them or raises our error, within
seconds and within 2 GiB. Half of the time is Hypothesis's, half that of atheris, whose inputs follow the branches of
our code that they reach; without atheris, Hypothesis has all of it. Each reader is tried in a process of its own. The
same command adds to what was counted.
"""

import argparse
import gzip
import io
import json
import multiprocessing
import os
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if len(sys.argv) > 1 and sys.argv[1] == "--guided":  # before what it is to follow is imported
    import atheris

    atheris.instrument_imports(include=["fromp", "csv", "zipfile", "tarfile"]).__enter__()

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fromp import FrompError
from fromp.foundation import storage
from fromp.lab.data import catalogue, find, from_csv, from_folder, from_npz
from fromp.lab.results import store
from fromp.lab.results.plan import Plan, parse_setting
from fromp.learn.files import read_table
from reliability.report import keep, kept

SLOW = 5.0  # seconds of work for a file of a few kilobytes
LARGEST = 2**31  # bytes that a process may take in all
LONGEST = 1 << 14  # bytes of a file
ENDED = "ended: "  # before the number of a reader and how its process ended
FORKED: Any = multiprocessing.get_context("fork")  # from a process that has imported everything


@dataclass(frozen=True)
class Reader:
    """What reads, given a folder to put the bytes in; and sound bytes to begin with."""

    read: Callable[[Path, bytes], object]
    sound: Callable[[], Sequence[bytes]]


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    """A reader of one file of this name."""

    def of(folder: Path, data: bytes) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return of


def _published(name: str, files: tuple[find.CanonicalFile, ...], archives: tuple[str, ...] = ()) -> Any:
    """A reader of a folder with one published file, or an archive of them."""

    def of(path: Path) -> object:
        scratch = path.parent / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        return find.read_files(path.parent, files, archives, scratch, frozenset())

    return _file(name, of)


MNIST = catalogue._idx_files(catalogue.MNIST_DIGESTS)
RECORDS = (find.CanonicalFile("test_batch.bin", "0" * 64, (find.Recipe(("test_batch.bin",), catalogue._join),)),)


def _idx() -> list[bytes]:
    raw = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 4, 4) + bytes(range(32))
    return [raw, bytes((0, 0, 8, 1)) + struct.pack(">I", 3) + bytes(3)]


def _sprite(folder: Path, data: bytes) -> object:
    """The picture, then the labels, after the length of the picture."""
    cut = int.from_bytes(data[:4], "little") % (len(data) + 1)
    (folder / "a.png").write_bytes(data[4 : 4 + cut])
    (folder / "a.json").write_bytes(data[4 + cut :])
    recipe = find.Recipe(("a.png", "a.json"), partial(catalogue._cifar10_records, first=0))
    return find._build(folder, recipe)


def _png(width: int, height: int) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.arange(3 * width * height, dtype=np.uint8).reshape(height, width, 3)).save(stream, "PNG")
    return stream.getvalue()


def _npz() -> list[bytes]:
    found = []
    for y in (np.arange(10) % 2, np.array(["a", "b"] * 5)):
        stream = io.BytesIO()
        np.savez(stream, x=np.ones((10, 2), np.float32), y=y)
        found.append(stream.getvalue())
    return found


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        entry = tarfile.TarInfo("cifar/test_batch.bin")
        entry.size = 3073
        tar.addfile(entry, io.BytesIO(bytes(3073)))
    return stream.getvalue()


def _parquet() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    stream = io.BytesIO()
    table = pyarrow.table({"a": [1.5, None, 2.0], "b": ["x", "y", None], "c": [[1, 2], [3, 4], [5, 6]]})
    parquet.write_table(table, stream)
    return [stream.getvalue()]


def _arrow() -> list[bytes]:
    import pyarrow
    from pyarrow import ipc

    stream = io.BytesIO()
    table = pyarrow.table({"a": [1.5, 2.0], "y": [0, 1]})
    with ipc.new_stream(stream, table.schema) as out:
        out.write_table(table)
    return [stream.getvalue()]


def _dataset(folder: Path, data: bytes) -> object:
    (folder / "set").mkdir(exist_ok=True)
    (folder / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "set" / "dataset_info.json").write_text(
        json.dumps({"features": {"y": {"_type": "ClassLabel", "names": ["a"]}}})
    )
    (folder / "set" / "data.arrow").write_bytes(data)
    return read_table(folder / "set")


def _dataset_json(folder: Path, data: bytes) -> object:
    (folder / "set").mkdir(exist_ok=True)
    (folder / "set" / "state.json").write_bytes(data)
    (folder / "set" / "dataset_info.json").write_bytes(data)
    (folder / "set" / "data.arrow").write_bytes(_arrow()[0])
    return read_table(folder / "set")


def _results() -> list[bytes]:
    run = {"seed": 0, "accuracy": [[1.0], [0.5, 0.75]], "seconds": 1.0, "num_tasks": 2}
    plan = {"benchmark": "toy", "method": "joint", "settings": {"tasks": 2}, "environment": {}}
    return [json.dumps({**plan, "runs": [run], "summary": {}}).encode()]


def _experiment(path: Path) -> object:
    found = store.find(path.parent)[0]
    return found.summaries(), found.changed(), found.middle_seed if found.finished else None


def _seed(folder: Path, data: bytes) -> object:
    path = folder / "seeds" / "0" / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return store.read_seed(folder, 0)


def _settings(folder: Path, data: bytes) -> object:
    changes = dict(parse_setting(part) for part in data.decode("utf-8", "replace").split("\n"))
    return Plan.of("toy", "mixed-past" if len(data) % 2 else "fromp", **changes).as_json()


def _memory(folder: Path, data: bytes) -> object:
    (folder / "manifest.json").write_bytes(data)
    return storage.read(folder, "fromp")


CSV = b"a,b,y\n1,2,x\n3,4.5,z\n5,,x\n6,7,z\n8,9,x\n1,1,z\n"
MANIFEST = {
    "kind": "fromp",
    "format": 2,
    "files": {"tensors": {"name": "tensors-0123456789abcdef.safetensors", "sha256": ""}},
}

READERS: dict[str, Reader] = {
    "idx": Reader(_published("train-images-idx3-ubyte", MNIST), _idx),
    "idx, gzip": Reader(_published("train-images-idx3-ubyte.gz", MNIST), lambda: [gzip.compress(_idx()[0])]),
    "CIFAR binary": Reader(_published("test_batch.bin", RECORDS), lambda: [bytes(3073)]),
    "CIFAR archive": Reader(_published("cifar.tar.gz", RECORDS, ("cifar.tar.gz",)), lambda: [_tar()]),
    "CIFAR sprite": Reader(
        _sprite, lambda: [len(p := _png(1024, 2)).to_bytes(4, "little") + p + b"[1, 2]" for _ in range(1)]
    ),
    "npz": Reader(_file("a.npz", from_npz), _npz),
    "npz of months": Reader(_file("a.npz", read_table), _npz),
    "csv": Reader(_file("a.csv", partial(from_csv, label="y")), lambda: [CSV, CSV.replace(b",", b";")]),
    "csv of months": Reader(_file("a.csv", read_table), lambda: [CSV, CSV.replace(b",", b";")]),
    "images": Reader(_file("set/class/a.png", lambda path: from_folder(path.parent.parent)), lambda: [_png(3, 2)]),
    "images of months": Reader(
        _file("set/class/a.png", lambda path: read_table(path.parent.parent)), lambda: [_png(3, 2)]
    ),
    "parquet": Reader(_file("a.parquet", read_table), _parquet),
    "saved dataset": Reader(_dataset, _arrow),
    "saved dataset, JSON": Reader(
        _dataset_json,
        lambda: [
            b'{"_data_files": [{"filename": "data.arrow"}],'
            b' "features": {"y": {"_type": "ClassLabel", "names": ["a", "b"]}}}'
        ],
    ),
    "results.json": Reader(_file("results.json", _experiment), _results),
    "run.json": Reader(_seed, lambda: [json.dumps(json.loads(_results()[0])["runs"][0]).encode()]),
    "settings": Reader(
        _settings, lambda: [b"tau=1\nmemory=10\nhidden=3,4", b"lr=1e-3\nclip_norm=none\nbetas=0.9,0.99"]
    ),
    "manifest": Reader(_memory, lambda: [json.dumps(MANIFEST).encode()]),
}


def attempt(reader: Reader, folder: Path, data: bytes) -> str | None:
    """What is wrong with how a reader takes these bytes, and where; None if it reads or refuses them."""
    start = time.process_time()
    try:
        reader.read(folder, data)
    except FrompError as error:
        if not str(error).strip():
            return "an error that says nothing"
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((frame for frame in reversed(frames) if "fromp" in frame.filename), frames[-1])
        return f"{type(error).__name__} in {Path(place.filename).name}, {place.name}: {str(error)[:100]}"
    taken = time.process_time() - start
    return f"{taken:.0f} seconds" if taken > SLOW else None


@st.composite
def mutated(draw: Any, sound: Sequence[bytes]) -> bytes:
    """Sound bytes with a few pieces changed, cut, put in twice or exchanged with others; or any bytes."""
    data = bytearray(draw(st.sampled_from([*sound, b""])))
    if not data:
        return draw(st.binary(max_size=200))
    interesting = [
        b"",
        b"\0",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"-1",
        b"1e999",
        b"NaN",
        b'"',
        b"\n",
        b"[" * 50,
        b"\xed\xa0\x80",
    ]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 8)))
        data[start:stop] = draw(st.one_of(st.sampled_from(interesting), st.binary(max_size=8)))
    return bytes(data)


def by_hypothesis(name: str, examples: int, seconds: float = 1e9, number: int = 0) -> tuple[int, list[str]]:
    """So many examples of Hypothesis, or as many as there is time for; how many, and what was found."""
    reader, found, stop, tried = READERS[name], dict[str, bytes](), time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as scratch:

        @seed(number)
        @settings(
            max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(mutated(reader.sound()))
        def each(data: bytes) -> None:
            nonlocal tried
            if time.monotonic() < stop:
                tried += 1
                if wrong := attempt(reader, Path(scratch), data):
                    found.setdefault(wrong.split(":")[0], data)

        each()
    return tried, [f"{name}: {wrong}: {data!r}"[:400] for wrong, data in found.items()]


def _hypothesis(name: str, seconds: float, report: Path) -> None:
    limited()
    total, findings, start, number = 0, dict[str, None](), time.monotonic(), 0
    while (left := start + seconds - time.monotonic()) > 0:
        tried, wrong = by_hypothesis(name, 300, left, number)
        total, number = total + tried, number + 1
        findings |= dict.fromkeys(wrong)
        report.write_text(json.dumps([total, list(findings)]))


def guided(name: str, seconds: float, report: Path) -> None:
    """Let atheris look for bytes that reach new branches."""
    limited()
    reader, found, tried = READERS[name], dict[str, bytes](), 0
    scratch = Path(tempfile.mkdtemp())
    corpus = scratch / "corpus"
    corpus.mkdir()
    for number, data in enumerate(reader.sound()):
        (corpus / str(number)).write_bytes(data)
    (work := scratch / "work").mkdir()
    last = time.monotonic()

    def one(data: bytes) -> None:
        nonlocal tried, last
        tried += 1
        wrong = attempt(reader, work, data)
        if wrong:
            found.setdefault(wrong.split(":")[0], data)
        if wrong or time.monotonic() - last > 1:
            last = time.monotonic()
            report.write_text(json.dumps([tried, [f"{name}: {w}: {d!r}"[:400] for w, d in found.items()]]))

    arguments = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={LONGEST}", "-timeout=60", "-verbosity=0"]
    atheris.Setup(["readers", *arguments, f"-artifact_prefix={scratch}/", str(corpus)], one)
    atheris.Fuzz()


def limited() -> None:
    """No more memory than `LARGEST` on top of what is mapped by now."""
    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    most = pages * os.sysconf("SC_PAGE_SIZE") + LARGEST
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def by_atheris(seconds: float, names: Sequence[str]) -> Iterator[tuple[str, int, int, list[str]]]:
    """Of each reader: its name, how its process ended, how many files it was given, and what was found.

    One process imports what is to be followed, and each reader is tried in one that is forked from it.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "reliability.readers", "--guided", str(seconds), folder, *names]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(ENDED):
                    number, code = map(int, line.removeprefix(ENDED).split())
                    report = Path(folder) / str(number)
                    tried, wrong = json.loads(report.read_text()) if report.exists() else (0, [])
                    yield names[number], code, tried, wrong


def guide(seconds: float, folder: Path, names: Sequence[str]) -> None:
    """What the process of `by_atheris` does."""
    for number, name in enumerate(names):
        process = FORKED.Process(target=guided, args=(name, seconds, folder / str(number)))
        process.start()
        process.join(seconds + 600)
        if process.is_alive():
            process.kill()
            process.join()
        print(f"{ENDED}{number} {process.exitcode}", flush=True)


def campaign(
    seconds: float, names: Sequence[str] = tuple(READERS), done: dict[str, Any] | None = None,
    after_reader: Callable[[dict[str, Any], list[str]], Any] = lambda *_: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Half of the time of each reader for each way; how many files were read, for how long, and what was found."""
    found: dict[str, Any] = dict((done or {}).get("readers", {}))
    findings: list[str] = list((done or {}).get("findings", []))
    share = seconds / 2 if find_spec("atheris") else seconds

    def count(name: str, way: str, code: int, tried: int, wrong: list[str]) -> None:
        counts = {"seconds": 0, **found.get(name, {})}
        found[name] = {**counts, way: counts.get(way, 0) + tried, "seconds": counts["seconds"] + round(share)}
        findings.extend(wrong)
        if code:
            findings.append(f"{name}, {way}: the process ended with {code}")
        after_reader({"readers": found}, findings)
        print(f"{name}: {found[name]}, {len(findings)} findings so far", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            report = Path(scratch) / "report.json"
            report.unlink(missing_ok=True)
            process = FORKED.Process(target=_hypothesis, args=(name, share, report))
            process.start()
            process.join()
            tried, wrong = json.loads(report.read_text()) if report.exists() else (0, [])
            count(name, "hypothesis", process.exitcode, tried, wrong)
    if find_spec("atheris"):
        for name, code, tried, wrong in by_atheris(share, names):
            count(name, "atheris", code, tried, wrong)
    return {"readers": found}, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20, help="for each reader")
    parser.add_argument("--readers", nargs="*", default=list(READERS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    done = kept(options.out)
    before = done.get("seconds", 0)
    after_reader = partial(keep, options.out, quiet=True, before=before)
    return keep(options.out, *campaign(options.seconds, options.readers, done, after_reader), before=before)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guided"]:
        guide(float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
    else:
        sys.exit(main())
