"""Checkpoints come back to the bit, and a damaged one is recognised whatever byte is wrong."""

import collections
import json
import math
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.runs import DamagedCheckpointError, RunError, checkpoint

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
DTYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.bool, torch.complex64, torch.complex128]
DTYPES += [torch.uint64, torch.uint32, torch.uint16, torch.uint8]


def bits(value):
    """A value in a form in which == means the same type and the same bits."""
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist()
        return ("tensor", str(value.dtype), tuple(value.shape), data)
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, dict):
        return ("dict", [(bits(key), bits(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [bits(item) for item in value])
    return (type(value).__name__, value)


def round_trip(state, folder):
    checkpoint.save(folder / "state.safetensors", state)
    return checkpoint.load(folder / "state.safetensors")


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
tensors = st.builds(
    lambda data, shape: torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape),
    st.binary(min_size=24, max_size=24),
    st.sampled_from([(6,), (2, 3), (1, 6, 1)]),
)
states = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(state=states)
def test_any_tree_comes_back(state, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    assert bits(round_trip(state, folder)) == bits(state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_and_shape_comes_back(dtype, tmp_path):
    raw = torch.randint(0, 2, (96 * dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    full = raw.view(dtype).reshape(4, 24)
    state = {"full": full, "scalar": full[0, 0], "empty": full[:0], "empty2": full[:, :0], "turned": full.t()}
    state["every_second"] = full[:, ::2]
    state["expanded"] = full[:1].expand(3, 24)
    loaded = round_trip(state, tmp_path)
    assert bits(loaded) == bits({key: value.contiguous() for key, value in state.items()})
    assert all(value.dtype == dtype for value in loaded.values())


def test_numbers_that_json_cannot_hold(tmp_path):
    odd_nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    state = [math.nan, odd_nan, math.inf, -math.inf, -0.0, 5e-324, 1.0, 1, True, 2**64, -(10**5000), 0.1 + 0.2]
    assert bits(round_trip(state, tmp_path)) == bits(state)


def test_nan_payloads_in_tensors(tmp_path):
    strange = torch.tensor([0x7FC00123, 0x7F800001, -1, -(2**31)], dtype=torch.int32).view(torch.float32)
    assert bits(round_trip({"x": strange}, tmp_path)) == bits({"x": strange})


def test_generator_states_continue(tmp_path):
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    loaded = round_trip({"generator": generator.get_state(), "global": torch.get_rng_state()}, tmp_path)
    expected = torch.rand(5, generator=generator)
    other = torch.Generator()
    other.set_state(loaded["generator"])
    assert torch.equal(torch.rand(5, generator=other), expected)
    torch.set_rng_state(loaded["global"])


def test_a_training_resumes_bit_identically(tmp_path):
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 2))
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    def train(model, optimizer, steps, generator):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, 5, generator=generator)).square().mean().backward()
            optimizer.step()

    model, optimizer = build()
    generator = torch.Generator().manual_seed(1)
    train(model, optimizer, 3, generator)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": generator.get_state()}
    loaded = round_trip(state, tmp_path)
    train(model, optimizer, 3, generator)

    resumed, resumed_optimizer = build()
    resumed.load_state_dict(loaded["model"])
    resumed_optimizer.load_state_dict(loaded["optimizer"])
    generator.set_state(loaded["generator"])
    train(resumed, resumed_optimizer, 3, generator)
    assert bits(dict(resumed.state_dict())) == bits(dict(model.state_dict()))
    assert bits(resumed_optimizer.state_dict()) == bits(optimizer.state_dict())


def test_tied_and_overlapping_tensors_keep_their_values_and_get_their_own_memory(tmp_path):
    base = torch.arange(1000.0)
    state = {"a": base, "b": base, "head": base[:10], "tail": base[5:], "turned": base.view(10, 100).t()}
    loaded = round_trip(state, tmp_path)
    assert bits(loaded) == bits(state)
    loaded["a"].zero_()
    assert torch.equal(loaded["b"], base)
    assert (tmp_path / "state.safetensors").stat().st_size < 4 * 3100 + 2000  # a and b are stored once


def test_conjugate_and_parameter(tmp_path):
    value = torch.tensor([1 + 2j, 3 - 1j])
    parameter = torch.nn.Parameter(torch.ones(3))
    loaded = round_trip({"conj": value.conj(), "imag": value.conj().imag, "parameter": parameter}, tmp_path)
    assert torch.equal(loaded["conj"], torch.tensor([1 - 2j, 3 + 1j]))
    assert loaded["imag"].tolist() == [-2.0, 1.0]
    assert type(loaded["parameter"]) is torch.Tensor
    assert not loaded["parameter"].requires_grad


def test_dict_order_and_subclasses(tmp_path):
    state = collections.OrderedDict(b=1, a=2)
    loaded = round_trip(state, tmp_path)
    assert list(loaded) == ["b", "a"]
    assert type(loaded) is dict


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": {1, 2}}}, r"state\['a'\]\['b'\] is a builtins\.set"),
        ({"a": [object()]}, r"state\['a'\]\['0'\] is a builtins\.object"),
        ({"a": {1.5: 2}}, r"state\['a'\] has the key 1\.5"),
        ({"t": torch.eye(2).to_sparse()}, r"state\['t'\].*to_dense"),
        ({"t": torch.empty(2, device="meta")}, r"state\['t'\].*meta"),
        ({"f": test_dict_order_and_subclasses}, r"a builtins\.function"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(state, words, tmp_path):
    with pytest.raises(RunError, match=words):
        checkpoint.save(tmp_path / "x", state)
    assert not list(tmp_path.iterdir())


def test_a_state_that_contains_itself(tmp_path):
    state = {}
    state["self"] = state
    with pytest.raises(RunError, match="contains itself"):
        checkpoint.save(tmp_path / "x", state)


def test_other_tools_can_read_it(tmp_path):
    checkpoint.save(tmp_path / "x", {"model": {"conv.weight": torch.ones(2)}})
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x")["0:model.conv.weight"], torch.ones(2))


def test_every_changed_byte_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "x"
    checkpoint.save(path, {"a": torch.arange(5), "b": [1, 2.5, "0" * 64, '"checksum":"' + "0" * 64]})
    content = path.read_bytes()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError, match=str(path)):
            checkpoint.load(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedCheckpointError, match=str(path)):
            checkpoint.load(path)
    for other in (content + b"\0", b"\0" * len(content), b"\xff" * 100):
        path.write_bytes(other)
        with pytest.raises(DamagedCheckpointError, match=str(path)):
            checkpoint.load(path)
    path.write_bytes(content)
    checkpoint.load(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(RunError, match="no checkpoint"):
        checkpoint.load(tmp_path / "x")
    with pytest.raises(DamagedCheckpointError):
        checkpoint.load(tmp_path)


def test_a_later_format_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    checkpoint.save(tmp_path / "x", {})
    monkeypatch.undo()
    with pytest.raises(RunError, match="use the version") as caught:
        checkpoint.load(tmp_path / "x")
    assert not isinstance(caught.value, DamagedCheckpointError)


def test_the_file_has_the_usual_permissions_and_holds_the_tree_as_json(tmp_path):
    checkpoint.save(tmp_path / "x", {"a": 1})
    (tmp_path / "plain").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode
    content = (tmp_path / "x").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["tree"]) == {"dict": [["a", 1]]}
