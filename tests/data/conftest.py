"""Small made-up data sets in the real formats, written with struct and tarfile, not with our own code."""

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from bayesprune.data.cifar import CifarSpec, cifar_file
from bayesprune.data.contents import DataFile
from bayesprune.data.idx import IdxSpec, idx_file
from bayesprune.data.spec import Archive


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@dataclass
class Made:
    """A made-up data set: its spec, the files it consists of, and the arrays they hold."""

    spec: IdxSpec | CifarSpec
    files: dict[str, bytes]
    arrays: dict[str, np.ndarray]
    archive: bytes = b""

    def write(self, folder: Path) -> Path:
        (folder / self.spec.folder).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (folder / self.spec.folder / name).write_bytes(data)
        return folder

    def pack(self, links: list[tarfile.TarInfo] | None = None, **changed: bytes) -> bytes:
        """Return the .tar.gz of the files, some of them changed, with `links` at the end."""
        files = {**self.files, **{name.replace("__", "."): data for name, data in changed.items()}}
        return tar_gz({f"{self.spec.folder}/{name}": data for name, data in files.items()}, links)


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test sees the data sets of this machine."""
    monkeypatch.delenv("BAYESPRUNE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def made_idx() -> Made:
    random = np.random.default_rng(1)
    arrays, files, parts = {}, {}, {}
    for part, count in (("train", 20), ("test", 6)):
        arrays[f"{part} images"] = random.integers(0, 256, (count, 5, 4), np.uint8)
        arrays[f"{part} labels"] = np.arange(count, dtype=np.uint8) % 3
        described = []
        for kind in ("images", "labels"):
            array, name = arrays[f"{part} {kind}"], f"{part}-{kind}.gz"
            files[name] = gzip.compress(idx_bytes(array), mtime=0)
            described.append(idx_file(name, array.shape, md5(idx_bytes(array)), md5(files[name])))
        parts[part] = tuple(described)
    spec = IdxSpec(
        name="fashion-mnist",  # a known name, so that commands in messages make sense
        title="made up",
        folder="made-idx",
        base_url="http://127.0.0.1:9/",
        shape=(1, 5, 4),
        class_count=3,
        class_names=("red", "green", "blue"),
        train=parts["train"],
        test=parts["test"],
    )
    return Made(spec, files, arrays)


def tar_gz(members: dict[str, bytes], extra: list[tarfile.TarInfo] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra or []:
            archive.addfile(info)
    return buffer.getvalue()


@pytest.fixture
def made_cifar() -> Made:
    random = np.random.default_rng(2)
    arrays, files = {}, {}
    for name, count in (("batch_1.bin", 7), ("batch_2.bin", 5), ("test.bin", 4)):
        arrays[f"{name} images"] = random.integers(0, 256, (count, 3, 2, 2), np.uint8)
        arrays[f"{name} labels"] = random.integers(0, 4, count, np.uint8)
        pairs = zip(arrays[f"{name} labels"], arrays[f"{name} images"], strict=True)
        files[name] = b"".join(bytes([19, label]) + image.tobytes() for label, image in pairs)
    files["names.txt"] = b"a\nb\nc\nd\n\n"
    archive = tar_gz({f"made-cifar/{name}": data for name, data in files.items()})
    shape = (3, 2, 2)
    spec = CifarSpec(
        name="cifar100",
        title="made up",
        folder="made-cifar",
        base_url="http://127.0.0.1:9/",
        shape=shape,
        class_count=4,
        class_names=DataFile("names.txt", None),
        train=(cifar_file("batch_1.bin", 7, 2, shape), cifar_file("batch_2.bin", 5, 2, shape)),
        test=(cifar_file("test.bin", 4, 2, shape),),
        archive=Archive("made.tar.gz", md5(archive)),
        label_bytes=2,
    )
    return Made(spec, files, arrays, archive)


@dataclass
class Server:
    """What a small web server on this machine serves, and what it was asked for."""

    url: str
    bodies: dict[str, bytes] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            state.asked.append(name)
            if name not in state.bodies:
                self.send_error(404)
                return
            body = state.bodies[name]
            self.send_response(200)
            self.send_header("Content-Length", str(state.announced.get(name, len(body))))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state = Server(f"http://127.0.0.1:{http.server_port}/")
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()
