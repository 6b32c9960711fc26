"""The paper's Table II again: every method, protocol and seed of a row, and what the numbers say.

    work = jobs(ROWS["lenet5"], METHODS, PROTOCOLS, (0, 1, 2), Path("configs/table2"))
    files = RowFiles(Path("results/table2"), "lenet5")
    files.write(work[0], run_job(work[0], data))
    merge(ROWS["lenet5"], files)

`gradient_study` measures the noise that the paper's deterministic gradient avoids (III-C).
"""

from bayesprune.reproduce.gradients import gradient_study
from bayesprune.reproduce.jobs import METHODS, PROTOCOLS, ROWS, Job, Row, jobs
from bayesprune.reproduce.merging import merge
from bayesprune.reproduce.paper import SOURCE, TABLE2, Printed
from bayesprune.reproduce.progress import Progress
from bayesprune.reproduce.row_files import RowFiles, Standing, State
from bayesprune.reproduce.running import run_job

__all__ = [
    "METHODS",
    "PROTOCOLS",
    "ROWS",
    "SOURCE",
    "TABLE2",
    "Job",
    "Printed",
    "Progress",
    "Row",
    "RowFiles",
    "Standing",
    "State",
    "gradient_study",
    "jobs",
    "merge",
    "run_job",
]
