"""Neuron-level pruning with the polarization regulariser: Zhuang et al., NeurIPS 2020."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesprune.baselines.running import Masks, Run
from bayesprune.baselines.swapping import Prunable, Swapped, Wrapper, along
from bayesprune.priors import prunable_weights
from bayesprune.structure import Structure, unit_costs

FIRST_SCALE, LARGEST_SCALE = 0.5, 1.0
BINS = 100
FALLBACK = 0.01  # threshold where the histogram has no valley near zero
LARGEST_THRESHOLD = 0.2  # what lies below a valley above it is no heap of zeros


def polarization(scales: Sequence[Tensor], t: float, factors: Tensor | None = None) -> Tensor:
    """t |g|_1 - |g - mean g|_1, eq. (2) there, over the scales (channels,) of all layers; a scalar.

    The mean is over all scales, and the gradient goes through it.  factors: of the scales' terms, all layers in a row.
    """
    joint = torch.cat(list(scales))
    terms = t * joint.abs() - (joint - joint.mean()).abs()
    return terms.sum() if factors is None else (factors * terms).sum()


def cost_factors(structure: Structure, names: Sequence[str], spread: float) -> Tensor:
    """How much stronger the scales of layers are penalised because of their MACs, all layers in a row.

    As the authors' option to weight layers by their operations: 1 for the cheapest channel, `spread` for the dearest,
    and between them straight in the logarithm.  Otherwise many cheap neurons outvote a few dear channels.
    """
    units = {layer.name: layer.out_units for layer in structure.layers}
    costs = unit_costs(structure, 1.0)
    logs = torch.cat([costs[units[name]] for name in names]).clamp_min(torch.finfo(costs.dtype).tiny).log()
    width = (logs.max() - logs.min()).clamp_min(torch.finfo(logs.dtype).tiny)
    return (spread ** ((logs - logs.min()) / width)).float()


def threshold(scales: Tensor) -> float:
    """The first valley in a histogram of scales (channels,) in [0, 1]: where the counts rise after they have fallen.

    As in the authors' code counts that stay the same are both.  0.01 where there is no valley, or where it is above
    0.2: a layer whose scales are all small is in use all the same, because what comes after it makes up for them.
    """
    counts = torch.histc(scales.detach().double().cpu(), BINS, 0.0, LARGEST_SCALE)
    changes = counts.diff()
    valleys = ((changes[:-1] <= 0) & (changes[1:] >= 0)).nonzero().flatten()
    if not len(valleys):
        return FALLBACK
    found = float(valleys[0] + 1) * LARGEST_SCALE / BINS
    return found if found <= LARGEST_THRESHOLD else FALLBACK


def live_channels(scales: Tensor) -> Tensor:
    """The channels that stay, (channels,) bool: at or above the threshold, and always the largest."""
    sizes = scales.detach().abs()
    return (sizes >= threshold(sizes)) | (sizes.argmax() == torch.arange(len(sizes), device=sizes.device))


class ScaledLayer(Wrapper):
    """A layer with a learned factor per output channel, for networks without BatchNorm."""

    def __init__(self, layer: Prunable) -> None:
        """Begin with scales of 1/2 and twice the weights: the network computes the same as before."""
        super().__init__(layer)
        self.scale = nn.Parameter(layer.weight.detach().new_full((len(layer.weight),), FIRST_SCALE))
        with torch.no_grad():
            self._multiply(1 / self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Map an input of the layer to its output, scaled by channel."""
        output: Tensor = self.layer(x)
        return output * along(self.scale, -1 if isinstance(self.layer, nn.Linear) else 1, output.ndim)

    @torch.no_grad()
    def fold(self) -> None:
        """Put the scales into weight and bias; the layer alone then computes what both did."""
        self._multiply(self.scale)

    def _multiply(self, factor: Tensor) -> None:
        self.layer.weight.mul_(along(factor, 0, self.layer.weight.ndim))
        if self.layer.bias is not None:
            self.layer.bias.mul_(factor)


def norms(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    """The BatchNorm that alone reads a layer, by the layer's name."""
    return {w.name: w.batchnorm for w in prunable_weights(model) if w.batchnorm is not None and w.name in names}


def _clamp(scales: Sequence[Tensor]) -> None:
    for scale in scales:
        scale.clamp_(0, LARGEST_SCALE)


def _trained_scales(found: dict[str, nn.Module]) -> dict[str, Tensor]:
    return {name: norm.weight for name, norm in found.items() if isinstance(norm.weight, Tensor)}


def warm_up(run: Run) -> None:
    """Train with BatchNorm scales that begin at 1/2 and stay in [0, 1], as the method wants them."""
    scales = list(_trained_scales(norms(run.model, list(run.layers))).values())
    with torch.no_grad():
        if run.settings.warmup_epochs > 0:  # otherwise the network is trained, and its scales are needed
            for scale in scales:
                scale.fill_(FIRST_SCALE)
        elif scales and max(float(scale.max()) for scale in scales) > LARGEST_SCALE:
            run.note("BatchNorm scales above 1 were cut to 1; with warmup_epochs above 0 training begins anew")
    run.warm_up(after=lambda: _clamp(scales))


def prune(run: Run) -> Masks:
    """Train under the regulariser, drop channels whose scales are in each layer's heap at zero."""
    outputs = run.structure.outputs
    hidden = [layer.name for layer in run.structure.layers if not bool(outputs[layer.out_units].all())]
    names = [name for name in run.untied if name in hidden]
    normed = norms(run.model, names)
    swapped = Swapped(run.model, [n for n in names if n not in normed], lambda _, layer: ScaledLayer(layer))
    in_copy = dict(swapped.network.named_modules())
    places = {module: name for name, module in run.model.named_modules()}
    copies = {name: in_copy[places[norm]] for name, norm in normed.items()}
    scales = _trained_scales(copies) | {name: layer.scale for name, layer in swapped.wrappers.items()}
    if not scales:
        raise ValueError(f"{type(run.model).__name__} has no hidden layer to scale; polarization cannot prune it")
    strength = torch.zeros((), device=run.device)
    factors = cost_factors(run.structure, list(scales), run.settings.macs_spread)
    in_place = [scale.detach() for scale in scales.values()]

    def on_epoch(done: float, _: float) -> None:
        strength.fill_(run.ramped_strength(done))

    def masks() -> Masks:
        found = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in run.weights().items()}
        for name, scale in scales.items():
            found[name] &= along(live_channels(scale), 0, found[name].ndim)
        return found

    run.train(
        "prune",
        run.settings.prune_epochs,
        network=swapped.network,
        penalty=lambda: strength * polarization(list(scales.values()), run.settings.polarization_t, factors),
        after=lambda: _clamp(in_place),
        on_epoch=on_epoch,
        current=masks,
    )
    result = masks()
    with torch.no_grad():
        for scale in scales.values():
            scale.mul_(live_channels(scale))
    for layer in swapped.wrappers.values():
        layer.fold()
    run.model.load_state_dict(swapped.plain().state_dict())
    return result
