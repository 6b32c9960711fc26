"""Where data sets are looked for, in which order, and what a missing one says."""

from pathlib import Path

import pytest

from bayesprune.data import DATA_SETS, DataError, file_spec, load, locate, search_folders, user_cache_folder


def test_order_is_argument_environment_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("BAYESPRUNE_DATA", str(tmp_path / "env"))
    cache = tmp_path / "cache" / "bayesprune"
    assert search_folders(tmp_path / "given") == (tmp_path / "given", tmp_path / "env", cache)
    assert search_folders() == (tmp_path / "env", cache)
    assert search_folders(tmp_path / "env") == (tmp_path / "env", cache)
    monkeypatch.setenv("BAYESPRUNE_DATA", "")
    assert search_folders() == (cache,)


def test_home_is_expanded_and_a_relative_xdg_folder_is_ignored(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_folder() == Path("/somewhere/.cache/bayesprune")
    assert search_folders("~/data")[0] == Path("/somewhere/data")


def test_first_complete_folder_wins(made_idx, monkeypatch, tmp_path):
    first, second = tmp_path / "first", made_idx.write(tmp_path / "second")
    monkeypatch.setenv("BAYESPRUNE_DATA", str(second))
    made_idx.write(first)
    assert locate(made_idx.spec, first).path == first / "made-idx"
    (first / "made-idx" / "test-labels.gz").unlink()
    assert locate(made_idx.spec, first).path == second / "made-idx"


def test_missing_data_set_lists_every_folder_the_missing_file_and_the_command(made_cifar, monkeypatch, tmp_path):
    partial = made_cifar.write(tmp_path / "partial folder")
    (partial / "made-cifar" / "test.bin").unlink()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYESPRUNE_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError) as error:
        locate(made_cifar.spec, partial)
    message = str(error.value)
    assert f"{partial}: no made-cifar/test.bin (nor made.tar.gz)" in message
    assert f"{tmp_path / 'file'}: not a folder" in message
    assert f"{tmp_path / 'cache' / 'bayesprune'}: no such folder" in message
    assert message.endswith(f"bayesprune data fetch cifar100 --data-dir '{partial}'")


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name != "digits"])
def test_every_missing_data_set_names_the_command_that_fetches_it(name):
    with pytest.raises(DataError, match=f"run: bayesprune data fetch {name}$"):
        load(name)


def test_unknown_name_lists_the_names():
    with pytest.raises(DataError, match="'mnist'; choose one of digits, fashion-mnist, cifar10, cifar100"):
        load("mnist")


def test_published_sizes():
    """As the publishers say: 60,000 images of 28x28 after 16 bytes; 30,730,000 bytes per CIFAR-10 file."""
    assert [file.size for file in file_spec("fashion-mnist").files] == [47040016, 60008, 7840016, 10008]
    assert [file.size for file in file_spec("cifar10").files] == [30730000] * 6 + [None]
    assert [file.size for file in file_spec("cifar100").files] == [153700000, 30740000, None]
