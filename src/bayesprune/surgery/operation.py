"""From masks to a smaller network."""

import copy
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from bayesprune.structure import Structure, trace, trace_graph
from bayesprune.structure.operations import keeps_forward
from bayesprune.surgery.constants import Columns, Findings, find_constants
from bayesprune.surgery.graphs import find_dropouts, free_dropouts, insert_pads, rewrite_sizes
from bayesprune.surgery.masking import check_masks, live_weights, masked_network
from bayesprune.surgery.proof import ProofError, largest_difference, outputs
from bayesprune.surgery.resizing import NEW, Resizing, resize
from bayesprune.surgery.survivors import kept_units, make_path, needed_units
from bayesprune.surgery.windows import outer_padding

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, eq=False)
class Surgery:
    """A smaller network and where it came from.

    network: an fx.GraphModule, or a copy of the masked network where it cannot be traced.
    kept: for every parameter of the new network, a tensor of its shape: the flat index of each entry in the parameter
    of the same name of the old network, -1 for entries that are new (a bias for folded constants).
    removed_units: how many neurons, channels and heads are gone; what can only go together counts once.
    notes: what stayed dense, and why.
    """

    network: nn.Module
    kept: Mapping[str, Tensor]
    removed_units: int
    notes: tuple[str, ...]


def shrink(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Tensor | tuple[Tensor, ...],
    *,
    crop: bool = True,
    multiple: int = 1,
) -> nn.Module:
    """The network of `operate`; one warning lists what stayed dense and why."""
    surgery = operate(model, masks, example, crop=crop, multiple=multiple)
    if surgery.notes:
        warnings.warn("parts of the network stay as they are: " + "; ".join(surgery.notes), stacklevel=2)
    return surgery.network


