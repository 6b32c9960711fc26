"""Settings for every baseline: the paper's protocol, and the best we know."""

from typing import Any, Final, Literal

from bayesprune.baselines.settings import BaselineSettings
from bayesprune.turbo.plain_settings import SettingsError

Protocol = Literal["paper", "best"]

# What a network needs whatever the method: `best` has as many epochs for all methods, warm-up included.
NETWORKS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {
        "lenet5": {"batch_size": 64, "finetune_epochs": 15},
        "alexnet-small": {"batch_size": 128, "finetune_epochs": 30},
        "vgg11": {"batch_size": 128, "finetune_epochs": 30, "augment": True},
    },
    "best": {
        "lenet5": {},
        "alexnet-small": {},
        "vgg11": {
            "warmup_epochs": 30,
            "prune_epochs": 70,
            "finetune_epochs": 45,
            "augment": True,
            "label_smoothing": 0.1,
        },
    },
}
# With momentum, because it reaches more than Adam on networks with BatchNorm and augmentation.
SGD_FOR_VGG: Final[dict[str, Any]] = {"optimiser": "sgd", "learning_rate": 0.05, "weight_decay": 5e-4}
ADAM_FOR_VGG: Final[dict[str, Any]] = {"optimiser": "adam", "learning_rate": 1e-3}
# Adam's steps have the size of the learning rate whatever the gradient, so penalties must be stronger with it
# (`STRENGTHS`); for SGD these are near the published ones.
SGD_STRENGTHS: Final[dict[str, dict[str, Any]]] = {"polarization": {"strength": 3e-4}, "l1": {"strength": 0.01}}
# Adam with steps of 0.01 leaves AlexNet-small, which has no BatchNorm, at 10 % from the first epoch on.  Under SGD
# log-variances learn variance_rate^2 times as fast as weights, which makes up for the KL over the number of examples.
SGD_FOR_VARIANCES: Final[dict[str, Any]] = {"optimiser": "sgd", "variance_rate": 30.0}
VARIATIONAL: Final = ("variational-dropout", "group-variational-dropout")
SNIP_SHARES: Final = {"lenet5": 0.0968, "alexnet-small": 0.1175, "vgg11": 0.1779}  # Table II of the paper

# The paper gives the learning rate, batch sizes and fine-tuning epochs; the rest is open.  Variances need Adam,
# whose steps do not shrink with the gradient: that of the KL is divided by the number of examples.
RECIPES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {
        "variational-dropout": {"optimiser": "adam", "prune_schedule": "linear", "variance_rate": 1.0},
        "group-variational-dropout": {"optimiser": "adam", "prune_schedule": "linear", "variance_rate": 1.0},
        "polarization": {"optimiser": "sgd", "weight_decay": 1e-4, **SGD_STRENGTHS["polarization"]},
        "snip": {"optimiser": "sgd", "finetune_epochs": 0, "prune_schedule": "cosine"},
        "magnitude": {"optimiser": "sgd", "gradual": False, "prune_epochs": 0, "score": "magnitude"},
        "l1": {"optimiser": "sgd", **SGD_STRENGTHS["l1"]},
        "group-norm": {"optimiser": "sgd"},
    },
    "best": {
        "variational-dropout": {"prune_schedule": "linear"},
        "group-variational-dropout": {},
        "polarization": {"weight_decay": 1e-4},
        "snip": {"prune_schedule": "cosine"},
        "magnitude": {},
        "l1": {},
        "group-norm": {},
    },
}


def recipe(method: str, protocol: Protocol = "best", network: str = "lenet5") -> BaselineSettings:
    """The settings of a method under a protocol; a network of your own takes those of the nearest one here."""
    if protocol not in RECIPES:
        raise SettingsError(f"unknown protocol {protocol!r}; choose one of {', '.join(RECIPES)}")
    if method not in RECIPES[protocol]:
        raise SettingsError(f"unknown baseline {method!r}; choose one of {', '.join(RECIPES[protocol])}")
    if network not in NETWORKS[protocol]:
        raise SettingsError(f"no recipe for the network {network!r}; choose one of {', '.join(NETWORKS[protocol])}")
    values: dict[str, Any] = {"learning_rate": 0.01} if protocol == "paper" else {}
    values |= NETWORKS[protocol][network] | RECIPES[protocol][method]
    if protocol == "best" and network == "vgg11":
        values |= ADAM_FOR_VGG if method in VARIATIONAL else SGD_FOR_VGG | SGD_STRENGTHS.get(method, {})
    if protocol == "paper" and network == "alexnet-small" and method in VARIATIONAL:
        values |= SGD_FOR_VARIANCES
    if method == "snip":
        values["target_nonzero"] = SNIP_SHARES[network]
        if protocol == "best":  # its network begins anew, so it gets all the epochs
            base = BaselineSettings(**values)
            total = base.warmup_epochs + base.prune_epochs + base.finetune_epochs
            values |= {"prune_epochs": total, "finetune_epochs": 0}
    return BaselineSettings(**values)
