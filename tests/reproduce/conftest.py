"""The command line in a folder of its own, and made-up rows."""

import sys

import pytest

from bayesprune.cli import main


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BAYESPRUNE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def reproduce(monkeypatch, capsys):
    """Run `bayesprune reproduce ...`; return exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesprune", "reproduce", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def table2(reproduce):
    """Run `bayesprune reproduce table2 ...`."""
    return lambda *arguments: reproduce("table2", "--device", "cpu", *arguments)


@pytest.fixture
def regularity(reproduce):
    """Run `bayesprune reproduce regularity ...`."""
    return lambda *arguments: reproduce("regularity", "--device", "cpu", *arguments)
