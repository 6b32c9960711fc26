"""Save a network in one file, load it, and look at what a file holds."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, get_args

import torch
from torch import Tensor, fx, nn

from bayesprune.artefact import container
from bayesprune.artefact.architecture import MOST_ITEMS, Described, build, check_entry, describe, tensors_of
from bayesprune.artefact.container import (
    CLUSTERS,
    DENSE,
    DTYPE_NAMES,
    PACKED,
    Entry,
    Header,
    open_file,
    pack,
    parse_json,
    read_header,
    read_tensor,
)
from bayesprune.artefact.errors import ArtefactError, ArtefactWarning, TooSparseError, UnlistedError
from bayesprune.artefact.names import check_path, shorten
from bayesprune.artefact.packed import (
    ROUNDED,
    Content,
    as_integers,
    pack_network,
    read_content,
    share_of_zeros,
    unpack_tensors,
)
from bayesprune.provenance import versions
from bayesprune.runs.atomic import Buffer, write_atomically
from bayesprune.runs.errors import RunError
from bayesprune.runs.plain_json import to_json
from bayesprune.storage import Integers

SUFFIX = ".safetensors"
Storage = Literal["auto", "dense", "clusters"]
STORAGES: Final[tuple[Storage, ...]] = get_args(Storage)
VALUES: Final = tuple(ROUNDED)
ZEROS = 0.1  # the share of the weights from which on `auto` packs them


@dataclass(frozen=True)
class TensorInfo:
    """What a tensor in the file is; dtypes by safetensors' names of them, such as F32.

    values: the dtype to which its values were rounded, None where they are as they were.
    """

    shape: tuple[int, ...]
    dtype: str
    values: str | None = None


@dataclass(frozen=True)
class Artefact:
    """What a file holds besides the values of the tensors.

    Attributes:
        architecture: the network as data; None where the file holds weights only, and `note` says why.
        config: how the network was made.
        metrics: what was measured.
        classes: the names of the classes.
        example_shape: the shape of an input, or a list of shapes.
        versions: of bayesprune, Python, torch and numpy that wrote the file.
        tensors: those in the file, by name.
        tied: other names of tensors in the file.
        size: bytes of the file.
        storage: "dense", or "clusters" where the tensors are packed.
    """

    path: Path
    architecture: dict[str, Any] | None = field(repr=False)
    note: str
    config: dict[str, Any] | None
    metrics: dict[str, Any] | None
    classes: list[str] | None
    example_shape: list[Any] | None
    versions: dict[str, str]
    tensors: dict[str, TensorInfo] = field(repr=False)
    tied: dict[str, str]
    size: int
    storage: str


@dataclass(frozen=True)
class _Opened:
    """An open file whose description is checked.  packed: None in a file of dense tensors."""

    file: BinaryIO
    header: Header
    packed: Content | None
    artefact: Artefact

    @property
    def entries(self) -> dict[str, Entry]:
        return self.packed.entries if self.packed else self.header.entries


@dataclass(frozen=True)
class Metadata:
    """What a file says about its network, see `save`."""

    example_shape: Sequence[Any] | None
    config: Mapping[str, Any] | None
    metrics: Mapping[str, Any] | None
    classes: Sequence[str] | None


def save(
    path: str | os.PathLike[str],
    network: nn.Module,
    *,
    example_shape: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    storage: Storage = "auto",
    values: str | None = None,
) -> None:
    """Write `network` to the file `path`: there is the old file or the complete new one, at any moment.

    The architecture goes into the file as data where all of it is in the closed list; otherwise the file holds the
    weights only and an ArtefactWarning says why.  Tied parameters are stored once.

    Args:
        path: the file; its name ends in .safetensors.
        network: a GraphModule, or a module that torch.fx can trace; it is left as it is.
        example_shape: the shape of an input, or a list of shapes where there are several inputs.
        config: how the network was made, in JSON's types.
        metrics: what was measured, in JSON's types; NaN and infinity become null.
        classes: the names of the classes.
        storage: "clusters" packs the weights: live ones in rectangles, the others by their gaps, exactly; "dense"
            writes tensors that every reader of safetensors understands; "auto" packs where a tenth of the weights are
            zero.
        values: "float16" or "bfloat16" rounds the weights in the file, which makes it smaller and is not exact; they
            are loaded in the dtype they had.  Not with dense storage.

    Raises:
        ArtefactError: the network or the metadata cannot be stored; nothing was written.
        OSError: the file cannot be written; what was there before stays.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ArtefactError(f"{path} must end in {SUFFIX}, so that other programs recognise it; rename it")
    metadata = Metadata(example_shape, config, metrics, classes)
    content, note = _content(network, metadata, path, storage, values)
    write_atomically(path, content)
    if note:
        warnings.warn(
            f"{path} holds the weights only, without the architecture: {note}; to load it, give "
            "artefact.load an instance of the network's class",
            ArtefactWarning,
            stacklevel=2,
        )


