"""Networks whose zeros take no room: packed, loaded to the bit, rounded on demand only, refused where wrong."""

import copy
import json
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from artefact_crafting import join_bytes, join_packed, split, split_packed, with_checksum
from artefact_networks import clustered, networks, small
from safetensors import safe_open
from torch import nn
from torch.utils import _pytree

from bayesprune import artefact, data, models
from bayesprune.artefact import ArtefactError, ArtefactWarning, packed

NETWORKS = networks()
VERSION_1 = Path(__file__).with_name("version-1.safetensors")  # LeNet-5 on digits, written before version 2 was there


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same_tensors(network, other):
    one, two = network.state_dict(), other.state_dict()
    assert one.keys() == two.keys()
    for name in one:
        assert (one[name].dtype, one[name].shape) == (two[name].dtype, two[name].shape)
        assert torch.equal(bits(one[name]), bits(two[name])), name


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


@pytest.fixture(scope="module")
def pruned():
    return artefact.load(VERSION_1)


def test_files_of_version_1_load():
    held = artefact.read(VERSION_1)
    assert split(VERSION_1.read_bytes())[0]["__metadata__"]["version"] == "1"
    assert held.storage == "dense"
    test = data.load("digits").test
    with torch.no_grad():
        accuracy = artefact.load(VERSION_1)(test.x).argmax(1).eq(test.y).double().mean()
    assert float(accuracy) == held.metrics["accuracy"]


def test_a_pruned_network_comes_back_to_the_bit(path, pruned):
    held = artefact.read(VERSION_1)
    described = {"config": held.config, "metrics": held.metrics, "classes": held.classes}
    artefact.save(path, pruned, **described, example_shape=held.example_shape)
    found = artefact.read(path)
    assert found.storage == "clusters"
    assert (found.config, found.metrics, found.classes) == (held.config, held.metrics, held.classes)
    assert (found.architecture, found.tensors) == (held.architecture, held.tensors)
    assert (found.example_shape, found.note, found.tied) == (held.example_shape, held.note, held.tied)
    assert found.size == path.stat().st_size < 0.36 * held.size
    loaded = artefact.load(path)
    assert_same_tensors(loaded, pruned)
    assert loaded.code == pruned.code
    x = data.load("digits").test.x
    with torch.no_grad():
        assert torch.equal(loaded(x), pruned(x))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("alexnet-small", "resnet20", "vgg11")])
def test_every_network_can_be_packed(path, name):
    """Those with tied, frozen, empty or transposed tensors and tensors of any dtype too."""
    network, inputs = NETWORKS[name]
    artefact.save(path, network, storage="clusters")
    loaded = artefact.load(path)
    artefact.save(path.with_stem("b"), network, storage="dense")
    dense = artefact.load(path.with_stem("b"))
    assert_same_tensors(loaded, dense)
    for one, other in zip(loaded.parameters(), dense.parameters(), strict=True):
        assert (one.stride(), one.requires_grad) == (other.stride(), other.requires_grad)
    with torch.no_grad():
        found, expected = (_pytree.tree_flatten(net(*inputs))[0] for net in (loaded, dense))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(bits(one), bits(other)) if isinstance(one, torch.Tensor) else one == other
    assert path.stat().st_size < path.with_stem("b").stat().st_size


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_all_floats_survive(path, dtype):
    network = clustered().to(dtype)
    with torch.no_grad():
        flat = network.out.weight.view(-1)
        flat[:5] = torch.tensor([-0.0, torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).tiny / 2], dtype=dtype)
    artefact.save(path, network, storage="clusters")
    assert_same_tensors(artefact.load(path), network)


def test_auto_packs_what_has_zeros(path):
    artefact.save(path, small())
    assert artefact.read(path).storage == "dense"  # for every reader of safetensors
    artefact.save(path, clustered())
    assert artefact.read(path).storage == "clusters"
    artefact.save(path, clustered(), storage="dense")
    assert artefact.read(path).storage == "dense"
    assert_same_tensors(artefact.load(path), clustered())


def test_a_packed_file_is_a_file_of_safetensors(path):
    artefact.save(path, clustered())
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == ["packed"]
        assert file.get_tensor("packed").dtype == torch.uint8
        assert file.metadata()["version"] == "2"


def test_size_is_what_is_written(path):
    for storage in artefact.STORAGES:
        artefact.save(path, clustered(), config={"a": 1}, storage=storage)
        assert artefact.size(clustered(), config={"a": 1}, storage=storage) == path.stat().st_size


def test_a_packed_network_fills_an_instance_of_its_class(path):
    network = clustered()
    artefact.save(path, network)
    other = clustered()
    nn.init.zeros_(other.conv.weight)
    assert artefact.load(path, network=other) is other
    assert_same_tensors(other, network)


