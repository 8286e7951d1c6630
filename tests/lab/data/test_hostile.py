"""Files that are meant to do harm, or that another program wrote badly: our error, soon, and in little memory."""

import gzip
import io
import os
import re
import struct
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fromp.foundation import storage
from fromp.foundation.errors import CheckpointError, DataError, FrompError
from fromp.lab.data import find, from_csv, from_dataset, from_folder, from_npz, sources
from fromp.lab.data.arrays import every_fifth
from fromp.lab.data.catalogue import _cifar10_records
from fromp.lab.data.find import CanonicalFile, Recipe, read_files
from fromp.lab.data.sources import Address
from fromp.lab.results import store

FILES = (CanonicalFile("train.bin", "0" * 64, (Recipe(("train.bin",), lambda raw: raw),)),)


def refused(call: Callable[[], object], match: str, seconds: float = 5.0, error: type = DataError) -> None:
    """Our error, within some seconds even if it would wait for ever, and with a short message."""
    found: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            found.append(None)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"no answer in {seconds} seconds"
    assert len(str(found[0])) < 1000
    assert isinstance(found[0], error), repr(found[0])
    assert re.search(match, str(found[0])), found[0]


def find_in(folder: Path, scratch: Path) -> object:
    return read_files(folder, FILES, ("data.tgz",), scratch, frozenset())


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))


