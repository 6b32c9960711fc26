"""What a frontier consists of: trained, pruned and fine-tuned networks and their figures on the validation split."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from bayesprune.turbo import Settings, Size

FINISHED = "finished"


@dataclass
class Member:
    """One network of a frontier.

    network: its dead weights zero, in eval mode.  masks: live weights by layer name, bool.
    validation, validation_unpruned: accuracy and nll on the validation split, after all and before pruning.
    status: `finished`, or why there is no result.
    """

    settings: Settings
    network: nn.Module = field(repr=False)
    masks: dict[str, Tensor] = field(repr=False)
    validation: dict[str, float]
    validation_unpruned: dict[str, float]
    size: Size | None
    status: str = FINISHED
    notes: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """Plain data: settings and figures, without the network."""
        figures: dict[str, Any] = {
            "settings": self.settings.as_dict(),
            "status": self.status,
            "notes": list(self.notes),
            "validation": dict(self.validation),
            "validation_unpruned": dict(self.validation_unpruned),
        }
        if self.size is not None:
            figures |= {
                "nonzero_fraction": self.size.nonzero_fraction,
                "dense_fraction": self.size.dense_fraction,
                "macs": self.size.macs,
                "macs_dense": self.size.macs_dense,
                "macs_removed": 1 - self.size.macs_fraction,
                "structure": list(self.size.structure),
            }
        return figures
