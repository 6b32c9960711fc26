"""What is made of the rows of the study: for `merge`."""

import functools

from bayesprune.reproduce.convergence.figure import draw_convergence
from bayesprune.reproduce.convergence.markdown import convergence_markdown
from bayesprune.reproduce.convergence.settling import with_settling
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.merging import Report


def convergence_report(row: Row) -> Report:
    """When messages settle and where, as tables and pictures."""
    return Report(functools.partial(convergence_markdown, row), functools.partial(draw_convergence, row), with_settling)
