"""Everything that a baseline depends on, as plain data."""

from dataclasses import dataclass
from typing import Literal

from bayesprune.turbo.plain_settings import PlainSettings, SettingsError

# The penalty's strength where the settings leave it open, for Adam.
STRENGTHS = {
    "variational-dropout": 1.0,
    "group-variational-dropout": 1.0,
    "polarization": 1e-2,
    "l1": 2.0,
    "group-norm": 1e-4,
}


@dataclass(frozen=True)
class BaselineSettings(PlainSettings):
    """How a network is trained, pruned by a baseline and fine-tuned.

    Epochs: `warmup_epochs` of plain training (for snip of a dense twin, which is only the network to compare with),
    `prune_epochs` under the method, `finetune_epochs` with the masks fixed.
    The learning rate falls by a cosine in warm-up and (from `finetune_rate` times it) in fine-tuning, and in pruning by
    `prune_schedule`.  `prune_optimiser`, `prune_learning_rate`: another optimiser for the pruning epochs, where
    log-variances want adam and the network sgd.  `weight_decay` acts in all phases but the pruning of the variational
    methods, whose KL takes its place.  `bfloat16`: half precision on CUDA; a CPU trains in float32.
    `strength`: of the penalty, None for the method's own (`STRENGTHS`): KL weight of the variational methods (1 is the
    bound), lambda of polarization, of l1 and of group-norm's sparse training; reached by a linear ramp over a part of
    the pruning epochs, (begin, end) as fractions.
    `target_nonzero`: share of weights that snip and magnitude keep.  `target_macs`: share that group-norm keeps.
    Variational dropout: weights with log alpha above `log_alpha_threshold` die; `variance_rate` is the learning rate of
    log-variances over that of weights with adam, and the root of that with sgd.
    Group variational dropout: `scale_prior`, `largest_deviation` of a weight of the first layer, and
    `element_sparsity`, which prunes single weights by log alpha, too.
    Polarization: `polarization_t` is t of Zhuang (2020), `macs_spread` how much stronger the channel with the most MACs
    is penalised than the one with the fewest.
    Magnitude: `score`, and whether the share grows by the cubic schedule (`gradual`) or at once, before pruning epochs.
    l1: `normalise` measures every layer's weights by their root mean square when pruning begins; weights up to
    `l1_threshold` die.
    snip: `snip_batches` to average the gradient over.
    group-norm: `pruning_steps` on the way to the target, `largest_cut`, the largest share of a layer's units to remove.
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 3e-3
    prune_schedule: Literal["constant", "linear", "cosine"] = "constant"
    prune_optimiser: Literal["adam", "sgd"] | None = None
    prune_learning_rate: float | None = None
    finetune_rate: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    augment: bool = False
    bfloat16: bool = False

    strength: float | None = None
    strength_ramp: tuple[float, float] = (0.0, 0.3)
    target_nonzero: float = 0.1
    target_macs: float = 0.25

    log_alpha_threshold: float = 3.0
    variance_rate: float = 10.0
    scale_prior: Literal["log-uniform", "horseshoe"] = "log-uniform"
    largest_deviation: float = 0.2
    element_sparsity: bool = False
    polarization_t: float = 1.2
    macs_spread: float = 1.0
    score: Literal["magnitude", "normalised", "lamp"] = "lamp"
    gradual: bool = True
    normalise: bool = True
    l1_threshold: float = 0.0
    snip_batches: int = 1
    pruning_steps: int = 5
    largest_cut: float = 1.0

    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("snip_batches", "pruning_steps"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, usual in (
            ("learning_rate", 3e-3),
            ("variance_rate", 10.0),
            ("largest_deviation", 0.2),
        ):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} must be above 0, got {getattr(self, name)}; try {usual:g}")
        if (self.prune_optimiser is None) != (self.prune_learning_rate is None):
            raise SettingsError(
                "prune_optimiser and prune_learning_rate go together, got "
                f"{self.prune_optimiser} and {self.prune_learning_rate}; try adam and 0.001"
            )
        if self.prune_learning_rate is not None and not self.prune_learning_rate > 0:
            raise SettingsError(f"prune_learning_rate must be above 0, got {self.prune_learning_rate}; try 0.001")
        if self.strength is not None and self.strength < 0:
            raise SettingsError(f"strength must be at least 0, got {self.strength}; None takes the method's own")
        if self.l1_threshold < 0:
            raise SettingsError(f"l1_threshold must be at least 0, got {self.l1_threshold}; try 0.01")
        if not 0 < self.largest_cut <= 1:
            raise SettingsError(f"largest_cut must be a share above 0 and at most 1, got {self.largest_cut}; try 0.7")
        if self.macs_spread < 1:
            raise SettingsError(f"macs_spread must be at least 1, which penalises all alike, got {self.macs_spread}")
        begin, end = self.strength_ramp
        if not 0 <= begin <= end <= 1:
            raise SettingsError(f"strength_ramp must be two growing fractions, such as (0, 0.3), got {begin, end}")
        for name in ("target_nonzero", "target_macs", "validation"):
            if not 0 < getattr(self, name) < 1:
                raise SettingsError(
                    f"{name} must be a fraction between 0 and 1, such as 0.1, got {getattr(self, name)}"
                )
