"""Settings for every baseline: the paper's protocol, and the best we know."""

from typing import Any, Final, Literal

from bayesprune.baselines.settings import BaselineSettings
from bayesprune.turbo.plain_settings import SettingsError

Protocol = Literal["paper", "best"]
Values = dict[str, Any]

# What a network needs whatever the method: `best` has as many epochs for all methods, warm-up included.  VGG-11 has SGD
# there, with momentum, because it reaches more than Adam on networks with BatchNorm and augmentation.
VGG: Final[Values] = {"augment": True, "label_smoothing": 0.1, "bfloat16": True}
NETWORKS: Final[dict[str, dict[str, Values]]] = {
    "paper": {
        "lenet5": {"batch_size": 64, "finetune_epochs": 15},
        "alexnet-small": {"batch_size": 128, "finetune_epochs": 30},
        "vgg11": VGG | {"batch_size": 128, "finetune_epochs": 30},
    },
    "best": {
        "lenet5": {},
        "alexnet-small": {},
        "vgg11": VGG
        | {"warmup_epochs": 30, "prune_epochs": 70, "finetune_epochs": 45}
        | {"optimiser": "sgd", "learning_rate": 0.05, "weight_decay": 5e-4},
    },
}

# What a method needs whatever the network; `unpruned` is training alone.  The paper gives the learning rate, batch
# sizes and fine-tuning epochs; the rest is open.  Under `best`: from short trials on validation data; strengths that
# failed in full runs were changed with those in view.
RECIPES: Final[dict[str, dict[str, Values]]] = {
    "paper": {
        "unpruned": {"optimiser": "sgd", "weight_decay": 5e-4},
        "variational-dropout": {"optimiser": "sgd", "prune_schedule": "linear"},
        "group-variational-dropout": {"optimiser": "sgd", "prune_schedule": "linear", "element_sparsity": True},
        "polarization": {"optimiser": "sgd", "weight_decay": 1e-4},
        "snip": {
            "optimiser": "sgd",
            "finetune_epochs": 0,
            "prune_schedule": "cosine",
            "weight_decay": 5e-4,
            "snip_batches": 20,
        },
        "magnitude": {"optimiser": "sgd", "weight_decay": 5e-4},
        "l1": {"optimiser": "sgd"},
        "group-norm": {"optimiser": "sgd", "weight_decay": 5e-4, "pruning_steps": 10},
    },
    "best": {
        "unpruned": {},
        "variational-dropout": {"prune_schedule": "linear"},
        # Weights go as well as units: the paper's nonzeros imply it.
        "group-variational-dropout": {"element_sparsity": True},
        "polarization": {"weight_decay": 1e-4},
        "snip": {"prune_schedule": "cosine", "weight_decay": 3e-4, "snip_batches": 20},
        "magnitude": {},
        "l1": {},
        "group-norm": {"weight_decay": 3e-4, "pruning_steps": 10},
    },
}

# Variances need Adam, whose steps do not shrink with the gradient: that of the KL is divided by the number of examples.
# Only while they learn, because Adam without decay leaves VGG-11 3 points below SGD.
ADAM_WHILE_PRUNING: Final[Values] = {"prune_optimiser": "adam", "prune_learning_rate": 1e-3}
# Variational methods still get sparser when accuracy has settled: most epochs are for pruning.
LONG_PRUNING: Final[Values] = {"warmup_epochs": 10, "prune_epochs": 60, "finetune_epochs": 10}
# Otherwise many cheap neurons have all of polarization's penalty, the few channels that cost MACs nothing of it.
CHANNELS_FIRST: Final[Values] = {"polarization_t": 1.4, "macs_spread": 20.0}
# With Adam many weights end near zero but not at it; a threshold takes them at no cost before fine-tuning.
NEAR_ZERO: Final[Values] = {"normalise": False, "l1_threshold": 0.04}
# Without BatchNorm and augmentation, where a network trains for all the epochs and nothing regularises it.
PLAIN_SGD: Final[Values] = {"optimiser": "sgd", "learning_rate": 0.02, "weight_decay": 5e-4}
# The KL weight, and the log alpha above which single weights die.  LeNet-5 and AlexNet-small bear a KL above that of
# the bound.  On VGG-11 the KL of so many weights is far above the data term: of 1 and .1; of 1, .03 and .0075, where
# .03 comes nearest to the paper's row.  Both lose more than 2 points of validation accuracy (2.4 and 4.6).
KL: Final[dict[str, dict[str, Values]]] = {
    "variational-dropout": {
        "lenet5": {"strength": 3.0},
        "alexnet-small": {"strength": 3.0},
        "vgg11": {"strength": 0.1} | ADAM_WHILE_PRUNING,
    },
    "group-variational-dropout": {
        "lenet5": {"strength": 5.0, "log_alpha_threshold": 0.0},
        "alexnet-small": {"strength": 2.0, "log_alpha_threshold": 0.0},
        "vgg11": {"strength": 0.03} | ADAM_WHILE_PRUNING,
    },
}

