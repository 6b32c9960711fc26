"""Names of runs and their folders."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from bayesprune.runs import RunError, default_name, new_folder, run_folder


def test_numbers_go_on_after_the_highest(tmp_path):
    assert default_name("lenet5", "fashion-mnist", tmp_path / "missing") == "lenet5-fashion-mnist-1"
    for name in ("lenet5-digits-2", "lenet5-digits-10", "lenet5-digits-x", "lenet5-digits-extra-99", "other-digits-50"):
        (tmp_path / name).mkdir()
    assert default_name("lenet5", "digits", tmp_path) == "lenet5-digits-11"
    assert default_name("My Net (v2)", "../etc/passwd", tmp_path) == "my-net-v2-etc-passwd-1"
    assert default_name("é", "", tmp_path) == "run-run-1"


def test_two_at_once_get_two_folders(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: new_folder("a", "b", tmp_path / "runs"), range(40)))
    assert len(set(folders)) == 40
    assert new_folder("a", "b", tmp_path / "runs").name == "a-b-41"


def test_a_place_that_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot make a run folder"):
        new_folder("a", "b", tmp_path / "file")


def test_names_that_people_choose(tmp_path):
    assert run_folder("try.2_p=0.5", tmp_path) == tmp_path / "try.2_p=0.5"
    for wrong in ("", ".", "..", "a/b", "-x", "a b", "x" * 201, "a\n"):
        with pytest.raises(RunError, match="a run name holds"):
            run_folder(wrong, tmp_path)
