"""The command line in a folder of its own, and made-up rows."""

import sys

import pytest
from made_up_rows import CONFIGS

from bayesprune.cli import main


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BAYESPRUNE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def table2(monkeypatch, capsys):
    """Run `bayesprune reproduce table2 ...`; return exit code, stdout and stderr."""

    def run(*arguments):
        command = ["bayesprune", "reproduce", "table2", "--configs", str(CONFIGS), "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", [*command, *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return run
