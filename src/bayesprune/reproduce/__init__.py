"""The paper's experiments again: Table II, what regularity costs (II-B), the noise of gradients (III-C).

    work = jobs(ROWS["lenet5"], METHODS, PROTOCOLS, (0, 1, 2), CONFIGS / "table2")
    files = RowFiles(Path("results/table2"), "lenet5")
    files.write(work[0], run_job(work[0], data))
    merge(table2_report(ROWS["lenet5"]), files)

`study_plan` and `study_report` are the same for the study of regularity, `write_results_page` makes one page of all
results, `gradient_study` measures the noise that the paper's deterministic gradient avoids.
"""

from bayesprune.reproduce.gradients import gradient_study
from bayesprune.reproduce.jobs import CONFIGS, ROWS, Job, Row
from bayesprune.reproduce.merging import Merged, Report, merge
from bayesprune.reproduce.methods import METHODS, PROTOCOLS, MethodJob, jobs
from bayesprune.reproduce.page import write_results_page
from bayesprune.reproduce.paper import SOURCE, TABLE2, Printed
from bayesprune.reproduce.progress import Progress
from bayesprune.reproduce.reports import study_report, table2_report
from bayesprune.reproduce.row_files import ClaimedError, RowFiles, Standing, State
from bayesprune.reproduce.running import run_job
from bayesprune.reproduce.study import StudyJob, StudyPlan, study_plan

__all__ = [
    "CONFIGS",
    "METHODS",
    "PROTOCOLS",
    "ROWS",
    "SOURCE",
    "TABLE2",
    "ClaimedError",
    "Job",
    "Merged",
    "MethodJob",
    "Printed",
    "Progress",
    "Report",
    "Row",
    "RowFiles",
    "Standing",
    "State",
    "StudyJob",
    "StudyPlan",
    "gradient_study",
    "jobs",
    "merge",
    "run_job",
    "study_plan",
    "study_report",
    "table2_report",
    "write_results_page",
]
