"""Files that are not what was written: each is refused before its tensors are made, with a message that says why."""

import json
import os
import subprocess
import sys

import pytest
import torch
from artefact_crafting import edit_header, join, split
from artefact_networks import small
from safetensors.torch import save_file
from torch import nn

from bayesprune import artefact
from bayesprune.artefact import ArtefactError, container


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.safetensors"
    artefact.save(path, small())
    return path


def refused(path, message):
    """Neither load nor read takes the file, and no tensor is made of it."""
    for use in (artefact.load, artefact.read):
        with pytest.raises(ArtefactError, match=message):
            use(path)


@pytest.fixture(autouse=True)
def no_tensors(monkeypatch):
    def never(*_):
        raise AssertionError("a tensor was read before everything was checked")

    monkeypatch.setattr("bayesprune.artefact.files.read_tensors", never)


def test_no_file(tmp_path):
    refused(tmp_path / "none.safetensors", "there is no file")
    refused(tmp_path, "not a file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a file")


@pytest.mark.parametrize("size", [0, 1, 7])
def test_too_short(path, size):
    path.write_bytes(path.read_bytes()[:size])
    refused(path, f"{size} bytes, less than the 8")


def test_truncated_header(path):
    path.write_bytes(path.read_bytes()[:200])
    refused(path, "header of .* only 192 follow")


@pytest.mark.parametrize("length", [2**20 * 16 + 1, 10**12, 2**64 - 1])
def test_oversized_header(path, length):
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    refused(path, f"header of {length} bytes, the limit")


def test_truncated_data(path):
    path.write_bytes(path.read_bytes()[:-1])
    refused(path, "cut off, or something was appended")


def test_appended_data(path):
    path.write_bytes(path.read_bytes() + b"x")
    refused(path, "cut off, or something was appended")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b"[]", "not a JSON object"),
        pytest.param(b"[" * 100_000, "nested too deep", id="deep lists"),
        pytest.param(b'{"a":' * 100_000, "nested too deep", id="deep objects"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "not JSON", id="a long number"),
        pytest.param(b'{"a": [' + b"[]," * 2**20 + b"[]]}", "items, the limit", id="a million items"),
        (b"{}", "no __metadata__"),
        (b'{"__metadata__": {"format": 1}}', "no __metadata__ with texts"),
        (b'{"__metadata__": {"format": "pt"}}', "format 'pt'"),
        (b'{"__metadata__": {}, "__metadata__": {}}', "'__metadata__' twice"),
    ],
)
def test_header_that_is_none(path, text, message):
    path.write_bytes(join(text, b""))
    refused(path, message)


def test_duplicate_tensor(path):
    header, data = split(path.read_bytes())
    text = json.dumps(header).replace('"conv.bias"', '"norm.bias"').encode()
    path.write_bytes(join(text, data))
    refused(path, "'norm.bias' twice")


def test_a_file_of_somebody_else(path):
    save_file({"weight": torch.ones(2)}, path)
    refused(path, "not written by bayesprune")


def change(path, *keys):
    """Set an entry of the header: the last of `keys` is the value, the others lead to its place."""
    *place, last, value = keys

    def edit(header):
        for key in place:
            header = header[key]
        header[last] = value

    edit_header(path, edit)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("__metadata__", "format"), "bayesprune-checkpoint-1", "format 'bayesprune-checkpoint-1'"),
        (("__metadata__", "version"), "3", "version '3'"),
        (("__metadata__", "surplus"), "2", "too many or too few keys.*surplus"),
        (("conv.bias", "dtype"), "F31", "dtype 'F31'"),
        (("conv.bias", "dtype"), ["F32"], "dtype"),
        (("conv.bias", "dtype"), "F16", "16 bytes; its shape .* needs 8"),
        (("conv.bias", "shape"), [5], "needs 20"),
        (("conv.bias", "shape"), [-4], "none negative"),
        (("conv.bias", "shape"), [4.0], "none negative"),
        (("conv.bias", "shape"), [True, 4], "none negative"),
        (("conv.bias", "shape"), "4", "none negative"),
        (("conv.bias", "shape"), [1] * 65, "at most 64"),
        (("conv.bias", "shape"), [2**62, 2**62], "absurd"),
        (("conv.bias", "shape"), [0, 2**63], "absurd"),
        (("conv.bias", "shape"), [10**1000], "absurd"),
        (("conv.bias", "data_offsets"), [0], "data_offsets"),
        (("conv.bias", "data_offsets"), [-16, 0], "data_offsets"),
        (("conv.bias", "data_offsets"), [10**18, 10**18 + 16], "without gap"),
        (("conv.bias", "data_offsets"), [16, 0], "-16 bytes"),
        (("conv.bias",), 3, "needs dtype, shape and data_offsets"),
        (("conv.bias", "more"), 3, "needs dtype, shape and data_offsets"),
    ],
)
def test_wrong_entry(path, place, value, message):
    change(path, *place, value)
    refused(path, message)


