"""A nested state as a JSON tree and a table of tensors, and back, to the bit.

JSON has no tuples, no integer keys, no tensors and no NaN; those are objects with one tag, and every JSON object is
such a tag:  {"dict": [[key, value], ...]}  {"tuple": [...]}  {"int": "0x1f"}  {"float": "7ff8000000000000"}
{"tensor": name}  {"bytes": name, "dtype": ..., "shape": [...]}
"""

import math
import struct
from typing import Any

import torch

from bayesprune.runs.errors import RunError

# What safetensors stores as such in all its versions; every other dtype is stored as its bytes.
NATIVE = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


class TreeEncoder:
    """Turns a state into a JSON tree; `tensors` collects its tensors under names that are unique.

    Tensors on the CPU that are the same view of the same memory are stored once.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._seen: dict[tuple[object, ...], dict[str, Any]] = {}
        self._storages: set[int] = set()

    def encode(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """The JSON tree of `value`, which is found at `path` of the state."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            # Python reads and writes no decimal number of more than 4300 digits.
            return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is list:
            return [self.encode(item, (*path, str(i))) for i, item in enumerate(value)]
        if kind is tuple:
            return {"tuple": [self.encode(item, (*path, str(i))) for i, item in enumerate(value)]}
        if isinstance(value, dict):
            return {"dict": [self._item(key, item, path) for key, item in value.items()]}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        raise RunError(
            f"state{_place(path)} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold; it holds "
            "dict, list, tuple, int, float, bool, str, None and dense tensors: convert it to one of those"
        )

    def _item(self, key: object, item: Any, path: tuple[str, ...]) -> list[Any]:
        if type(key) is not str and type(key) is not int:
            raise RunError(f"state{_place(path)} has the key {key!r}; keys must be str or int")
        return [self.encode(key), self.encode(item, (*path, str(key)))]

    def _tensor(self, tensor: torch.Tensor, path: tuple[str, ...]) -> dict[str, Any]:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            raise RunError(
                f"state{_place(path)} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}; "
                "a checkpoint holds dense tensors with values: try to_dense() or dequantize()"
            )
        tensor = tensor.detach()
        view = _view(tensor)
        if view not in self._seen:
            self._seen[view] = self._store(tensor, f"{len(self.tensors)}:{ascii('.'.join(path))[1:-1]}")
        return self._seen[view]

    def _store(self, tensor: torch.Tensor, name: str) -> dict[str, Any]:
        reference: dict[str, Any] = {"tensor": name}
        plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.dtype not in NATIVE:
            reference = {"bytes": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            plain = plain.reshape(-1).view(torch.uint8)
        # safetensors refuses tensors that share memory, even when that is meant.
        if plain.untyped_storage().data_ptr() in self._storages:
            plain = plain.clone()
        self._storages.add(plain.untyped_storage().data_ptr())
        self.tensors[name] = plain
        return reference


def decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The state of a JSON tree.

    Every tensor is cloned: two that were one when saved do not share memory, and torch's own memory is aligned, which
    the last bit of a result may depend on.
    """
    if isinstance(tree, list):
        return [decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "dict" in tree:
        return {decode(key, tensors): decode(item, tensors) for key, item in tree["dict"]}
    if "tuple" in tree:
        return tuple(decode(item, tensors) for item in tree["tuple"])
    if "int" in tree:
        return int(tree["int"], 16)
    if "float" in tree:
        return struct.unpack(">d", bytes.fromhex(tree["float"]))[0]
    if "tensor" in tree:
        return tensors[tree["tensor"]].clone()
    dtype = getattr(torch, tree["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise RunError(f"this torch has no dtype {tree['dtype']!r}; use the version that wrote the checkpoint")
    return tensors[tree["bytes"]].clone().view(dtype).reshape(tree["shape"])


def _view(tensor: torch.Tensor) -> tuple[object, ...]:
    """What two tensors have in common that are the same view of the same memory."""
    memory = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _place(path: tuple[str, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path)
