"""One module of the closed list as data, and back."""

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.artefact.closed_list import MODULE_NAMES, MODULES
from bayesprune.artefact.errors import ArtefactError, UnlistedError
from bayesprune.artefact.names import shorten
from bayesprune.artefact.slim_attention import ARGUMENTS as SLIM_ARGUMENTS
from bayesprune.artefact.values import decode, encode
from bayesprune.surgery.attention import SlimAttention

# What every module has, and what says nothing about what it computes.
COMMON = frozenset(vars(nn.Module()))


def describe_module(module: nn.Module, name: str) -> dict[str, Any]:
    """The class and the constructor's arguments of `module`, or UnlistedError."""
    kind = type(module)
    if kind not in MODULE_NAMES:
        raise UnlistedError(f"{name} is a {kind.__module__}.{kind.__qualname__}")
    if any(has_hooks(inner) for inner in module.modules()):
        raise UnlistedError(f"{name} has hooks")
    arguments = {}
    for argument in MODULES[MODULE_NAMES[kind]].arguments:
        value = _argument(module, argument.rstrip("?"))
        if not argument.endswith("?") or not _is_default(kind, argument[:-1], value):
            arguments[argument.rstrip("?")] = encode(value, {})
    described = {"class": MODULE_NAMES[kind], "arguments": arguments}
    _check_same(module, build_module(described, name), name)
    return described


def _is_default(kind: type[nn.Module], argument: str, value: Any) -> bool:
    """Whether leaving an argument out says the same; one that this version of torch does not have is left out."""
    parameter = inspect.signature(kind).parameters.get(argument)
    return parameter is None or bool(value == parameter.default)


def build_module(described: Any, name: str) -> nn.Module:
    """The module of its description, on the meta device, where sizes cost nothing."""
    if not isinstance(described, dict) or set(described) != {"class", "arguments"}:
        raise ArtefactError(f"module {name} is {shorten(described)}; it needs exactly class and arguments")
    kind_name, given = described["class"], described["arguments"]
    if not isinstance(kind_name, str) or kind_name not in MODULES:
        raise ArtefactError(f"module {name} has the class {shorten(kind_name)}, which is not in the closed list")
    names = MODULES[kind_name].arguments
    required = {one for one in names if not one.endswith("?")}
    if not isinstance(given, dict) or not required <= given.keys() <= {one.rstrip("?") for one in names}:
        raise ArtefactError(f"module {name}, a {kind_name}, has the arguments {shorten(given)}; it needs {names}")
    arguments = {key: decode(value, (), f"module {name}") for key, value in given.items()}
    try:
        # Layers warn about first values for empty tensors; there are none to be had on the meta device anyway.
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            return MODULES[kind_name].make(**arguments)
    except Exception as error:  # constructors raise anything when their arguments make no sense
        raise ArtefactError(
            f"module {name}: {kind_name} refuses its arguments {shorten(arguments)}: {shorten(str(error))}"
        ) from error


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module runs more than its forward."""
    hooks = {key: value for key, value in vars(module).items() if key.endswith(("_hooks", "_pre_hooks"))}
    return any(isinstance(value, dict) and value for value in hooks.values())


def _argument(module: nn.Module, name: str) -> Any:
    if isinstance(module, SlimAttention):
        return SLIM_ARGUMENTS[name](module)
    if name == "bias":
        if isinstance(module, nn.MultiheadAttention):
            return module.in_proj_bias is not None
        # Without a weight there is no bias either, whatever the argument says.
        return module._parameters["bias"] is not None or module._parameters["weight"] is None
    if name == "add_bias_kv":
        return module.bias_k is not None
    return getattr(module, name)


def _check_same(module: nn.Module, rebuilt: nn.Module, name: str) -> None:
    """Raise UnlistedError where somebody changed the module after it was constructed."""
    # Convs read their padding twice over only where they do not pad with zeros.
    unread = {"_reversed_padding_repeated_twice"} if getattr(module, "padding_mode", None) == "zeros" else set()
    for key, value in vars(rebuilt).items():
        if key not in COMMON | unread and vars(module).get(key, value) != value:
            raise UnlistedError(f"{name}.{key} was changed after {name} was built")
    for key in vars(module).keys() - vars(rebuilt).keys():
        if hasattr(type(module), key):
            raise UnlistedError(f"{name}.{key} replaces what its class does")
    if _parts(module) != _parts(rebuilt):
        raise UnlistedError(f"{name} has other tensors or modules than its class gives it")


def _parts(module: nn.Module) -> dict[str, Any]:
    """Classes of the modules inside and shapes of the tensors."""
    parts: dict[str, Any] = {name: type(inner) for name, inner in module.named_modules() if name}
    tensors: list[tuple[str, Tensor]] = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return parts | {name: tuple(tensor.shape) for name, tensor in tensors}