def test_overlapping_tensors(path):
    header, _ = split(path.read_bytes())
    change(path, "conv.bias", "data_offsets", header["norm.bias"]["data_offsets"])
    refused(path, "without gap or overlap")


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "a..b", "", ".", "a.", ".a", "/etc/passwd", "__class__", "a.__dict__", "a.class", "lambda", "a b"),
        *("a'b", "a\nb", "x'); import os #", "ä", "a" * 300, ".".join("a" * 40), "٣", "a\u0000"),
    ],
)
def test_names_that_lead_elsewhere(path, name):
    def rename(header):
        header[name] = header.pop("conv.bias")

    edit_header(path, rename)
    refused(path, "names are at most")


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("config", "[1]", "config in .* must be a dict"),
        ("metrics", '{"a": 1, "a": 2}', "metrics in .* has the key 'a' twice"),
        ("classes", "{}", "classes in .* must be a list"),
        ("classes", "[1]", "classes in .* must be texts"),
        ("versions", "null", "versions in .* must be a dict"),
        ("architecture", "[]", "architecture in .* must be a dict"),
        ("architecture", "{", "architecture in .* is not JSON"),
        ("architecture", "[" * 50_000, "architecture in .* nested too deep"),
        ("tied", '{"a": "nothing"}', "tied to 'nothing'"),
        ("tied", '{"conv.bias": "norm.bias"}', "conv.bias is tied"),
        ("tied", '{"__class__": "norm.bias"}', "names are at most"),
    ],
)
def test_wrong_metadata(path, key, text, message):
    change(path, "__metadata__", key, text)
    refused(path, message)


def test_checksum(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refused(path, "checksum does not match")


@pytest.mark.parametrize("value", ["", "0" * 63, "G" * 64, "0" * 65, "A" * 64])
def test_checksum_that_is_none(path, value):
    header, data = split(path.read_bytes())
    header["__metadata__"]["checksum"] = value
    path.write_bytes(join(header, data, checksum=False))
    refused(path, "has the checksum .* 64 hexadecimal digits")


def test_two_checksums(path):
    header, data = split(path.read_bytes())
    text = json.dumps(header, separators=(",", ":")).replace('"versions"', '"checksum"').encode()
    path.write_bytes(join(text, data))
    refused(path, "'checksum' twice")


def test_booleans_that_are_none(tmp_path):
    path = tmp_path / "a.safetensors"
    entry = container.Entry(torch.bool, (2,), 0, 2)
    path.write_bytes(b"\x01\x02")
    with path.open("rb") as file, pytest.raises(ArtefactError, match="byte 2"):
        container.read_tensor(file, entry, "flags", path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"\x01\x02")
    with path.open("rb") as file, pytest.raises(ArtefactError, match="ended while flags was read"):
        container.read_tensor(file, container.Entry(torch.uint8, (3,), 0, 3), "flags", path)


MEASURE = """
import resource, sys, torch
from bayesprune import artefact
artefact.load(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
network = artefact.load(sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_of_a_large_file(path, tmp_path):
    large = tmp_path / "large.safetensors"
    layer = nn.Linear(5000, 5000)
    layer.weight = nn.Parameter(torch.zeros(5000, 5000).t())  # its order in memory is restored by a copy
    artefact.save(large, nn.Sequential(layer))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, large, path], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(done.stdout) < 2 * large.stat().st_size + 20 * 2**20
