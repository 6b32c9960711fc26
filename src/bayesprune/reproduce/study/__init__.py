"""What the prior on supports does to trained networks (paper II-B): clusters, gaps, accuracy and nonzeros.

plan = study_plan(ROWS["lenet5"], None, (0, 1, 2), CONFIGS / "regularity")
files = RowFiles(Path("results/regularity"), "lenet5", identity=IDENTITY)
files.write(plan.jobs[0], run_job(plan.jobs[0], data))
merge(study_report(ROWS["lenet5"]), files)
"""

from bayesprune.reproduce.study.families import FAMILIES, StudyGroup, groups
from bayesprune.reproduce.study.jobs import IDENTITY, StudyJob, StudyPlan, setting_names, study_plan

__all__ = ["FAMILIES", "IDENTITY", "StudyGroup", "StudyJob", "StudyPlan", "groups", "setting_names", "study_plan"]