def test_weights_alone_can_be_packed(path):
    network = nn.Sequential(nn.LSTM(4, 8))
    with torch.no_grad():
        network[0].weight_hh_l0.zero_()
    with pytest.warns(ArtefactWarning, match="weights only"):
        artefact.save(path, network, storage="clusters")
    other = nn.Sequential(nn.LSTM(4, 8))
    artefact.load(path, network=other)
    assert_same_tensors(other, network)
    assert "LSTM" in artefact.read(path).note


def test_ties_survive(path):
    network = copy.deepcopy(NETWORKS["attention"][0])
    with torch.no_grad():
        network.tokens.weight[::2] = 0
    artefact.save(path, network, storage="clusters")
    loaded = artefact.load(path)
    assert loaded.out.weight is loaded.tokens.weight


@pytest.mark.parametrize("values", ["float16", "bfloat16"])
def test_rounded_values(path, values, pruned):
    artefact.save(path, pruned, storage="clusters")
    exact = path.stat().st_size
    artefact.save(path, pruned, values=values)
    assert path.stat().st_size < 0.75 * exact
    loaded = artefact.load(path)
    dtype = getattr(torch, values)
    for name, one in pruned.state_dict().items():
        expected = one.to(dtype).to(one.dtype) if one.ndim > 1 else one
        assert torch.equal(loaded.state_dict()[name], expected)
    held = artefact.read(path)
    name = {"float16": "F16", "bfloat16": "BF16"}[values]
    assert held.tensors["fc1.weight"] == artefact.TensorInfo((16, 28), "F32", name)
    assert held.tensors["fc1.bias"].values is None
    arrays = artefact.read_arrays(path)
    assert (arrays["fc1.weight"].dtype, arrays["fc1.bias"].dtype) == (np.int16, np.int32)


def test_values_too_large_for_float16(path):
    network = clustered()
    with torch.no_grad():
        network.out.weight[1, 2] = 1e5
    with pytest.raises(ArtefactError, match=r"out.weight has the value 100000, and float16 ends at 65504"):
        artefact.save(path, network, values="float16")
    assert not path.exists()
    artefact.save(path, network, values="bfloat16")
    with torch.no_grad():
        network.out.weight[1, 2] = torch.inf  # it was so before
    artefact.save(path, network, values="float16")
    assert torch.isinf(artefact.load(path).out.weight[1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "zip"}, "storage must be one of auto, dense, clusters, got 'zip'"),
        ({"values": "int8"}, "values must be None or one of float16, bfloat16, got 'int8'"),
        ({"values": "float16", "storage": "dense"}, "dense storage keeps the weights"),
    ],
)
def test_wrong_options(path, options, message):
    with pytest.raises(ArtefactError, match=message):
        artefact.save(path, clustered(), **options)
    assert not path.exists()


def test_a_network_of_nothing_but_zeros(path):
    """No reader could tell it from a file that asks for too much memory."""
    network = nn.Sequential(nn.Linear(3000, 2000, bias=False))
    nn.init.zeros_(network[0].weight)
    with pytest.raises(ArtefactError, match=r"nearly all zero: 24000000 bytes .* storage='dense'"):
        artefact.save(path, network, storage="clusters")
    artefact.save(path, network)
    assert artefact.read(path).storage == "dense"


def test_lenet_5_meets_its_goal(path):
    """700 live weights in 3-6-22-28: 80 times smaller than the dense network, everything counted."""
    network = models.create("lenet5", (1, 28, 28), 10, generator=torch.Generator().manual_seed(0))
    dense = sum(one.nbytes for one in network.parameters())
    shapes = {"conv1": (3, 1, 5, 5), "conv2": (6, 3, 5, 5), "fc1": (22, 150), "fc2": (28, 22), "out": (10, 28)}
    generator = torch.Generator().manual_seed(1)
    for name, shape in shapes.items():
        layer = network.get_submodule(name)
        weight = torch.randn(shape, generator=generator)
        density = 0.6 if name == "conv1" else 0.12
        layer.weight = nn.Parameter(weight.masked_fill(torch.rand(shape, generator=generator) > density, 0))
        layer.bias = nn.Parameter(torch.randn(shape[0], generator=generator))
        sizes = ("out_channels", "in_channels") if len(shape) > 2 else ("out_features", "in_features")
        for attribute, size in zip(sizes, shape, strict=False):
            setattr(layer, attribute, size)
    described = {"example_shape": (1, 28, 28), "classes": list("0123456789")}
    assert dense / artefact.size(network, values="float16", **described) > 80
    assert dense / artefact.size(network, storage="clusters", **described) > 60


