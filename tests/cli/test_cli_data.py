"""The command line as a person uses it: what it prints, where, and its exit codes."""

import subprocess
import sys

import pytest

from bayesprune.data import DATA_SETS, DataError


def test_help_teaches_the_commands(call):
    code, out, _ = call("data", "--help")
    assert code == 0
    for word in ("list", "info", "fetch", "$BAYESPRUNE_DATA", *DATA_SETS):
        assert word in out
    for command in ("fetch", "info", "list"):
        assert "--data-dir" in call("data", command, "--help")[1]


def test_version(call):
    code, out, _ = call("--version")
    assert code == 0
    assert out.startswith("bayesprune")


def test_list_shows_what_is_ready_missing_incomplete_and_damaged(call, tmp_path):
    code, out, _ = call("data", "list")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["digits", "ready", "scikit-learn"]
    assert lines[1].split(maxsplit=2) == [
        "fashion-mnist",
        "missing",
        "run: bayesprune data fetch fashion-mnist",
    ]
    assert lines[-1] == f"searched: {tmp_path / 'cache' / 'bayesprune'}"
    (tmp_path / "cifar-100-binary").mkdir()
    (tmp_path / "cifar-100-binary" / "train.bin").write_bytes(b"")
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"")
    code, out, _ = call("data", "list", "--data-dir", tmp_path)
    lines = out.splitlines()
    assert code == 0
    assert "damaged" in lines[2]
    assert "incomplete" in lines[3]
    assert "lacks test.bin, fine_label_names.txt" in lines[3]
    assert f"bayesprune data fetch cifar100 --data-dir {tmp_path}" in lines[3]


def test_info_shows_shapes_counts_and_classes(call):
    code, out, _ = call("data", "info", "digits")
    assert code == 0
    for words in (
        "1 x 8 x 8",
        "values 0 to 16",
        "1437 examples",
        "360 examples",
        "10: 0, 1, 2",
        "scikit-learn",
    ):
        assert words in out


def test_missing_data_is_one_message_and_exit_code_1(call, tmp_path):
    code, out, err = call("data", "info", "cifar10", "--data-dir", tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("error: data set cifar10 was not found")
    assert f"{tmp_path}: no cifar-10-batches-bin/data_batch_1.bin" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [("data", "info", "mnist"), ("data", "fetch"), ("nonsense",), ("data", "x")])
def test_wrong_usage_is_exit_code_2(call, arguments):
    assert call(*arguments)[0] == 2


def test_unknown_data_set_lists_the_names(call):
    assert "'mnist' is not one of digits, fashion-mnist, cifar10, cifar100" in call("data", "info", "mnist")[2]


def test_fetch_passes_on_its_options(call, monkeypatch, tmp_path):
    asked = []

    def pretend(name, data_dir, *, base_url):
        asked.append((name, data_dir, base_url))
        return tmp_path / name

    monkeypatch.setattr("bayesprune.cli.data.fetch", pretend)
    code, out, _ = call("data", "fetch", "cifar10", "--data-dir", tmp_path, "--base-url", "http://mirror/")
    assert (code, out) == (0, f"cifar10 is complete in {tmp_path / 'cifar10'}\n")
    assert asked == [("cifar10", tmp_path, "http://mirror/")]
    assert call("data", "fetch", "digits")[0] == 0
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("problem", "code", "words"),
    [(KeyboardInterrupt(), 130, "no unfinished file"), (DataError("no server"), 1, "error: no server")],
)
def test_fetch_that_is_stopped_or_fails(call, monkeypatch, problem, code, words):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr("bayesprune.cli.data.fetch", fail)
    result = call("data", "fetch", "cifar10")
    assert result[0] == code
    assert words in result[2]


def test_fetch_that_cannot_connect_is_one_message(call, tmp_path):
    url = "http://127.0.0.1:9/"  # the discard port: nobody listens
    code, _, err = call("data", "fetch", "fashion-mnist", "--data-dir", tmp_path, "--base-url", url)
    assert code == 1
    assert err.startswith(f"error: cannot download {url}train-images-idx3-ubyte.gz")
    assert list(tmp_path.iterdir()) == []


def test_python_m_bayesprune_is_the_same_command():
    command = [sys.executable, "-m", "bayesprune", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("bayesprune")