def operate(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Tensor | tuple[Tensor, ...],
    *,
    crop: bool = True,
    multiple: int = 1,
) -> Surgery:
    """Remove what the masks leave without effect: units, constants (into biases) and borders of kernels.

    masks: 0 and 1, or bool, of the shape of the weight per Linear, Conv or ConvTranspose; a layer that is not there is
    fully live.  example: the network's input, or a tuple of its inputs, batch first; the result takes any batch size
    that the network takes, with examples of this shape.  crop: cut kernels to their live taps.  multiple: keep dead
    units until widths are multiples of this, where there are enough.

    In eval mode the result equals `masked_network(model, masks)` up to rounding, which is checked on random inputs
    before it is returned.  The model stays as it is; the result is in its mode, and takes over no hooks.
    """
    check_masks(model, masks)
    if multiple < 1:
        raise ValueError(f"multiple must be at least 1, got {multiple}; 1 keeps no dead units, 8 suits GPUs")
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    work = masked_network(model, masks)
    notes = _plain_copy(work)
    modes = {name: module.training for name, module in work.named_modules()}
    work.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        structure = trace(work, inputs).to("cpu")
    notes.extend(structure.notes)
    device = next((one.device for one in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    inputs = tuple(one.to(device) for one in inputs)
    try:
        graph, train_graph = _graphs(work, len(inputs))
    except Exception:  # the tracer runs the user's forward, which may raise anything; the structure has a note
        return _unchanged(model, masks, notes)
    if any(f"{type(work).__name__}: cannot be traced" in note for note in structure.notes):
        return _unchanged(model, masks, notes)
    reference = copy.deepcopy(work)
    live = live_weights(model, masks)
    found = _findings(work, graph, live, inputs)
    dropouts, differences = find_dropouts(graph, train_graph)
    notes.extend(differences)
    try:
        kept, plan = _resized(work, structure, found.columns, live, crop, multiple)
        rewrite_sizes(work, graph, structure, kept, found.dims)
        insert_pads(graph, plan.pads)
        free_dropouts(work, graph, dropouts)
        graph.lint()
        network = fx.GraphModule(work, graph, type(model).__name__)
        _hide_buffers(network, model)
        _check(reference, network, inputs)
    except (ProofError, RuntimeError, ValueError, TypeError, LookupError) as error:
        reason = (str(error).splitlines() or [""])[0]
        note = f"{type(model).__name__}: its sizes do not follow its units ({type(error).__name__}: {reason})"
        return _unchanged(model, masks, [*notes, f"{note}; all units stay dense"])
    for name, module in network.named_modules():
        module.training = modes.get(name, model.training)
    return Surgery(network, _kept(model, network, plan), int((~kept).sum()), tuple(dict.fromkeys(notes)))


def _plain_copy(network: nn.Module) -> list[str]:
    """Take gradients and hooks from a copy; those of torch itself, which compute weights, stay.  Returns notes."""
    notes = []
    for parameter in network.parameters():
        parameter.grad = None
    for name, module in network.named_modules():
        for kind in HOOKS:
            hooks: OrderedDict[int, object] = getattr(module, kind)
            foreign = [key for key, hook in hooks.items() if not type(hook).__module__.startswith("torch.")]
            for key in foreign:
                del hooks[key]
            if foreign and kind.startswith("_forward"):
                notes.append(f"{name or type(network).__name__}: its hooks are not taken over")
    return notes


def _graphs(work: nn.Module, count: int) -> tuple[fx.Graph, fx.Graph]:
    """The graphs of eval and training mode; tracing runs `forward`, so it may change buffers."""
    before = copy.deepcopy(work.state_dict())
    # Copied before the first trace puts constants on the network, so that both give them the same names.
    twin = copy.deepcopy(work).train()
    graph = trace_graph(work, count)
    try:
        training = trace_graph(twin, count)
    except Exception:  # as above; what cannot be traced in training mode differs from eval mode
        training = fx.Graph()
    work.load_state_dict(before)
    return graph, training


def _findings(work: nn.Module, graph: fx.Graph, live: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Findings:
    """What the layers get, found in float64 if the network can."""
    for dtype in (torch.float64, _dtype(work)):
        try:
            return find_constants(copy.deepcopy(work).to(dtype), graph, live, inputs, dtype)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            continue  # a forward that names a dtype, or does not like NaN
    return Findings()


def _dtype(network: nn.Module) -> torch.dtype:
    return next((one.dtype for one in network.parameters() if one.is_floating_point()), torch.float32)


def _hide_buffers(network: nn.Module, model: nn.Module) -> None:
    """Keep constants of the graph and temporary buffers, which torch.fx registers, out of the state dict."""
    known = model.state_dict().keys()
    for name, _ in list(network.named_buffers(remove_duplicate=False)):
        if name not in known:
            owner, _, tensor = name.rpartition(".")
            network.get_submodule(owner)._non_persistent_buffers_set.add(tensor)


def _resized(
    work: nn.Module,
    structure: Structure,
    columns: Mapping[str, Columns],
    live: Mapping[str, Tensor],
    crop: bool,
    multiple: int,
) -> tuple[Tensor, Resizing]:
    """Choose the units, (unit_count,) bool, and resize the modules of `work`."""
    paths = {}
    for layer in (*structure.layers, *structure.transposed):
        module = work.get_submodule(layer.name)
        paths[layer.name] = make_path(layer, module, live.get(layer.name), columns.get(layer.name))
    needed = needed_units(structure, list(paths.values()))
    kept = kept_units(structure, needed, multiple)
    croppable = {
        name: one.size for name, one in columns.items() if crop and _is_croppable(work, work.get_submodule(name))
    }
    return kept, resize(work, structure, paths, needed, kept, croppable)


def _is_croppable(work: nn.Module, module: nn.Module) -> bool:
    if not isinstance(module, CONVS) or not keeps_forward(module, CONVS) or "weight" not in module._parameters:
        return False
    owners = [one for one in work.modules() if any(own is module.weight for own in one._parameters.values())]
    padded = any(map(any, outer_padding(module)))
    return len(owners) == 1 and (module.padding_mode == "zeros" or not padded)


def _check(reference: nn.Module, network: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise ProofError unless both give the same on random inputs, in float64 if the network can."""
    generator = torch.Generator().manual_seed(0)
    drawn = tuple(
        torch.randn(one.shape, generator=generator, dtype=torch.float64) if one.is_floating_point() else one
        for one in inputs
    )
    device = inputs[0].device
    for dtype, tolerance, given in (
        (torch.float64, 1e-6, drawn),
        (torch.float64, 1e-6, inputs),
        (_dtype(reference), 1e-3, inputs),
    ):
        old, new = (copy.deepcopy(one).to(dtype).eval() for one in (reference, network))
        try:
            expected = outputs(old, given, dtype, device)
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # a forward that names a dtype, or takes numbers for indices
        _, relative = largest_difference(expected, outputs(new, given, dtype, device))
        if relative > tolerance:
            raise ProofError(f"the result differs by {relative:.3g}, above {tolerance:.3g}")
        return


def _kept(model: nn.Module, network: nn.Module, plan: Resizing) -> dict[str, Tensor]:
    old = dict(model.named_parameters(remove_duplicate=False))
    result = {}
    for name, parameter in network.named_parameters():
        module, _, tensor = name.rpartition(".")
        everything = torch.arange(parameter.numel()).reshape(parameter.shape)
        unchanged = everything if name in old else torch.full_like(everything, NEW)
        result[name] = plan.indices.get((module, tensor), unchanged)
    return result


def _unchanged(model: nn.Module, masks: Mapping[str, Tensor], notes: list[str]) -> Surgery:
    """The masked network itself."""
    network = masked_network(model, masks)
    kept = {name: torch.arange(one.numel()).reshape(one.shape) for name, one in network.named_parameters()}
    return Surgery(network, kept, 0, tuple(dict.fromkeys(notes)))