def refused(path, message):
    with pytest.raises(ArtefactError, match=message):
        artefact.load(path)


def with_line(path, number, edit):
    """Change one of the lines of the description."""
    lines, tensors = split_packed(path.read_bytes())
    lines[number] = json.dumps(edit(json.loads(lines[number]))).encode()
    path.write_bytes(join_packed(lines, tensors))


def test_the_way_these_tests_change_a_file_works(path):
    artefact.save(path, clustered())
    lines, tensors = split_packed(path.read_bytes())
    assert join_packed(lines, tensors) == path.read_bytes()
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (["F31", [12, 8]], "dtype 'F31'"),
        (["F32", [12, -8]], "none negative"),
        (["F32", [12, 2**61]], "absurd shape"),
        (["F32", [12]], "weights in .* are not as bayesprune packs them|the shape"),
        (["F32", [12, 8], "F32"], "only floats can be rounded"),
        (["F16", [12, 8], "F16"], "only floats can be rounded"),
        (["I64", [12, 8], "F16"], "only floats can be rounded"),
        (["F32", [12, 8], ["F16"]], "only floats can be rounded"),
        (["F32", [12, 8], "F16"], "are not as bayesprune packs them"),
        (["F64", [12, 8]], "are not as bayesprune packs them"),
        (["F32"], "needs dtype, shape"),
        ({"dtype": "F32"}, "needs dtype, shape"),
        (["F32", [5000, 5000]], "claims tensors of .* absurd"),
    ],
)
def test_wrong_entries(path, entry, message):
    artefact.save(path, clustered())
    with_line(path, -1, lambda table: table | {"out.weight": entry})
    refused(path, message)


@pytest.mark.parametrize(
    ("number", "content", "message"),
    [
        (0, [], "architecture in .* must be a dict"),
        (1, None, "note in .* must be a text"),
        (2, {"a": "b"}, "a is tied to 'b'"),
        (7, None, "versions in .* must be a dict"),
        (8, [], "tensors in .* must be an object"),
        (8, {"../x": ["F32", []]}, "names are at most"),
        (8, {}, "lacks the tensors|left over"),
    ],
)
def test_wrong_lines(path, number, content, message):
    artefact.save(path, clustered())
    with_line(path, number, lambda _: content)
    refused(path, message)


def test_descriptions_that_are_none(path):
    artefact.save(path, clustered())
    lines, tensors = split_packed(path.read_bytes())
    for text, message in [
        (b"\n".join(lines[:-1]), "has 8 lines; it must have 9"),
        (b"\n".join([b"\xff", *lines[1:]]), "not UTF-8"),
        (b"\n".join([b"{", *lines[1:]]), "not JSON"),
        (b" " * (packed.LONGEST_HEADER + 1), "more than .* absurd"),
    ]:
        path.write_bytes(join_bytes(zlib.compress(text) + tensors))
        refused(path, message)
    path.write_bytes(join_bytes(b"nothing of zlib" + tensors))
    refused(path, "cannot be decompressed")
    path.write_bytes(join_bytes(zlib.compress(b"\n".join(lines))[:-9]))
    refused(path, "ends too early")
    path.write_bytes(join_bytes(b""))
    refused(path, "ends too early")


def test_other_tensors_beside_the_packed_one(path):
    artefact.save(path, clustered())
    content = path.read_bytes()
    for old, new in [(b'"packed"', b'"pecked"'), (b'"U8"', b'"I8"')]:
        path.write_bytes(with_checksum(content.replace(old, new)))
        refused(path, "must hold the tensor packed")


def test_a_decompression_bomb(path):
    """Thousands of times its size in spaces: it is not decompressed beyond the limit."""
    compressor = zlib.compressobj(9)
    path.write_bytes(join_bytes(b"".join(compressor.compress(b" " * 2**20) for _ in range(96)) + compressor.flush()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(path, "more than .* absurd")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


MEASURE = """
import resource, sys
from bayesprune import artefact
artefact.load(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
artefact.load(sys.argv[1])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_memory_of_a_large_network(path, tmp_path):
    """Little more than the tensors themselves, and a byte for each of their elements."""
    network = nn.Sequential(nn.Linear(4000, 2000, bias=False))
    with torch.no_grad():
        network[0].weight.masked_fill_(torch.rand(2000, 4000) > 0.02, 0)
    artefact.save(path, network)
    assert artefact.read(path).storage == "clusters"
    artefact.save(tmp_path / "small.safetensors", clustered())
    command = [sys.executable, "-c", MEASURE, path, tmp_path / "small.safetensors"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 2 * network[0].weight.nbytes + 20 * 2**20