def size(
    network: nn.Module,
    *,
    example_shape: Sequence[Any] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    storage: Storage = "auto",
    values: str | None = None,
) -> int:
    """The bytes of the file that `save` would write."""
    metadata = Metadata(example_shape, config, metrics, classes)
    content, _ = _content(network, metadata, Path(f"network{SUFFIX}"), storage, values)
    return sum(memoryview(piece).nbytes for piece in content)


def _content(
    network: nn.Module, metadata: Metadata, path: Path, storage: Storage, values: str | None
) -> tuple[list[Buffer], str]:
    """The content of the file, in pieces, and why it has no architecture, where it has none."""
    _check_storage(storage, values)
    _check_is_for_files(network)
    try:
        described = describe(network, _inputs(network, metadata.example_shape))
        stored, tied = _without_ties(described.tensors)
        build(described.architecture, _entries_to_be(described))
        architecture, note = _architecture_text(described), ""
    except (UnlistedError, ArtefactError) as error:
        note = str(error)
        architecture = "null"
        _check_no_extra_state(network)
        stored, tied = _without_ties(tensors_of(network))
    description = {
        "architecture": architecture,
        "note": note,
        "tied": json.dumps(tied),
        "config": _json(metadata.config, path, exact=True),
        "metrics": _json(metadata.metrics, path, exact=False),
        "classes": _json_list(metadata.classes, "classes"),
        "example_shape": _json_list(metadata.example_shape, "example_shape"),
        "versions": json.dumps(versions()),
    }
    packed = _packed(description, stored, storage, values)
    if packed is None:
        return pack(DENSE, description, stored), note
    return pack(CLUSTERS, {}, {PACKED: packed}), note


def _check_is_for_files(network: nn.Module) -> None:
    """Raise ArtefactError for modules of this machine: they name, as `save_instead`, the part that is for files."""
    for module in network.modules():
        instead = getattr(module, "save_instead", None)
        if isinstance(instead, str):
            raise ArtefactError(
                f"a {type(module).__name__} is of this machine and no file can hold it; save its .{instead} instead, "
                f"as in bayesprune.save(path, compiled.{instead}), and compile what load gives"
            )


def load(
    path: str | os.PathLike[str], *, network: nn.Module | None = None, device: torch.device | str = "cpu"
) -> nn.Module:
    """The network in the file `path`, in eval mode on `device`.

    Without `network` it is a GraphModule made of torch's own modules and functions.  With `network`, an instance of
    the class that was saved, the tensors are copied into it.

    Loading runs no code from the file: every operation and module is looked up in a closed list, every name is
    checked, and everything, the checksum of the whole file included, is checked before the first tensor is made.  It
    allocates no more than the tensors in the file and a constant; packed ones may be 1000 times as large as the file,
    and 16 MiB, but no more, and take a few bytes per element while they are unpacked.  Not promised: that a network
    from a stranger, who can compute checksums as well, computes something sensible or little when it is called.

    Raises:
        ArtefactError: the file is not an artefact, is damaged, or does not fit `network`.
    """
    path = Path(path)
    with open_file(path) as file:
        opened = _open(file, path)
        artefact = opened.artefact
        names = {name: name for name in opened.entries} | artefact.tied
        entries = {name: opened.entries[stored] for name, stored in names.items()}
        if network is not None:
            return _load_into(network, opened, names, entries).to(device).eval()
        if artefact.architecture is None:
            raise ArtefactError(
                f"{path} holds the weights only ({shorten(artefact.note)}); give load an instance of the network's "
                "class: load(path, network=YourNetwork(...))"
            )
        built = build(artefact.architecture, entries)
        _check_ties(built, artefact.tied)
        _fill(built, opened, torch.device(device))
        return built.eval()


