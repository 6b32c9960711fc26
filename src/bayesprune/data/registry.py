"""The data sets known by name."""

from typing import Final

from bayesprune.data.cifar import CifarSpec, cifar_file
from bayesprune.data.contents import DataFile
from bayesprune.data.errors import DataError
from bayesprune.data.idx import IdxSpec, idx_file
from bayesprune.data.spec import Archive, FileSpec

DIGITS: Final = "digits"  # inside scikit-learn, so it has no files of its own

FASHION_MNIST: Final = IdxSpec(
    name="fashion-mnist",
    title="articles of clothing, 28x28 grey",
    folder="fashion-mnist",
    base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    shape=(1, 28, 28),
    class_count=10,
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    train=(
        idx_file(
            "train-images-idx3-ubyte.gz",
            (60000, 28, 28),
            content_md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
            download_md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        idx_file(
            "train-labels-idx1-ubyte.gz",
            (60000,),
            content_md5="9018921c3c673c538a1fc5bad174d6f9",
            download_md5="25c81989df183df01b3e8a0aad5dffbe",
        ),
    ),
    test=(
        idx_file(
            "t10k-images-idx3-ubyte.gz",
            (10000, 28, 28),
            content_md5="8181f5470baa50b63fa0f6fddb340f0a",
            download_md5="bef4ecab320f06d8554ea6380940ec79",
        ),
        idx_file(
            "t10k-labels-idx1-ubyte.gz",
            (10000,),
            content_md5="15d484375f8d13e6eb1aabb0c3f46965",
            download_md5="bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
)

CIFAR10: Final = CifarSpec(
    name="cifar10",
    title="photographs of animals and vehicles, 32x32 colour",
    folder="cifar-10-batches-bin",
    base_url="https://www.cs.toronto.edu/~kriz/",
    shape=(3, 32, 32),
    class_count=10,
    class_names=DataFile("batches.meta.txt", None),
    train=tuple(cifar_file(f"data_batch_{i}.bin", 10000, label_bytes=1) for i in range(1, 6)),
    test=(cifar_file("test_batch.bin", 10000, label_bytes=1),),
    archive=Archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    label_bytes=1,
)

CIFAR100: Final = CifarSpec(
    name="cifar100",
    title="photographs of 100 kinds of things, 32x32 colour",
    folder="cifar-100-binary",
    base_url="https://www.cs.toronto.edu/~kriz/",
    shape=(3, 32, 32),
    class_count=100,
    class_names=DataFile("fine_label_names.txt", None),
    train=(cifar_file("train.bin", 50000, label_bytes=2),),
    test=(cifar_file("test.bin", 10000, label_bytes=2),),
    archive=Archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    label_bytes=2,
)

FILE_SPECS: Final[dict[str, FileSpec]] = {spec.name: spec for spec in (FASHION_MNIST, CIFAR10, CIFAR100)}
PHOTOGRAPHS: Final = frozenset({CIFAR10.name, CIFAR100.name})  # mirrored and shifted they show the same
DATA_SETS: Final[tuple[str, ...]] = (DIGITS, *FILE_SPECS)


def unknown_data_set(name: str) -> DataError:
    """Return the error for a name that is not in the table."""
    return DataError(f"unknown data set {name!r}; choose one of {', '.join(DATA_SETS)}")


def file_spec(name: str) -> FileSpec:
    """Return the files of the data set `name`, or raise DataError with the names there are."""
    if name == DIGITS:
        raise DataError(f"{DIGITS} comes with scikit-learn and has no files; nothing needs to be fetched")
    if name not in FILE_SPECS:
        raise unknown_data_set(name)
    return FILE_SPECS[name]
