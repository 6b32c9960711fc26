"""What a baseline gives back: the network, a smaller one that computes the same, and the figures."""

import copy
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.baselines.running import Masks, Run
from bayesprune.provenance import hardware, versions
from bayesprune.structure import macs, trace
from bayesprune.surgery import operate, prove
from bayesprune.turbo.compressor import Size, size_of
from bayesprune.turbo.training import evaluate

PROOF_EXAMPLES = 32  # of the validation split, and as many random ones


@dataclass
class Baseline:
    """A network that a baseline has pruned; the fields are those of `turbo.Compression`.

    network: the model that was given, its dead weights zero.  shrunk: a smaller network that computes the same, in eval
    mode.  masks: live weights by layer name, bool of the weight's shape, closed over dead units.  history: a row per
    epoch.  summary: the figures.
    """

    network: nn.Module
    shrunk: nn.Module
    masks: dict[str, Tensor]
    history: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)


def result_of(run: Run, masks: Masks) -> Baseline:
    """Sum up a finished run; the only place where the test split is looked at."""
    shrunk, figures = _shrink(run, masks)
    return Baseline(run.model, shrunk, masks, run.history, _summary(run, size_of(run.structure, masks)) | figures)


def _summary(run: Run, size: Size) -> dict[str, Any]:
    score = evaluate(run.model, run.likelihood, run.data.test)
    pruned = copy.deepcopy(run.model.state_dict())
    run.model.load_state_dict(run.unpruned_weights)
    unpruned = evaluate(run.model, run.likelihood, run.data.test)
    run.model.load_state_dict(pruned)
    parameters = sum(p.numel() for p in run.model.parameters())
    summary: dict[str, Any] = {"method": run.method, **score, **{f"{k}_unpruned": v for k, v in unpruned.items()}}
    if "accuracy" in score:
        summary["accuracy_drop"] = unpruned["accuracy"] - score["accuracy"]
    return summary | {
        "validation": evaluate(run.model, run.likelihood, run.validation),
        "validation_unpruned": run.unpruned,
        **size.figures(parameters),
        "seed": run.settings.seed,
        "seconds": round(run.seconds, 2),
        "status": _status(run, size),
        "notes": run.notes,
        "versions": versions(),
        "hardware": hardware(run.device),
    }


def _status(run: Run, size: Size) -> str:
    """`finished`, or how close group-norm came to a target that was out of reach."""
    target = run.settings.target_macs
    if run.method == "group-norm" and size.macs_fraction > target:
        return f"budget not met: MACs {size.macs_fraction:.3f} of the dense network's instead of {target:g}"
    return "finished"


def _shrink(run: Run, masks: Masks) -> tuple[nn.Module, dict[str, Any]]:
    """The smaller network, and proof on the CPU that it computes the same: a GPU may have fewer digits than float32."""
    example = run.data.train.x[:2]
    surgery = operate(run.model, masks, example)
    shrunk = surgery.network.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the surgery's notes say it
        traced = trace(shrunk, example)
    seen = run.validation.x[:PROOF_EXAMPLES].cpu()
    noise = torch.randn(seen.shape, generator=torch.Generator().manual_seed(0))
    figures: dict[str, Any] = {
        "parameters_shrunk": sum(p.numel() for p in shrunk.parameters()),
        "macs_shrunk": macs(traced),
        "proof": prove(copy.deepcopy(run.model).cpu(), shrunk, [seen, noise]).as_dict(),
    }
    if surgery.notes:
        figures["surgery_notes"] = list(surgery.notes)
    return shrunk, figures
