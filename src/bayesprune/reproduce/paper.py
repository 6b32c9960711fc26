"""The figures that the paper prints, as data: Table II of the paper, "Overall performance comparisons"."""

from dataclasses import dataclass
from typing import Final

SOURCE: Final = "Table II of the paper (top-1 accuracy, |w != 0| / |w|, FLOPs reduction, pruned structure)"


@dataclass(frozen=True)
class Printed:
    """One line of Table II, in percent, and the widths of its pruned structure."""

    accuracy: float
    nonzero: float
    macs_removed: float
    structure: str

    @property
    def figures(self) -> tuple[float, float, float]:
        """Accuracy, nonzeros and MACs removed, in the order of the main axes."""
        return self.accuracy, self.nonzero, self.macs_removed


# By row and method; `ours` is the line "Proposed".
TABLE2: Final[dict[str, dict[str, Printed]]] = {
    "lenet5": {
        "unpruned": Printed(89.01, 100, 0, "6-16-120-84"),
        "variational-dropout": Printed(88.91, 6.16, 11.82, "6-15-49-51"),
        "group-variational-dropout": Printed(88.13, 4.20, 53.89, "5-7-21-23"),
        "polarization": Printed(87.27, 17.96, 59.04, "4-8-46-27"),
        "snip": Printed(82.83, 9.68, 19.82, "5-16-73-57"),
        "ours": Printed(88.77, 1.14, 76.03, "3-5-16-17"),
    },
    "alexnet": {
        "unpruned": Printed(66.18, 100, 0, "6-16-32-64-128-120-84"),
        "variational-dropout": Printed(64.91, 3.17, 6.12, "6-16-31-61-117-42-74"),
        "group-variational-dropout": Printed(64.82, 9.30, 39.29, "6-16-27-31-21-17-14"),
        "polarization": Printed(63.95, 25.95, 65.27, "4-15-16-20-19-58-53"),
        "snip": Printed(63.19, 11.75, 12.51, "6-16-30-57-102-56-68"),
        "ours": Printed(65.57, 3.42, 45.94, "6-16-25-20-7-7-7"),
    },
    "vgg11": {
        "unpruned": Printed(68.28, 100, 0, "64-128-256-256-512-512-512-512-100"),
        "variational-dropout": Printed(67.24, 5.39, 16.63, "64-128-256-211-447-411-293-279-44"),
        "group-variational-dropout": Printed(66.52, 9.05, 60.90, "63-112-204-134-271-174-91-77-33"),
        "polarization": Printed(64.41, 26.74, 59.54, "62-122-195-148-291-133-76-74-68"),
        "snip": Printed(65.20, 17.79, 7.92, "64-128-254-246-441-479-371-274-69"),
        "ours": Printed(67.12, 4.68, 63.14, "60-119-191-148-181-176-44-64-59"),
    },
}

# Fig. 9 of the paper: how many times faster the proposed network is than the dense one, by device and row.
FIGURE9: Final[dict[str, dict[str, float]]] = {
    "cpu": {"lenet5": 1.50, "alexnet": 1.63, "vgg11": 2.19},
    "cuda": {"lenet5": 2.85, "alexnet": 1.64, "vgg11": 1.88},
}
