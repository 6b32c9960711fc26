"""`run`: any baseline by name, from a network and data to a pruned network and its figures."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from bayesprune.baselines import (
    group_norm,
    group_variational_dropout,
    l1,
    magnitude,
    polarization,
    snip,
    variational_dropout,
)
from bayesprune.baselines.recipes import recipe
from bayesprune.baselines.results import Baseline, result_of
from bayesprune.baselines.running import Masks, Run
from bayesprune.baselines.settings import BaselineSettings
from bayesprune.data import DataSet
from bayesprune.likelihoods import Classification, Likelihood
from bayesprune.turbo.channels import channels_last
from bayesprune.turbo.loop import Recorder


@dataclass(frozen=True)
class Method:
    """prune: from the trained model to masks; it leaves the weights to deploy.  warm_up: the training before it.

    revision: one more whenever the method prunes differently than before, so that older results are known as such.
    """

    prune: Callable[[Run], Masks]
    warm_up: Callable[[Run], None] = Run.warm_up
    revision: int = 1


DENSE = "unpruned"
METHODS: dict[str, Method] = {
    "variational-dropout": Method(variational_dropout.prune),
    "group-variational-dropout": Method(group_variational_dropout.prune),
    "polarization": Method(polarization.prune, polarization.warm_up, revision=2),
    "snip": Method(snip.prune, snip.warm_up),
    "magnitude": Method(magnitude.prune),
    "l1": Method(l1.prune),
    "group-norm": Method(group_norm.prune, revision=2),
}


def run(
    name: str,
    model: nn.Module,
    data: DataSet,
    *,
    settings: BaselineSettings | None = None,
    likelihood: Likelihood | None = None,
    recorder: Recorder | None = None,
) -> Baseline:
    """Train (or take the network as it is, with warmup_epochs=0), prune by the method `name`, fine-tune.

    model: any nn.Module on the device of the data; it is changed in place.  data: with a validation split; the test
    split is looked at once, at the very end.  settings: None for the best recipe, with epochs enough for the data.
    The recorder gets rows, steps and notes.  There are no checkpoints: where it asks to stop, `Interrupted` is raised
    and the run is lost.
    """
    if name not in METHODS:
        raise ValueError(f"unknown baseline {name!r}; choose one of {', '.join(METHODS)}")
    return _run(name, METHODS[name], model, data, settings, likelihood, recorder)


def train_dense(
    model: nn.Module,
    data: DataSet,
    *,
    settings: BaselineSettings,
    likelihood: Likelihood | None = None,
    recorder: Recorder | None = None,
) -> Baseline:
    """Train for the warm-up epochs and prune nothing: the network that all others are compared with; see `run`."""
    return _run(DENSE, Method(_keep_all), model, data, settings, likelihood, recorder)


def _keep_all(run: Run) -> Masks:
    return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in run.weights().items()}


def _run(
    name: str,
    method: Method,
    model: nn.Module,
    data: DataSet,
    settings: BaselineSettings | None,
    likelihood: Likelihood | None,
    recorder: Recorder | None,
) -> Baseline:
    settings = settings or recipe(name).for_examples(len(data.train))
    likelihood = likelihood or Classification(settings.label_smoothing)
    device = data.train.x.device
    likelihood.to(device)
    randomness = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with randomness, channels_last(model, data.train.x[:2]):
        torch.manual_seed(settings.seed)
        state = Run(name, model, data, likelihood, settings, recorder)
        method.warm_up(state)
        masks = state.decide(method.prune(state))
        state.train("finetune", settings.finetune_epochs, masks=masks, current=lambda: masks)
    return result_of(state, masks)