def read(path: str | os.PathLike[str]) -> Artefact:
    """What the file `path` holds, its checksum verified, without making its tensors."""
    path = Path(path)
    with open_file(path) as file:
        return _open(file, path).artefact


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Integers]:
    """The bits of the tensors in the file `path`, tied ones once; rounded values in the dtype they were rounded to."""
    path = Path(path)
    with open_file(path) as file:
        opened = _open(file, path)
        values = {name: one.values for name, one in opened.entries.items()}
        return {name: as_integers(one.to(values[name] or one.dtype)) for name, one in read_tensors(opened)}


def read_tensors(opened: _Opened) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the file with its name, one after the other."""
    if opened.packed is not None:
        yield from unpack_tensors(opened.packed, opened.header.path)
        return
    for name, entry in opened.header.entries.items():
        yield name, read_tensor(opened.file, entry, name, opened.header.path)


def _open(file: BinaryIO, path: Path) -> _Opened:
    header = read_header(file, path)
    packed = read_content(file, header) if header.metadata["version"] == CLUSTERS else None
    description, entries = (
        (packed.description, packed.entries) if packed is not None else (header.metadata, header.entries)
    )
    return _Opened(file, header, packed, _interpret(description, entries, header))


def _check_storage(storage: str, values: str | None) -> None:
    if storage not in STORAGES:
        raise ArtefactError(f"storage must be one of {', '.join(STORAGES)}, got {shorten(storage)}")
    if values is not None and values not in ROUNDED:
        raise ArtefactError(f"values must be None or one of {', '.join(ROUNDED)}, got {shorten(values)}")
    if values is not None and storage == "dense":
        raise ArtefactError(f"dense storage keeps the weights as they are; for {values} use storage='clusters'")


def _packed(
    description: Mapping[str, str], tensors: Mapping[str, Tensor], storage: Storage, values: str | None
) -> Tensor | None:
    """The packed network, or None where the tensors are to be dense."""
    if storage == "dense":
        return None
    free_to_choose = storage == "auto" and values is None
    if free_to_choose and share_of_zeros(tensors) < ZEROS:
        return None
    try:
        return pack_network(description, tensors, values)
    except TooSparseError:
        if free_to_choose:
            return None
        raise


def _inputs(network: nn.Module, example_shape: Sequence[Any] | None) -> int:
    """How many inputs a network has: what its forward demands, or more where there are more example shapes."""
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature(network.forward).parameters.values()
    required = sum(one.kind in positional and one.default is Parameter.empty for one in parameters)
    shapes = sum(isinstance(one, Sequence) for one in example_shape or ())
    return max(required, shapes, 1)


def _without_ties(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors without those that are the same as an earlier one, and the names of these."""
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        first = seen.setdefault(_identity(tensor), name)
        if first == name:
            stored[name] = tensor
        else:
            tied[name] = first
    return stored, tied


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """What two tensors have in common that are one and the same, or the same view of the same memory."""
    kind = (isinstance(tensor, nn.Parameter), tensor.requires_grad)
    if tensor.layout != torch.strided or not tensor.numel() or tensor.device.type == "meta":
        return (*kind, id(tensor))
    view = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_neg())
    return (*kind, tensor.device, tensor.data_ptr(), *view)


def _architecture_text(described: Described) -> str:
    text = json.dumps(described.architecture, separators=(",", ":"), allow_nan=False)
    parse_json(text, "the architecture", MOST_ITEMS)
    return text


def _entries_to_be(described: Described) -> dict[str, Entry]:
    return {name: Entry(one.dtype, tuple(one.shape), 0, one.nbytes) for name, one in described.tensors.items()}


def _check_no_extra_state(network: nn.Module) -> None:
    for name, module in network.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ArtefactError(
                f"{name or type(network).__name__} has extra state (get_extra_state), which an artefact cannot hold; "
                "make it a buffer"
            )


def _json(content: Mapping[str, Any] | None, path: Path, *, exact: bool) -> str:
    try:
        return "null" if content is None else to_json(dict(content), path, exact=exact)
    except RunError as error:
        raise ArtefactError(str(error)) from error


