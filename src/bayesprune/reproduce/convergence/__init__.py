"""How the messages between Module A and Module B settle, from several starts (paper Fig. 10 and Fig. 11)."""

from bayesprune.reproduce.convergence.files import ConvergenceFiles
from bayesprune.reproduce.convergence.jobs import ITERATIONS, SETTINGS, ConvergenceJob, convergence_jobs, expected_jobs
from bayesprune.reproduce.convergence.report import convergence_report
from bayesprune.reproduce.convergence.running import StartRunner

__all__ = [
    "ITERATIONS",
    "SETTINGS",
    "ConvergenceFiles",
    "ConvergenceJob",
    "StartRunner",
    "convergence_jobs",
    "convergence_report",
    "expected_jobs",
]
