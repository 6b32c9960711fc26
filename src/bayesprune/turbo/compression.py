"""`compress`: one verb from a network and data to a compressed network and its figures."""

import contextlib
import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.data import DataSet
from bayesprune.likelihoods import Classification, Likelihood
from bayesprune.provenance import hardware, versions
from bayesprune.structure import macs, trace, widths
from bayesprune.surgery import ProofError, operate, prove
from bayesprune.surgery.proof import largest_difference, outputs
from bayesprune.turbo.channels import channels_last
from bayesprune.turbo.compressor import Size
from bayesprune.turbo.loop import Loop, Recorder, Silent
from bayesprune.turbo.parallel import World
from bayesprune.turbo.settings import Settings
from bayesprune.turbo.training import evaluate

CONVERGED = 1e-2  # mean change of v_{h->s} in the last outer iteration below which the turbo loop has settled
# Examples of the validation split, and as many random ones, on which the smaller network is compared with the masked
# one; fewer where a network has many multiply-accumulates, so that the processor is done in seconds.
PROOF_EXAMPLES, PROOF_EXAMPLES_LEAST, PROOF_MACS = 256, 4, 3 * 10**9
FLOAT32_TOLERANCE = 1e-5
FIGURES = ("accuracy", "accuracy_unpruned", "r2", "r2_unpruned", "nonzero_fraction", "macs_removed")  # of a repr


@dataclass
class Compression:
    """A compressed network.

    network: the model that was given, its dead weights zero.  shrunk: a smaller network that computes the same, in eval
    mode on the same device; `summary["proof"]` says how equal the two are.
    masks, active, expected_precision: the posterior by layer name, s* (bool), q(s=1) and E[rho] of every weight, all in
    the weight's shape.  history: a row per epoch.  summary: the figures.
    """

    network: nn.Module
    shrunk: nn.Module
    masks: dict[str, Tensor]
    active: dict[str, Tensor]
    expected_precision: dict[str, Tensor]
    history: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        found = [f"{name}={self.summary[name]:.4g}" for name in FIGURES if name in self.summary]
        if "structure" in self.summary:
            found.append(f"structure={'-'.join(map(str, self.summary['structure']))}")
        device = next((mask.device for mask in self.masks.values()), "cpu")
        what = [type(self.network).__name__, f"layers={len(self.masks)}", f"epochs={len(self.history)}"]
        status = self.summary.get("status", "not summed up")
        return f"Compression({', '.join([*what, *found, f'device={device}', f'status={status!r}'])})"


def compress(
    model: nn.Module,
    data: DataSet,
    *,
    settings: Settings | None = None,
    likelihood: Likelihood | None = None,
    recorder: Recorder | None = None,
    resume: tuple[Mapping[str, Any], list[dict[str, Any]]] | None = None,
    world: World | None = None,
) -> Compression:
    """Compress a network: train (or take it as it is, with warmup_epochs=0), prune, decide, fine-tune.

    model: any nn.Module on the device of the data; it is changed in place.  data: with a validation split, which all
    decisions use; the test split is looked at once, at the very end.
    resume: the state of a checkpoint and the history up to it.  world: the processes that train together.

    Raises ProofError (of bayesprune.surgery) if the smaller network does not compute the same as the masked one.
    """
    if not isinstance(data, DataSet):
        raise TypeError(f"data must be a DataSet, got {type(data).__name__}; try DataSet.from_tensors(x, y, test=0.2)")
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood must be a Likelihood, got {type(likelihood).__name__}; "
            "for regression try GaussianRegression(LearnedNoise())"
        )
    settings = settings or Settings(max_accuracy_drop=0.5).for_examples(len(data.train))
    likelihood = likelihood or Classification(settings.label_smoothing)
    likelihood.to(data.train.x.device)
    world = world or World()
    # Several processes exchange gradients as they lie in memory, and those of other layouts slowly and with warnings.
    layout = channels_last(model, data.train.x[:2]) if world.size == 1 else contextlib.nullcontext()
    with layout:
        loop = Loop(model, data, likelihood, settings, recorder or Silent(), world)
        try:
            if resume is not None:
                loop.load(*resume)
            loop.run()
        finally:
            loop.world.unwrap(model)
    return _result(loop)


def _result(loop: Loop) -> Compression:
    assert loop.masks is not None
    prior, groups = loop.compressor.prior, loop.settings.prior().groups
    active, precision = {}, {}
    for weight, posterior in zip(prior.weights, prior.posteriors(), strict=True):
        active[weight.name] = groups.to_weights(posterior.active, weight.weight.shape)
        precision[weight.name] = groups.weight_precision(posterior.expected_precision, weight.weight.shape)
    summary = _summary(loop)
    shrunk, figures = _shrink(loop, summary["structure"])
    return Compression(loop.model, shrunk, loop.masks, active, precision, loop.history, summary | figures)


