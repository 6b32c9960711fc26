"""SNIP: Lee, Ajanthan and Torr (2019), arXiv:1810.02340."""

import torch
from torch import Tensor

from bayesprune.baselines.running import Masks, Run
from bayesprune.baselines.scoring import top
from bayesprune.data import Batches
from bayesprune.turbo.plain_settings import SettingsError


def sensitivities(run: Run) -> dict[str, Tensor]:
    """|w dL/dw| of every weight on a few batches, eq. (6) there: the slope of the loss in its connection c at c = 1."""
    parameters = [module.weight for module in run.layers.values()]
    totals = [torch.zeros_like(p) for p in parameters]
    state = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.model.train()
    batches = iter(Batches(run.data.train, min(run.settings.batch_size, run.examples), run.generator, drop_last=True))
    for _, (x, y) in zip(range(run.settings.snip_batches), batches, strict=False):
        loss = run.likelihood.negative_log_likelihood(run.model(x), y)
        for total, slope in zip(totals, torch.autograd.grad(loss, parameters), strict=True):
            total += slope
    run.model.load_state_dict(state)  # BatchNorm has counted the batches
    return {n: (p.detach() * t).abs() for n, p, t in zip(run.layers, parameters, totals, strict=True)}


def warm_up(run: Run) -> None:
    """Train a dense twin to compare with; the network itself begins anew."""
    if run.settings.distil and not run.settings.warmup_epochs:
        raise SettingsError(
            "snip prunes an untrained network, and with warmup_epochs 0 there is no trained one to learn from; "
            "set distil to 0 or give it warm-up epochs"
        )
    run.warm_up(restart=True)


def prune(run: Run) -> Masks:
    """Choose connections of the untrained network, then train what is left."""
    masks = run.decide(top(sensitivities(run), run.settings.target_nonzero))
    run.train("prune", run.settings.prune_epochs, masks=masks, current=lambda: masks)
    return masks