def member(name: str = "train.bin", size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.linkname = size, kind, link
    return entry


def test_an_archive_unpacks_within_its_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(find, "LARGEST_ARCHIVE", 2**20)
    archive(tmp_path / "data.tgz", (member(size=2**21), bytes(2**21)))
    assert (tmp_path / "data.tgz").stat().st_size < 10_000
    refused(lambda: find_in(tmp_path, tmp_path / "s"), r"data.tgz cannot be read: it .* unpacks to more than 1048576")
    archive(tmp_path / "data.tgz", (member("unwanted", 2**21), bytes(2**21)))
    refused(lambda: find_in(tmp_path, tmp_path / "t"), "unpacks to more than 1048576 bytes")
    monkeypatch.setattr(find, "MOST_MEMBERS", 3)
    archive(tmp_path / "data.tgz", *((member("unwanted"), b"") for _ in range(4)))
    refused(lambda: find_in(tmp_path, tmp_path / "u"), "more than 3 files")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 20_000


def test_a_long_header_of_an_archive_is_not_read(tmp_path):
    archive(tmp_path / "data.tgz", (member("long", 2**27, tarfile.XHDTYPE), bytes(2**27)))
    tracemalloc.start()
    try:
        refused(lambda: find_in(tmp_path, tmp_path / "s"), "the header of 'long' says 134217728 bytes")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_only_files_are_unpacked(tmp_path, kind):
    secret = tmp_path / "secret"
    secret.write_text("not for you")
    folder = tmp_path / "mine"
    folder.mkdir()
    archive(folder / "data.tgz", (member("other", 4), b"data"), (member(kind=kind, link=str(secret)), b""))
    refused(lambda: find_in(folder, tmp_path / "s"), r"data.tgz cannot be read: 'train.bin' in it is a link, a pipe")
    assert not list((tmp_path / "s").rglob("*.bin"))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_is_read_within_its_limit(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(find, "LARGEST", 2**20)
    data = bytes(2**20 + 1)
    (tmp_path / f"train.bin{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    refused(lambda: find_in(tmp_path, tmp_path / "s"), rf"train.bin{suffix} unpacks to more than 1048576 bytes")


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_pictures_of_cifar_are_no_higher_than_theirs(tmp_path):
    refused(lambda: _cifar10_records(png_header(1024, 100_000), b"[]", 0), "1024 wide and 100000 high")
    refused(lambda: _cifar10_records(png_header(1024, 1), b" " * 2**21, 0), "2097152 bytes of labels")


PIPES: dict[str, tuple[str, Callable[[Path], object], type]] = {
    "a file": ("train.bin", lambda folder: find_in(folder, folder / "s"), DataError),
    "an archive": ("data.tgz", lambda folder: find_in(folder, folder / "s"), DataError),
    "npz": ("own.npz", lambda folder: from_npz(folder / "own.npz"), DataError),
    "csv": ("own.csv", lambda folder: from_csv(folder / "own.csv", "y"), DataError),
    "image": ("cat/a.png", from_folder, DataError),
    "manifest": ("manifest.json", lambda folder: storage.read(folder, "test"), CheckpointError),
    "own manifest": ("manifest.json", lambda folder: storage.write(folder, "test", {}), CheckpointError),
    "results": ("results.json", store.read, CheckpointError),
    "run": ("seeds/0/run.json", lambda folder: store.read_seed(folder, 0), CheckpointError),
}


@pytest.mark.parametrize("what", PIPES)
@pytest.mark.parametrize("device", [False, True])
def test_pipes_and_devices_are_refused(tmp_path, what, device):
    name, read, error = PIPES[what]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    if device:
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / name)
    linked = "outside" if device and what == "image" else "it is a pipe, a device or a folder"
    refused(lambda: read(tmp_path), linked if what != "own manifest" else "not one that fromp wrote", error=error)


def test_a_tensors_file_that_is_a_pipe_is_refused(tmp_path):
    storage.write(tmp_path, "test", {"number": 1})
    for path in tmp_path.glob("state-*"):
        path.unlink()
        os.mkfifo(path)
    refused(lambda: storage.read(tmp_path, "test"), "it is a pipe", error=CheckpointError)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"kind": ' + "9" * 5000 + "}", '{"kind": "test"' + " " * 2**20 + "}"])
def test_a_hostile_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    refused(lambda: storage.read(tmp_path, "test"), "manifest.json is damaged", error=CheckpointError)


def picture(path: Path, array: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def test_links_out_of_the_folder_are_followed_only_when_asked(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    for k in range(5):
        picture(own / "cat" / f"{k}.png", np.zeros((2, 2), np.uint8))
        picture(other / f"{k}.png", np.ones((2, 2), np.uint8))
    (own / "dog").symlink_to(own / "cat")
    assert from_folder(own).class_names == ("cat", "dog")  # a link inside the folder
    (own / "dog").unlink()
    (own / "dog").symlink_to(other)
    refused(lambda: from_folder(own), r"own/dog is a link to .*other, outside .*own; .* follow_links=True")
    assert from_folder(own, follow_links=True).class_names == ("cat", "dog")
    (own / "dog").unlink()
    (own / "cat" / "5.png").symlink_to(other / "0.png")
    refused(lambda: from_folder(own), r"cat/5.png is a link to .*other/0.png, outside")
    (tmp_path / "link").symlink_to(own)
    (own / "cat" / "5.png").unlink()
    assert from_folder(tmp_path / "link").class_names == ("cat",)  # the folder itself may be one


def test_pictures_have_a_limit_together(tmp_path):
    for k in range(5):
        picture(tmp_path / "cat" / f"{k}.png", np.zeros((100, 200), np.uint8))
    refused(
        lambda: from_folder(tmp_path, largest=299_999), "5 images of 200 x 100 pixels, .* 300000 bytes, the limit is"
    )
    assert from_folder(tmp_path, largest=300_000).train_x.shape == (4, 1, 100, 200)


BROKEN = {
    "bomb.png": png_header(60_000, 60_000),
    "bomb.bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 40_000, 40_000, 1, 24, 0, 0, 0, 0, 0, 0),
    "bomb.gif": b"GIF89a"
    + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0)
    + b"\x2c"
    + bytes(4)
    + b"\xff" * 4
    + b"\0\2\0;",
    "cut.png": png_header(4, 4)[:40],
    "no-bytes.png": b"",
    "wrong.jpg": b"\xff\xd8\xff\xe0" + bytes(100),
    "wrong.tiff": b"II*\0" + b"\xff" * 60,
    "wrong.webp": b"RIFF\xff\xff\xff\xffWEBPVP8 " + bytes(40),
    "digits.ppm": b"P3 " + b"9" * 5000 + b" 1 255 1 1 1",
    "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_pictures(tmp_path, name):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / name).write_bytes(BROKEN[name])
    refused(lambda: from_folder(tmp_path), rf"{name} cannot be read as an image|{name}, have .* the limit is")


def test_no_program_is_started_for_a_picture(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript."""
    monkeypatch.setattr("subprocess.Popen", lambda *given, **named: pytest.fail("a program was started"))
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.eps").write_bytes(BROKEN["postscript.png"])
    refused(lambda: from_folder(tmp_path), "cat has no images")


def test_a_class_whose_name_is_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    for k in range(3):
        Image.new("L", (2, 2)).save(io.BytesIO(), "png")
        picture(Path(os.fsdecode(folder)) / f"{k}.png", np.zeros((2, 2), np.uint8))
    refused(lambda: from_folder(tmp_path), "cannot be written as UTF-8; rename it")


def npz(path: Path, **members: bytes | np.ndarray) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            if isinstance(content, np.ndarray):
                buffer = io.BytesIO()
                np.save(buffer, content, allow_pickle=True)
                content = buffer.getvalue()
            archive.writestr(f"{name}.npy", content)
    return path


def npy_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def test_an_npz_unpacks_within_its_limit(tmp_path):
    path = npz(tmp_path / "own.npz", x=np.zeros((50, 10_000), np.uint8), y=np.arange(50) % 2)
    assert path.stat().st_size < 5_000
    refused(lambda: from_npz(path, largest=500_000), "own.npz unpacks to 500656 bytes, the limit is 500000; .*largest=")
    assert from_npz(path, largest=500_656).train_x.shape == (40, 10_000)
    plain = tmp_path / "plain.npz"
    np.savez(plain, x=np.zeros((50, 100), np.uint8), y=np.arange(50) % 2)
    assert len(from_npz(plain, largest=10).train_x) == 40  # it has these bytes itself


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 8)}"), np.arange(9) % 2),
        (npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (-3,)}"), np.arange(9) % 2),
        (npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': " + "(" * 500), np.arange(9) % 2),
        (
            npy_header("{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 0)}"),
            npy_header("{'descr': '|S0', 'fortran_order': False, 'shape': (1099511627776,)}"),
        ),
        (np.array([{}, 1], dtype=object), np.zeros(2, int)),
        (np.zeros((3, 2)), np.array([b"caf\xe9", b"a", b"a"])),
        (np.zeros((3, 2)), np.array([{}] * 3, dtype=object)),
        (np.zeros((3, 2)), npy_header("{'descr': '<U1', 'fortran_order': False, 'shape': (3,)}") + b"\xff" * 12),
        (np.zeros((3, 2)), npy_header("{'descr': '<U1', 'fortran_order': False, 'shape': (3,)}") + b"\0\xd8\0\0" * 3),
        (np.zeros((3, 2)), np.array(["7" * 5000] * 3)),
        (np.full((3, 2), 1e300), np.zeros(3, int)),
        (np.zeros((3, 0)), np.zeros(3, int)),
        (b"", np.zeros(3, int)),
        (np.zeros((3, 2), complex), np.zeros(3, int)),
        (np.zeros((3, 2), "M8[s]"), np.zeros(3, int)),
    ],
)  # fmt: skip
def test_hostile_arrays(tmp_path, recwarn, x, y):
    path = npz(tmp_path / "own.npz", x=x, y=y)
    tracemalloc.start()
    try:
        refused(lambda: from_npz(path), "own.npz|the label")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert not recwarn.list


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"PK\x03\x04" + bytes(100), b"\x93NUMPY\x01\x00", b"text"])
def test_no_npz_at_all(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    refused(lambda: from_npz(tmp_path / "own.npz"), "own.npz cannot be read as .npz")
    refused(lambda: from_npz(tmp_path / "nowhere.npz"), "nowhere.npz cannot be read")


def test_labels_of_bytes(tmp_path):
    path = npz(tmp_path / "own.npz", x=np.zeros((6, 2)), y=np.array(["café".encode(), b"tea"] * 3))
    assert from_npz(path).class_names == ("café", "tea")
    assert from_dataset([([0.0], b"tea"), ([0.0], b"tea"), ([0.0], b"tea")]).class_names == ("tea",)
    for label in (10**5000, 2**63, float("inf"), 0.5, b"\xff", "\ud800", "7" * 5000):
        refused(lambda label=label: from_dataset([([0.0], label)] * 3), "item 0|the label")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,y\n1,0\n" + b"1" * 140_000 + b",0\n", r"own.csv, after line 2: field larger than field limit \(131072\)"),
        (b'a,y\n1,0\n"1,0\n' + b"1,0\n" * 40_000, "after line 2: field larger than field limit .* quotation mark"),
        ("a,y\n1,café\n".encode("latin-1"), r"after line 0: 'utf-8' codec.*encoding='latin-1'"),
        ("a,y\n1,0\n".encode("utf-16"), r"'utf-8' codec can't decode byte 0xff"),
        ("a,y\n1,0\n".encode("utf-16-le"), "has 0 columns 'y'"),
        (b"a,y\n1\0,0\n", r"line 2: '1\\x00' in column 'a' is not a number"),
        (b"a,y\n1,0\n1\n", "line 3: 1 cells, but the header has 2"),
        (b"a,y\n" + b"1," + b"7" * 5000 + b"\n", r"the label '7+\.\.\.7+' has 5000 characters, the limit is 1000"),
        (b"a,y\n" + b"x" * 5000 + b",0\n", r"line 2: 'x+\.\.\.x+' in column 'a' is not a number"),
        (b"x" * 10_000 + b",b\n1,2\n", r"its columns are \['x+\.\.\.x+', 'b'\]"),
        (b"", "has 0 columns 'y'"),
        (b"\n\n\n", "has 0 columns 'y'"),
        (b"\xef\xbb\xbf", "has 0 columns 'y'"),
    ],
    ids=range(13),
)  # fmt: skip
def test_hostile_tables(tmp_path, content, message):
    (tmp_path / "own.csv").write_bytes(content)
    refused(lambda: from_csv(tmp_path / "own.csv", "y"), message)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_a_table_in_another_encoding_is_read_when_it_is_named(tmp_path, encoding):
    (tmp_path / "own.csv").write_bytes(("a,y\n" + "1,café\n" * 3).encode(encoding))
    assert from_csv(tmp_path / "own.csv", "y", encoding=encoding).class_names == ("café",)
    refused(lambda: from_csv(tmp_path / "own.csv", "y", encoding="klingon"), "own.csv cannot be read: unknown encoding")
    refused(lambda: from_csv(tmp_path / "nowhere.csv", "y"), "nowhere.csv cannot be read")


def test_many_classes_take_little_time():
    import torch

    labels = torch.arange(100_000).repeat(3)[torch.randperm(300_000, generator=torch.Generator().manual_seed(0))]
    begun = time.monotonic()
    test = every_fifth(labels, tuple(map(str, range(100_000))))
    assert time.monotonic() - begun < 5
    assert int(test.sum()) == 100_000
    place = int((labels == 4321).nonzero()[2])
    assert bool(test[place])


def test_a_source_that_never_ends_is_left(tmp_path, monkeypatch):
    class Endless(io.BytesIO):
        def read(self, size=-1):
            return bytes(size)

    monkeypatch.setattr(sources, "_open", lambda address: Endless())
    monkeypatch.setattr(sources, "LARGEST", 2**20)
    refused(lambda: Address("http://x/", ("a",), 1).get(tmp_path, lambda done, total: None), "more than 1048576 bytes")
    assert (tmp_path / "a").stat().st_size < 2**21


def test_a_results_file_of_another_form(tmp_path):
    for content in ("[" * 100_000, '{"runs": ' + "9" * 5000 + "}", b"\xff\xfe", "null"):
        (tmp_path / "results.json").write_bytes(content if isinstance(content, bytes) else content.encode())
        refused(lambda: store.read(tmp_path), "results.json is damaged", error=FrompError)


def test_a_picture_that_is_broken_in_the_middle_is_refused(tmp_path):
    """Pillow raises SyntaxError where a chunk's name is no name."""
    stream = io.BytesIO()
    Image.new("RGB", (1024, 2)).save(stream, "PNG")
    data = stream.getvalue()
    start = data.index(b"IDAT") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big")
    head, pixels = data[: start - 8], data[start : start + size // 2]
    cut = len(pixels).to_bytes(4, "big") + b"IDAT" + pixels + zlib.crc32(b"IDAT" + pixels).to_bytes(4, "big")
    (tmp_path / "a.png").write_bytes(head + cut + bytes(4) + b"IE\xca]" + bytes(4))
    (tmp_path / "a.json").write_bytes(b"[1, 2]")
    recipe = Recipe(("a.png", "a.json"), lambda png, labels: _cifar10_records(png, labels, 0))
    files = (CanonicalFile("a.bin", "0" * 64, (recipe,)),)
    refused(lambda: read_files(tmp_path, files, (), tmp_path / "s", frozenset()), "a.png cannot be read")