# What a method needs on a network.
# - Penalties: of two to five, each run in full with one seed under `best`, the strongest one that loses at most 2
#   points of validation accuracy.
# - Under the paper's protocol Adam with steps of 0.01 leaves AlexNet-small, which has no BatchNorm, at 10 % from the
#   first epoch on, and variational dropout on LeNet-5 at 10 % in the end.  Under SGD log-variances learn
#   variance_rate^2 times as fast as weights, which makes up for the KL over the number of examples.  Groups do not bear
#   that: at 20 (LeNet-5) and 40 (AlexNet-small) they became NaN, so they prune with Adam (docs/log.md).
# - Scales that have just gone into the weights of a network without BatchNorm make the same learning rate another one:
#   at half of .01 fine-tuning with SGD costs LeNet-5's groups 10 points.  Of .1 and .03 by validation accuracy.
#   AlexNet-small's polarization ends at 10 % with .1, and gains with .002.
# - Decay and learning rate under Adam, or SGD: by validation accuracy of seed 0 (docs/log.md).
# - largest_cut of group-norm: of .7 and 1 by validation accuracy, three seeds; one on VGG-11, where they are level
#   under `best`, and on AlexNet-small under the paper's protocol.
ON: Final[dict[str, dict[str, dict[str, Values]]]] = {
    "paper": {
        "variational-dropout": {
            "lenet5": {"variance_rate": 20.0},
            "alexnet-small": {"variance_rate": 60.0},
        },
        "group-variational-dropout": {
            "lenet5": ADAM_WHILE_PRUNING | {"finetune_rate": 0.1},
            "alexnet-small": ADAM_WHILE_PRUNING | {"finetune_rate": 0.03},
        },
        "polarization": {
            "lenet5": CHANNELS_FIRST
            | ADAM_WHILE_PRUNING
            | {"strength": 0.012, "weight_decay": 1e-3, "finetune_rate": 0.1},
            "alexnet-small": CHANNELS_FIRST
            | ADAM_WHILE_PRUNING
            | {"strength": 0.007, "weight_decay": 1e-3, "finetune_rate": 0.002},
            "vgg11": {"strength": 1e-3},
        },
        "l1": {
            "lenet5": {"strength": 0.2},
            "alexnet-small": {"strength": 0.2},
            "vgg11": {"strength": 0.1},
        },
        "group-norm": {"vgg11": {"largest_cut": 0.7}},
    },
    "best": {
        "unpruned": {"lenet5": {"weight_decay": 1e-3}, "alexnet-small": PLAIN_SGD},
        "variational-dropout": {"lenet5": LONG_PRUNING, "alexnet-small": LONG_PRUNING},
        "group-variational-dropout": {"lenet5": LONG_PRUNING, "alexnet-small": LONG_PRUNING},
        "polarization": {
            "lenet5": CHANNELS_FIRST | {"strength": 0.016, "weight_decay": 1e-3},
            "alexnet-small": CHANNELS_FIRST | {"strength": 0.01, "weight_decay": 1e-3},
            "vgg11": {"strength": 1e-3, "weight_decay": 5e-4},
        },
        "snip": {"alexnet-small": PLAIN_SGD, "vgg11": {"weight_decay": 5e-4}},
        "magnitude": {
            "lenet5": {"weight_decay": 1e-3, "learning_rate": 6e-3},
            "alexnet-small": {"weight_decay": 1e-3, "learning_rate": 6e-3},
        },
        "l1": {
            "lenet5": NEAR_ZERO | {"strength": 0.1},
            "alexnet-small": NEAR_ZERO | {"strength": 0.06},
            "vgg11": {"strength": 0.02},
        },
        "group-norm": {
            "lenet5": {"weight_decay": 1e-3, "largest_cut": 0.7},
            "alexnet-small": {"weight_decay": 1e-3, "learning_rate": 6e-3},
            "vgg11": {"weight_decay": 5e-4},
        },
    },
}
SNIP_SHARES: Final = {"lenet5": 0.0968, "alexnet-small": 0.1175, "vgg11": 0.1779}  # Table II of the paper


def recipe(method: str, protocol: Protocol = "best", network: str = "lenet5") -> BaselineSettings:
    """The settings of a method under a protocol; a network of your own takes those of the nearest one here."""
    if protocol not in RECIPES:
        raise SettingsError(f"unknown protocol {protocol!r}; choose one of {', '.join(RECIPES)}")
    if method not in RECIPES[protocol]:
        raise SettingsError(f"unknown baseline {method!r}; choose one of {', '.join(RECIPES[protocol])}")
    if network not in NETWORKS[protocol]:
        raise SettingsError(f"no recipe for the network {network!r}; choose one of {', '.join(NETWORKS[protocol])}")
    values: Values = {"learning_rate": 0.01} if protocol == "paper" else {}
    values |= NETWORKS[protocol][network] | RECIPES[protocol][method]
    values |= KL.get(method, {}).get(network, {}) | ON[protocol].get(method, {}).get(network, {})
    if method == "snip":
        values["target_nonzero"] = SNIP_SHARES[network]
        if protocol == "best":  # its network begins anew, so it gets all the epochs
            base = BaselineSettings(**values)
            total = base.warmup_epochs + base.prune_epochs + base.finetune_epochs
            values |= {"prune_epochs": total, "finetune_epochs": 0}
    return BaselineSettings(**values)
