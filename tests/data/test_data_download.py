"""Downloads from a web server on this machine: checked, atomic, and not repeated."""

import gzip
import io
import sys

import pytest

from bayesprune.data import DataError, fetch, read
from bayesprune.data.progress import progress_bar


def tree(folder):
    """Every file below `folder` with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def folders(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir())


def test_fetches_every_file_once(made_idx, server, tmp_path, capsys):
    server.bodies = made_idx.files
    assert fetch(made_idx.spec, tmp_path, base_url=server.url.rstrip("/")) == tmp_path / "made-idx"
    assert tree(tmp_path) == {f"made-idx/{name}": data for name, data in made_idx.files.items()}
    assert sorted(server.asked) == sorted(made_idx.files)
    assert capsys.readouterr().err.count("downloaded ") == 4
    read(made_idx.spec, tmp_path)
    fetch(made_idx.spec, tmp_path, base_url=server.url, quiet=True)
    assert len(server.asked) == 4
    assert capsys.readouterr() == ("", "")


def test_keeps_another_gzip_wrapping_and_accepts_one_from_a_mirror(made_idx, server, tmp_path):
    rewrapped = {name: gzip.compress(gzip.decompress(data), 1, mtime=9) for name, data in made_idx.files.items()}
    server.bodies = rewrapped
    (tmp_path / "made-idx").mkdir()
    (tmp_path / "made-idx" / "train-images.gz").write_bytes(rewrapped["train-images.gz"])
    fetch(made_idx.spec, tmp_path, base_url=server.url, quiet=True)
    assert "train-images.gz" not in server.asked
    assert tree(tmp_path / "made-idx") == rewrapped


def test_replaces_only_the_damaged_file(made_idx, server, tmp_path):
    server.bodies = made_idx.files
    made_idx.write(tmp_path)
    (tmp_path / "made-idx" / "test-images.gz").write_bytes(b"damaged")
    fetch(made_idx.spec, tmp_path, base_url=server.url, quiet=True)
    assert server.asked == ["test-images.gz"]
    assert tree(tmp_path / "made-idx") == made_idx.files


def served_wrong(server, name):
    server.bodies[name] = server.bodies[name] + b"!"


def served_short(server, name):
    server.announced[name] = len(server.bodies[name])
    server.bodies[name] = server.bodies[name][:-5]


def not_served(server, name):
    del server.bodies[name]


FAILURES = [(served_wrong, "MD5"), (served_short, "cannot download"), (not_served, "404")]


@pytest.mark.parametrize(("failure", "words"), FAILURES)
def test_failed_file_leaves_what_was_there(made_idx, server, tmp_path, failure, words):
    server.bodies = dict(made_idx.files)
    failure(server, "train-labels.gz")
    old = tmp_path / "made-idx" / "train-labels.gz"
    old.parent.mkdir()
    old.write_bytes(b"what was there")
    with pytest.raises(DataError, match=words) as error:
        fetch(made_idx.spec, tmp_path, base_url=server.url, quiet=True)
    assert f"{server.url}train-labels.gz" in str(error.value)
    assert "--base-url" in str(error.value)
    images = made_idx.files["train-images.gz"]
    assert tree(tmp_path / "made-idx") == {"train-labels.gz": b"what was there", "train-images.gz": images}
    assert folders(tmp_path) == ["made-idx"]


@pytest.mark.parametrize(("failure", "words"), FAILURES)
def test_failed_archive_leaves_what_was_there(made_cifar, server, tmp_path, failure, words):
    server.bodies = {"made.tar.gz": made_cifar.archive}
    failure(server, "made.tar.gz")
    old = tmp_path / "made-cifar" / "test.bin"
    old.parent.mkdir()
    old.write_bytes(b"what was there")
    with pytest.raises(DataError, match=words):
        fetch(made_cifar.spec, tmp_path, base_url=server.url, quiet=True)
    assert tree(tmp_path) == {"made-cifar/test.bin": b"what was there"}
    assert folders(tmp_path) == ["made-cifar"]


def test_archive_is_unpacked_and_not_fetched_again(made_cifar, server, tmp_path):
    server.bodies = {"made.tar.gz": made_cifar.archive}
    for _ in range(2):
        fetch(made_cifar.spec, tmp_path, base_url=server.url, quiet=True)
        assert tree(tmp_path) == {f"made-cifar/{name}": data for name, data in made_cifar.files.items()}
    assert server.asked == ["made.tar.gz"]


def test_archive_already_there_is_unpacked_without_a_download(made_cifar, server, tmp_path):
    (tmp_path / "made.tar.gz").write_bytes(made_cifar.archive)
    fetch(made_cifar.spec, tmp_path, base_url=server.url, quiet=True)
    assert tree(tmp_path / "made-cifar") == made_cifar.files
    assert server.asked == []


def test_interrupted_download_leaves_nothing(made_idx, server, tmp_path, monkeypatch):
    server.bodies = made_idx.files

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesprune.data.progress.PlainLines.update", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch(made_idx.spec, tmp_path, base_url=server.url)
    assert tree(tmp_path) == {}
    assert folders(tmp_path) == []


def test_without_pooch_the_error_names_the_extra(made_idx, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"pip install 'bayesprune\[fetch\]'"):
        fetch(made_idx.spec, tmp_path)


def test_bad_arguments_are_data_errors(made_idx, tmp_path):
    with pytest.raises(DataError, match="must start with http"):
        fetch(made_idx.spec, tmp_path, base_url="ftp://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write to .*--data-dir FOLDER"):
        fetch(made_idx.spec, tmp_path / "file")
    with pytest.raises(DataError, match="nothing needs to be fetched"):
        fetch("digits")
    with pytest.raises(DataError, match="choose one of"):
        fetch("mnist")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bar_on_a_terminal_and_without_one():
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        bar = progress_bar("file[1].gz", stream)
        bar.total = 2_000_000
        bar.update(1_000_000)
        bar.reset()
        bar.update(2_000_000)
        bar.close()
        bar.abandon()
        assert bar.total == 2_000_000
    assert log.getvalue() == "downloaded file[1].gz, 2.0 MB\n"
    assert "file[1].gz" in terminal.getvalue()
