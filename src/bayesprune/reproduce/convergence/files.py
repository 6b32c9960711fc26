"""rows/NAME/SETTING-START.json of every finished job, and warm.safetensors, the network that all of them begin with."""

import dataclasses
from pathlib import Path
from typing import Final

from bayesprune.reproduce.convergence.jobs import IDENTITY, ITERATIONS
from bayesprune.reproduce.jobs import Job
from bayesprune.reproduce.row_files import RowFiles, Standing

KEYS: Final = (
    *("row", "model", "data", "method", "seed", "epochs", "epochs_scale", "settings", "status", *IDENTITY),
    *("accuracy", "nonzero_fraction", "sites", "outer_iterations", "end", "windows", "warm"),
)


class ConvergenceFiles(RowFiles):
    """The folder of results.

    NAME is that of the row; with another number of iterations or steps it says so, so that trials are kept apart.
    """

    def __init__(self, output: Path, row: str, iterations: int = ITERATIONS, steps: int | None = None) -> None:
        super().__init__(output, row)
        self.name = row
        if iterations != ITERATIONS or steps is not None:
            self.name += f"-trial-{iterations}" + (f"x{steps}" if steps is not None else "")
        self.folder = output / "rows" / self.name
        self._keys = KEYS

    @property
    def warm(self) -> Path:
        """The file of the warm network."""
        return self.folder / "warm.safetensors"

    def standing(self, job: Job) -> Standing:
        """How far a job is; there is no network to keep."""
        found = super().standing(job)
        return dataclasses.replace(found, reason="", lacks_network=False) if found.lacks_network else found
