"""Which units stay."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesprune.structure import Layer, Structure
from bayesprune.structure.operations import TRANSPOSED, Transposed, keeps_forward
from bayesprune.surgery.constants import Columns
from bayesprune.surgery.masking import is_plain
from bayesprune.surgery.windows import window

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


@dataclass(frozen=True, eq=False)
class Path:
    """A layer and what is alive in it.

    live: (groups, out / groups, in_per_group, taps) bool, the live weights.
    folds: (groups, in_per_group) bool, the columns whose contribution is a constant that can go into the bias.
    value: (groups, in_per_group) float64, the constants.
    """

    layer: Layer
    live: Tensor
    folds: Tensor
    value: Tensor


def make_path(layer: Layer, module: nn.Module, live: Tensor | None, columns: Columns | None) -> Path:
    """The path through a layer; live: of the shape of the weight, None for a weight that is not a parameter."""
    size = (layer.groups, layer.shape[0] // layer.groups, layer.shape[1])
    if live is None:
        live = torch.ones(*size, layer.kernel, dtype=torch.bool)
    elif isinstance(module, Transposed):
        live = live.reshape(layer.groups, size[2], size[1], -1).transpose(1, 2)
    else:
        live = live.reshape(*size, -1)
    if columns is None:
        nothing = torch.zeros(layer.groups, size[2])
        return Path(layer, live, nothing.bool(), nothing.double())
    known, value = (one.reshape(layer.groups, size[2]) for one in (columns.known, columns.value))
    zero = value == 0
    return Path(layer, live, known & (zero | _foldable(layer, module, live, known & ~zero)), value)


def _foldable(layer: Layer, module: nn.Module, live: Tensor, asked: Tensor) -> Tensor:
    """Those of the asked columns, (groups, in_per_group) bool, whose constant adds the same to all outputs."""
    if not is_plain(module) or not keeps_forward(module, LAYERS) or isinstance(module, Transposed):
        return torch.zeros_like(asked)
    if isinstance(module, nn.Linear):
        return asked
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    if module.padding_mode != "zeros":
        return asked
    # Zero padding differs from the constant, but a column whose live taps stay inside never sees it.
    taps = live.any(1)[asked].reshape(-1, *layer.shape[2:])
    return asked.masked_scatter(asked, torch.tensor([window(module, one).inside for one in taps], dtype=torch.bool))


def needed_units(structure: Structure, paths: list[Path]) -> Tensor:
    """The units, (unit_count,) bool, that something live reads, or that have to stay."""
    needed = ~structure.removable
    joined = [(path.layer, path.live.any(3), path.folds) for path in paths if not path.layer.per_channel]
    while True:
        before = needed.clone()
        for layer, live, folds in joined:
            rows = needed[layer.out_units].reshape(layer.groups, -1, 1)
            needed[layer.in_units[(live & rows).any(1) & ~folds]] = True
        if torch.equal(needed, before):
            return needed


def kept_units(structure: Structure, needed: Tensor, multiple: int = 1) -> Tensor:
    """The needed units and those that keep shapes valid, (unit_count,) bool.

    Nothing is left without width, the groups of a conv keep equally many channels, and widths are multiples of
    `multiple` where there are units enough.
    """
    kept = needed.clone()
    layers = (*structure.layers, *structure.transposed)
    while True:
        before = kept.clone()
        for units in _widths(structure, layers):
            _revive(kept, units, 1)
        for layer in layers:
            if layer.groups > 1 and not layer.per_channel:
                _balance(kept, layer)
            elif layer.groups == 1:
                width = int(kept[layer.out_units].sum())
                _revive(kept, layer.out_units, -(-width // multiple) * multiple)
        if torch.equal(kept, before):
            return kept


def _widths(structure: Structure, layers: tuple[Layer, ...]) -> list[Tensor]:
    """The units along every dimension that must not vanish."""
    found = [units for layer in layers for units in (layer.out_units, layer.in_units.flatten())]
    found += [*structure.norms.values(), *[slot.units for slot in structure.slots]]
    for resize in structure.resizes:
        pieces = resize.pieces[1:2] if resize.kind == "slice" else resize.pieces
        found += [piece for piece in pieces if len(piece) and bool((piece >= 0).all())]
    return found


def _balance(kept: Tensor, layer: Layer) -> None:
    """Keep equally many rows and columns in every group of which anything stays."""
    rows, columns = layer.out_units.reshape(layer.groups, -1), layer.in_units
    stays = kept[rows].any(1) | kept[columns].any(1)
    for sides in (rows, columns):
        width = max(1, int(kept[sides].sum(1).max()))
        for units in sides[stays]:
            _revive(kept, units, width)


def _revive(kept: Tensor, units: Tensor, width: int) -> None:
    """Keep more of these units until `width` of the entries stay, or all."""
    for unit in units.tolist():
        if int(kept[units].sum()) >= width:
            return
        kept[unit] = True


def without_dead(path: Path, needed: Tensor) -> Path:
    """The path without the weights into and out of units that are not needed.

    Of these a few stay in place to keep shapes valid; nothing may depend on them, because their own inputs may go.
    """
    layer = path.layer
    rows, columns = needed[layer.out_units].reshape(layer.groups, -1, 1, 1), needed[layer.in_units][:, None, :, None]
    return replace(path, live=path.live & rows & columns)


def folded(path: Path, weight: Tensor, needed: Tensor) -> Tensor:
    """What the constants of units not needed add to every row, (out,) float64.

    weight: (out, in_per_group, *kernel), still with the weights out of these units.
    """
    gone = path.folds & ~needed[path.layer.in_units]
    sums = weight.detach().cpu().double().reshape(*path.live.shape).sum(3)
    return (sums * torch.where(gone, path.value, 0).unsqueeze(1)).sum(2).flatten()
