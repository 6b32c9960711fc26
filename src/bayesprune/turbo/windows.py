"""Windows of the messages between Module A and Module B, small enough to keep of every outer iteration."""

import torch
from torch import Tensor

from bayesprune.runs.messages import WINDOW, LayerMessages, Messages
from bayesprune.turbo.network_prior import NetworkPrior


@torch.no_grad()
def message_windows(prior: NetworkPrior, iteration: int, size: int = WINDOW) -> Messages:
    """The messages of the last exchange, on the CPU: the first rows and columns of every layer, seen as weights are.

    size: the most rows and columns; files hold windows of the usual one.
    """
    layers = {}
    rows = zip(prior.weights, prior.prior_logits, prior.evidence_logits, prior.posteriors(), strict=True)
    for weight, received, sent, posterior in rows:
        shape = weight.weight.shape
        logits = [
            prior.settings.groups.to_weights(one, shape).flatten(1)[:size, :size]
            for one in (received, sent, posterior.active_logit)
        ]
        whole = (shape[0], shape[1:].numel())
        layers[weight.name] = LayerMessages(whole, *map(as_bytes, logits))
    return Messages(iteration, layers)


def as_bytes(logit: Tensor) -> Tensor:
    """The probability behind a logit as uint8, round(255 p), on the CPU; the same shape."""
    return (255 * torch.sigmoid(logit.float())).round().to("cpu", torch.uint8)