def _shrink(loop: Loop, structure: list[int]) -> tuple[nn.Module, dict[str, Any]]:
    """The smaller network and its figures; structure: the widths that the masks leave."""
    assert loop.masks is not None
    example = loop.data.train.x[:2]
    surgery = operate(loop.model, loop.masks, example)
    shrunk = surgery.network.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the surgery's notes say it
        traced = trace(shrunk, example)
    affordable = PROOF_MACS // max(1, macs(loop.compressor.structure))
    count = max(PROOF_EXAMPLES_LEAST, min(PROOF_EXAMPLES, affordable))
    figures: dict[str, Any] = {
        "parameters_shrunk": sum(p.numel() for p in shrunk.parameters()),
        "macs_shrunk": macs(traced),
        "proof": _prove(loop.model, shrunk, _batches(loop.validation.x[:count])),
    }
    if widths(traced) != structure:  # constants go, too, and some dead units stay to keep shapes valid
        figures["structure_shrunk"] = widths(traced)
    if surgery.notes:
        figures["surgery_notes"] = list(surgery.notes)
    return shrunk, figures


def _prove(masked: nn.Module, shrunk: nn.Module, batches: Sequence[Tensor]) -> dict[str, float | int]:
    """The largest differences, on the CPU: a GPU may compute with fewer digits than float32 has."""
    masked = copy.deepcopy(masked).cpu()
    try:
        return prove(masked, shrunk, batches).as_dict()
    except (RuntimeError, TypeError):  # a forward that names a dtype does not run in float64
        return _prove_as_it_is(masked.eval(), copy.deepcopy(shrunk).cpu(), batches)


def _prove_as_it_is(masked: nn.Module, shrunk: nn.Module, batches: Sequence[Tensor]) -> dict[str, float | int]:
    """The largest differences in the network's own precision."""
    absolute = relative = 0.0
    for batch in batches:
        pair = [outputs(network, (batch,), torch.float32, torch.device("cpu")) for network in (masked, shrunk)]
        found = largest_difference(*pair)
        absolute, relative = max(absolute, found[0]), max(relative, found[1])
    if relative > FLOAT32_TOLERANCE:
        raise ProofError(
            f"the networks differ by {relative:.3g} relative to the largest output, above the tolerance "
            f"{FLOAT32_TOLERANCE:g}; they do not compute the same"
        )
    return {"max_abs_32": absolute, "max_rel_32": relative, "examples": sum(map(len, batches))}


def _batches(examples: Tensor) -> list[Tensor]:
    """These examples (n, ...) and n random ones."""
    generator = torch.Generator().manual_seed(0)
    return [examples.cpu(), torch.randn(examples.shape, generator=generator)]


def _summary(loop: Loop) -> dict[str, Any]:
    """The figures of a finished compression; the only place where the test split is looked at."""
    assert loop.masks is not None
    size = loop.compressor.size(loop.masks)
    score = evaluate(loop.model, loop.likelihood, loop.data.test)
    validation = evaluate(loop.model, loop.likelihood, loop.validation)
    compressed = copy.deepcopy(loop.model.state_dict())
    loop.model.load_state_dict(loop.unpruned_weights)
    unpruned = evaluate(loop.model, loop.likelihood, loop.data.test)
    loop.model.load_state_dict(compressed)
    parameters = sum(p.numel() for p in loop.model.parameters())
    changes = [row["message_change"] for row in loop.history if "message_change" in row]
    summary: dict[str, Any] = {**score, **{f"{k}_unpruned": v for k, v in unpruned.items()}}
    if "accuracy" in score:
        summary["accuracy_drop"] = unpruned["accuracy"] - score["accuracy"]
    return summary | {
        "validation": validation,
        "validation_unpruned": loop.budget.unpruned,
        **size.figures(parameters),
        "seed": loop.settings.seed,
        "seconds": round(loop.seconds, 2),
        "converged": bool(changes) and changes[-1] < CONVERGED,
        "status": _status(loop, size),
        "notes": loop.notes,
        "versions": versions(),
        "hardware": hardware(loop.data.train.x.device),
    }


def _status(loop: Loop, size: Size) -> str:
    """`finished`, or that the network collapsed, or which budget was not met and how close the network came."""
    missed = loop.compressor.missed_targets(size)
    figure = loop.budget.figure
    score = evaluate(loop.model, loop.likelihood, loop.validation)
    if loop.guesses(score):
        cause = "pruning" if not loop.guesses(loop.budget.unpruned) else "training, before any pruning"
        return (
            f"collapsed: validation {figure} {score[figure]:.3f} is that of guessing, lost in {cause}; "
            "try weaker priors or a smaller learning rate"
        )
    lost = loop.budget.lost(score)
    if lost is not None and not loop.budget.allows(lost):
        missed.append(f"{lost:.2f} points of validation {figure} lost instead of {loop.budget.drop:g}")
    return "finished" if not missed else "budget not met: " + "; ".join(missed)
