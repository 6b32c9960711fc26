"""A finished run, a small one."""

import pytest

from report.small_run import write_run


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """Not to be changed."""
    return write_run(tmp_path_factory.mktemp("runs") / "small")