def _json_list(content: Sequence[Any] | None, what: str) -> str:
    try:
        return json.dumps(None if content is None else list(content), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArtefactError(f"{what} cannot be stored: {error}; use plain numbers, texts and lists") from error


def _interpret(description: Mapping[str, str], entries: Mapping[str, Entry], header: Header) -> Artefact:
    """The texts of the description, parsed; the architecture is checked when the network is built."""

    def parse(key: str, kind: type, optional: bool = True) -> Any:
        most = MOST_ITEMS if key == "architecture" else container.MOST_ITEMS
        content = parse_json(description[key], f"{key} in {header.path}", most)
        if not (isinstance(content, kind) or (optional and content is None)):
            raise ArtefactError(f"{key} in {header.path} is {shorten(content)}; it must be a {kind.__name__}")
        return content

    classes = parse("classes", list)
    written_by = parse("versions", dict, optional=False)
    for what, texts in (("classes", classes or []), ("versions", written_by.values())):
        if not all(isinstance(one, str) for one in texts):
            raise ArtefactError(f"{what} in {header.path} must be texts")
    return Artefact(
        path=header.path,
        architecture=parse("architecture", dict),
        note=description["note"],
        config=parse("config", dict),
        metrics=parse("metrics", dict),
        classes=classes,
        example_shape=parse("example_shape", list),
        versions=written_by,
        tensors={name: _tensor_info(one) for name, one in entries.items()},
        tied=_checked_ties(parse("tied", dict, optional=False), entries),
        size=header.file_size,
        storage="clusters" if header.metadata["version"] == CLUSTERS else "dense",
    )


def _tensor_info(entry: Entry) -> TensorInfo:
    return TensorInfo(entry.shape, DTYPE_NAMES[entry.dtype], DTYPE_NAMES[entry.values] if entry.values else None)


def _checked_ties(tied: dict[str, Any], entries: Mapping[str, Entry]) -> dict[str, str]:
    for name, stored in tied.items():
        check_path(name, "a tied tensor")
        if name in entries or not isinstance(stored, str) or stored not in entries:
            raise ArtefactError(f"{name} is tied to {shorten(stored)}; it must be tied to a tensor in the file")
    return tied


def _check_ties(network: nn.Module, tied: Mapping[str, str]) -> None:
    tensors = tensors_of(network)
    for name, stored in tied.items():
        one, other = tensors[name], tensors[stored]
        if (type(one), one.requires_grad) != (type(other), other.requires_grad):
            raise ArtefactError(f"{name} is tied to {stored}, but they are not both parameters, or both frozen")


def _fill(network: fx.GraphModule, opened: _Opened, device: torch.device) -> None:
    """Put the tensors of the file into the places of those on the meta device."""
    artefact = opened.artefact
    assert artefact.architecture is not None
    layouts = artefact.architecture["layouts"]
    places = tensors_of(network)
    aliases: dict[str, list[str]] = {name: [name] for name in opened.entries}
    for name, stored in artefact.tied.items():
        aliases[stored].append(name)
    for stored, tensor in read_tensors(opened):
        if stored in layouts:
            tensor = torch.empty_permuted(tensor.shape, layouts[stored], dtype=tensor.dtype).copy_(tensor)
        tensor = tensor.to(device)
        if isinstance(places[stored], nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=places[stored].requires_grad)
        for path in aliases[stored]:
            owner, _, name = path.rpartition(".")
            setattr(network.get_submodule(owner), name, tensor)


def _load_into(
    network: nn.Module, opened: _Opened, names: Mapping[str, str], entries: Mapping[str, Entry]
) -> nn.Module:
    """Copy the tensors of the file into the user's network."""
    artefact = opened.artefact
    tensors = tensors_of(network)
    needed = set(network.state_dict(keep_vars=True)) & tensors.keys()
    if missing := sorted(needed - names.keys()):
        raise ArtefactError(
            f"{artefact.path} lacks the tensors {shorten(missing)} of the network; is it the same class?"
        )
    attributes = (artefact.architecture or {}).get("attributes")
    passing = (
        {name for name, kind in attributes.items() if kind == "temporary"} if isinstance(attributes, dict) else set()
    )
    if surplus := sorted(names.keys() - tensors.keys() - passing):
        raise ArtefactError(f"{artefact.path} has the tensors {shorten(surplus)}, which the network has not")
    shared = [name for name in tensors if name in names]
    sources: dict[int, str] = {}
    for name in shared:
        check_entry(name, tensors[name], entries[name], exact=True)
        if tensors[name].device.type == "meta":
            raise ArtefactError(f"{name} of the network is on the meta device; call to_empty(device=...) first")
        first = sources.setdefault(id(tensors[name]), name)
        if names[first] != names[name]:
            raise ArtefactError(f"{name} and {first} are one tensor in the network, but two in {artefact.path}")
    with torch.no_grad():
        for stored, tensor in read_tensors(opened):
            for name in shared:
                if names[name] == stored:
                    tensors[name].copy_(tensor)
    return network
