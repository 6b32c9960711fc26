"""What comes in: evidence logits, checked once and turned into odds that cannot overflow."""

import torch
from torch import Tensor

# Odds are products, so the logits that enter a product of B nats of messages are clipped where e^(clip + B) is still
# finite: 60 + 27 nats in float32 (largest e^88.7), 300 + 400 in float64 (largest e^709).  A message saturates
# exponentially: at 60 nats what the clip changes is below e^-60 times the square of the strongest table ratio.
CLIP = {torch.float32: 60.0, torch.float64: 300.0}
ROOM = {torch.float32: 27.0, torch.float64: 400.0}


def checked_evidence(evidence_logit: Tensor) -> Tensor:
    """Return the evidence, any shape, as float32 or float64; raise ValueError that says where a NaN is."""
    if not isinstance(evidence_logit, Tensor):
        raise ValueError(f"evidence_logit must be a torch.Tensor, got {type(evidence_logit).__name__}")
    if not evidence_logit.is_floating_point():
        raise ValueError(
            f"evidence_logit must be floating point (log-odds), got {evidence_logit.dtype}; try evidence.float()"
        )
    evidence = evidence_logit.detach()
    if evidence.dtype not in CLIP:  # float16 and bfloat16 have no room for odds
        evidence = evidence.float()
    missing = torch.isnan(evidence)
    if missing.any():
        where = tuple(missing.nonzero()[0].tolist())
        raise ValueError(
            f"evidence_logit has {int(missing.sum())} NaN of {evidence.numel()} values, the first at index {where}; "
            "NaN evidence usually means that the weights it came from are NaN: lower the learning rate"
        )
    return evidence


def odds(logit: Tensor) -> Tensor:
    """Return exp(logit) clipped to what the products of the engine can hold, same shape and dtype."""
    clip = CLIP[logit.dtype]
    return logit.clamp(-clip, clip).exp_()
