"""Everything that a compression depends on, as plain data: what a YAML file or the command line can say."""

from dataclasses import dataclass
from typing import Any, Literal

from bayesprune.layouts import ConvLayout, Layout
from bayesprune.priors import Gamma, Groups, PatternCoupled, PerKind, SharedPrecision, SpikeSlab
from bayesprune.supports import Bernoulli, IsingGrid, Support
from bayesprune.turbo.network_prior import PriorSettings
from bayesprune.turbo.plain_settings import PlainSettings, SettingsError
from bayesprune.variational import Collapsed, MeanField

GroupName = Literal["weight", "tile", "panel", "strip", "kernel", "row", "column", "unit", "pattern"]


@dataclass(frozen=True)
class Settings(PlainSettings):
    """How a network is trained, compressed and fine-tuned.

    Epochs: `warmup_epochs` of plain training (0 for a network that is trained already), `prune_epochs` under the prior,
    `finetune_epochs` with the masks fixed.
    Optimiser: `adam` takes the prior's pull through its gradients, `sgd` (Nesterov) as a proximal step after its own.
    `learning_rate` falls by a cosine in warm-up and (from `finetune_rate` times it) in fine-tuning, and to
    `prune_decay` times itself after 70 % of pruning.  `bfloat16`: half precision on CUDA; a CPU trains in float32.
    Prior: `weight_strength` (1 is the Bayesian posterior) and `unit_strength` (nats), each reached by a linear ramp
    over a part of the pruning epochs, (begin, end) as fractions; before its ramp the weight prior acts with
    `weight_start`.
    Groups: who shares one support and one precision (see `SharedPrecision`); `tile` is the size of tiles and panels,
    `linear_groups` is for Linear layers, None for the same.  `reorder_at`: after this fraction of the pruning epochs
    hidden units are sorted, the strongest first, so that neighbours are equals.
    Budgets: with any of `max_accuracy_drop` (points of validation accuracy), `target_macs` and `target_nonzero`
    (fractions) the strengths are not taken from the ramps but grow, epoch by epoch, until the budget is met.
    Algorithm 1 to the letter: `random_start` draws the first pi_n, `restart` re-initialises q(rho) and q(s) in every
    outer iteration, `convention` is that of paper (25), (26).
    """

    optimiser: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 3e-3
    prune_decay: float = 0.3
    finetune_rate: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    augment: bool = False
    bfloat16: bool = False

    weight_strength: float = 6.0
    weight_start: float = 0.3
    weight_ramp: tuple[float, float] = (0.4, 0.75)
    unit_strength: float = 5000.0
    unit_ramp: tuple[float, float] = (0.0, 0.2)
    cost_mix: float = 0.5
    unit_floor: float = 1e-4
    refresh_every: int = 100

    family: Literal["collapsed", "mean_field"] = "collapsed"
    convention: Literal["real", "complex"] = "real"
    random_start: bool = False
    restart: bool = False
    slab_rate: float = 1.0
    spike_rate: float = 1e-3
    activity: float = 0.5
    coupling: float = 0.0
    p01: float | None = None
    p10: float | None = None
    layout: ConvLayout = "kernel"
    groups: GroupName = "weight"
    linear_groups: GroupName | None = None
    tile: tuple[int, int] = (4, 4)
    reorder_at: float | None = None
    pattern_weight: float = 0.8
    fold_batchnorm: bool = True
    normalise_fan_in: bool = True

    max_accuracy_drop: float | None = None
    target_macs: float | None = None
    target_nonzero: float | None = None

    validation: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh_every < 1:
            raise SettingsError(f"refresh_every must be at least 1, got {self.refresh_every}")
        if not self.learning_rate > 0:
            raise SettingsError(f"learning_rate must be above 0, got {self.learning_rate}; try 3e-3")
        for name in ("weight_strength", "unit_strength", "weight_start"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("weight_ramp", "unit_ramp"):
            begin, end = getattr(self, name)
            if not 0 <= begin <= end <= 1:
                raise SettingsError(f"{name} must be two growing fractions, such as (0.4, 0.75), got {begin, end}")
        for name in ("target_macs", "target_nonzero", "reorder_at"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise SettingsError(f"{name} must be a fraction between 0 and 1, such as 0.25, got {value}")
        if self.max_accuracy_drop is not None and self.max_accuracy_drop < 0:
            raise SettingsError(f"max_accuracy_drop must be at least 0 points, got {self.max_accuracy_drop}; try 0.5")
        if not 0 < self.validation < 1:
            raise SettingsError(f"validation must be a fraction between 0 and 1, got {self.validation}; try 0.1")
        if (self.p01 is None) != (self.p10 is None):
            raise SettingsError(f"p01 and p10 go together, got p01={self.p01} and p10={self.p10}")

    @property
    def has_budget(self) -> bool:
        """Whether strengths follow a budget instead of the ramps."""
        return any(b is not None for b in (self.max_accuracy_drop, self.target_macs, self.target_nonzero))

    @property
    def decoupled(self) -> bool:
        """Whether the prior's pull is a step of its own."""
        return self.optimiser == "sgd"

    def pruning_rate(self, done: float) -> float:
        """The learning rate when a share `done` of the pruning epochs is over."""
        return self.learning_rate * (self.prune_decay if done >= 0.7 else 1.0)

    def prior(self) -> PriorSettings:
        """The objects behind the names."""
        slab_spike = SpikeSlab(Gamma(1.0, self.slab_rate), Gamma(1.0, self.spike_rate))
        return PriorSettings(
            family=Collapsed(slab_spike) if self.family == "collapsed" else MeanField(slab_spike, self.convention),
            support=self._support(),
            groups=self._groups(),
            fold_batchnorm=self.fold_batchnorm,
            normalise_fan_in=self.normalise_fan_in,
            cost_mix=self.cost_mix,
            unit_floor=self.unit_floor,
            random_start=self.random_start,
            restart=self.restart,
        )

    def _support(self) -> Support:
        if self.p01 is not None and self.p10 is not None:
            return IsingGrid.from_transitions(self.p01, self.p10)
        return IsingGrid(self.activity, self.coupling) if self.coupling else Bernoulli(self.activity)

    def _groups(self) -> Groups:
        conv = self._named_groups(self.groups)
        return conv if self.linear_groups is None else PerKind(conv, self._named_groups(self.linear_groups))

    def _named_groups(self, name: GroupName) -> Groups:
        layout = Layout(self.layout)
        if name == "pattern":
            return PatternCoupled(self.pattern_weight, layout)
        return SharedPrecision(name, self.tile, layout)


PRESETS: dict[str, dict[str, Any]] = {
    # Algorithm 1 to the letter.  The paper does not give p01 and p10; these work best of those tried (docs/turbo.md).
    "paper": {
        "warmup_epochs": 0,
        "finetune_epochs": 15,
        "batch_size": 64,
        "family": "mean_field",
        "convention": "complex",
        "random_start": True,
        "restart": True,
        "weight_strength": 1.0,
        "weight_ramp": [0.0, 0.0],
        "unit_strength": 0.0,
        "spike_rate": 1e-3,
        "p01": 0.3,
        "p10": 0.7,
        "fold_batchnorm": False,
        "normalise_fan_in": False,
        "learning_rate": 0.01,
        "optimiser": "sgd",
        "refresh_every": 10,
        "prune_decay": 1.0,
    },
    # Live weights in rectangles that a runtime can skip between: panels, of units sorted before the weight prior grows.
    "regular": {
        "groups": "strip",
        "tile": [3, 3],
        "reorder_at": 0.4,
    },
}
