"""The command line in a folder of its own, called as a person calls it."""

import sys

import pytest

from bayesprune.cli import main


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("BAYESPRUNE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("bayesprune.cli.finishing.SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(monkeypatch, capsys):
    """Run `bayesprune ...`; return exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesprune", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return run
