"""What is made of the rows of each study: for `merge`."""

import functools

from bayesprune.reproduce.comparing import with_drops
from bayesprune.reproduce.figure import draw
from bayesprune.reproduce.jobs import Row
from bayesprune.reproduce.markdown import markdown
from bayesprune.reproduce.merging import Report
from bayesprune.reproduce.study.figure import draw_study
from bayesprune.reproduce.study.markdown import study_markdown


def table2_report(row: Row, *, epochs_scale: float = 1.0) -> Report:
    """Our figures beside the paper's."""
    return Report(
        functools.partial(markdown, row, epochs_scale=epochs_scale),
        functools.partial(draw, row, epochs_scale=epochs_scale),
        with_drops,
    )


def study_report(row: Row, *, epochs_scale: float = 1.0) -> Report:
    """What regularity costs."""
    return Report(
        functools.partial(study_markdown, row, epochs_scale=epochs_scale),
        functools.partial(draw_study, row, epochs_scale=epochs_scale),
    )
