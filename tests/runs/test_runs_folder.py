"""Run folders: what they hold, who may use them, and what they say when something is wrong."""

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from bayesprune.runs import RunError, RunFolder, RunWarning, checkpoint, load_newest, read_config, read_history
from bayesprune.runs import folder as folder_module
from bayesprune.runs import read_summary as read_summary_of
from bayesprune.runs.lock import FolderLock

CONFIG = {"model": "lenet5", "strengths": [0.5, 1e-300], "budget": None, "paths": {"data": "here"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "one"


def test_a_run_from_start_to_end(path):
    with RunFolder.create(path, CONFIG) as run:
        assert run.load_checkpoint() is None
        assert run.read_summary() is None
        assert run.read_history() == []
        run.append({"epoch": 1, "loss": 0.1 + 0.2})
        run.append({"epoch": 2, "loss": math.nan})
        run.save_checkpoint({"rows": run.rows})
        run.write_summary({"accuracy": 0.9, "structure": (6, 16)})
    assert {entry.name for entry in path.iterdir()} == {
        "config.json",
        "history.jsonl",
        "checkpoint.safetensors",
        "summary.json",
        "lock",
    }
    with RunFolder.open(path) as run:
        assert run.rows == 2
        assert run.load_checkpoint() == {"rows": 2}
        assert run.read_config() == CONFIG
        assert run.read_history() == [{"epoch": 1, "loss": 0.1 + 0.2}, {"epoch": 2, "loss": None}]
        assert run.read_summary() == {"accuracy": 0.9, "structure": [6, 16]}
    assert read_config(path) == CONFIG
    assert read_summary_of(path)["accuracy"] == 0.9
    assert len(read_history(path)) == 2


def test_create_refuses_a_run_and_says_what_to_do(path):
    RunFolder.create(path, CONFIG).close()
    command = re.escape(f"bayesprune compress --resume {path}, or choose another --name")
    with pytest.raises(RunError, match=command):
        RunFolder.create(path, {})
    assert read_config(path) == CONFIG
    with RunFolder.open(path):
        pass  # the refusal did not keep the lock


def test_the_command_is_quoted_for_the_shell(tmp_path):
    with RunFolder.create(tmp_path / "my run", CONFIG) as run:
        assert run.resume_command == f"bayesprune compress --resume '{tmp_path}/my run'"


def test_overwrite_removes_the_run_and_nothing_else(path):
    with RunFolder.create(path, CONFIG) as run:
        for count in range(2):
            run.append({"count": count})
            run.save_checkpoint({"count": count})
        run.write_summary({})
    for name in ("notes.txt", "model.safetensors", ".config.json.tmp"):
        (path / name).write_text("mine")
    with RunFolder.create(path, {"new": 1}, overwrite=True) as run:
        assert run.load_checkpoint() is None
        assert run.read_history() == []
        assert run.read_summary() is None
        assert run.rows == 0
    assert {entry.name for entry in path.iterdir()} == {
        "config.json",
        "lock",
        "notes.txt",
        "model.safetensors",
        ".config.json.tmp",
    }


def test_overwrite_waits_for_nobody(path):
    with RunFolder.create(path, CONFIG), pytest.raises(RunError, match="in use"):
        RunFolder.create(path, {}, overwrite=True)
    assert read_config(path) == CONFIG


def test_part_of_a_run_is_not_thrown_away(path):
    with RunFolder.create(path, CONFIG) as run:
        run.save_checkpoint({})
    (path / "config.json").unlink()
    with pytest.raises(RunError, match=r"part of a run \(checkpoint.safetensors"):
        RunFolder.create(path, CONFIG)
    with pytest.raises(RunError, match=r"has no config\.json"):
        RunFolder.open(path)


def test_create_in_a_folder_with_other_files(path):
    path.mkdir(parents=True)
    (path / "notes.txt").write_text("mine")
    RunFolder.create(path, CONFIG).close()
    assert (path / "notes.txt").read_text() == "mine"


def test_no_run_there(tmp_path):
    with pytest.raises(RunError, match="is not a folder"):
        RunFolder.open(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(RunError, match=r"has no config\.json"):
        RunFolder.open(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match="is not a folder"):
            RunFolder.create(wrong, {})
        with pytest.raises(RunError, match="is not a folder"):
            RunFolder.open(wrong)


@pytest.mark.parametrize("number", ["EACCES", "EROFS"])
def test_a_folder_that_cannot_be_written(path, monkeypatch, number):
    RunFolder.create(path, CONFIG).close()
    code = getattr(errno, number)
    before = os.open

    def refuse(name, flags, *rest, **options):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code))
        return before(name, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    for action in (lambda: RunFolder.open(path), lambda: RunFolder.create(path.with_name("two"), {})):
        with pytest.raises(RunError, match=f"cannot write .*{os.strerror(code)}; check who owns it"):
            action()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "base").mkdir(mode=0o500)
    with pytest.raises(RunError, match="Permission denied"):
        RunFolder.create(tmp_path / "base" / "one", {})


@pytest.mark.parametrize(
    ("config", "words"),
    [({"a": {"b": math.inf}}, "a.b = inf"), ({"a": [object()]}, r"a\[0\], a object"), ({1: 2}, "key 1")],
)
def test_a_config_that_would_not_come_back_is_refused(path, config, words):
    with pytest.raises(RunError, match=words):
        RunFolder.create(path, config)
    assert not path.exists()


def test_summary_is_valid_json_whatever_the_numbers(path):
    summary = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": np.float32(0.5), "d": torch.tensor(3), "e": path}
    summary |= {"f": np.float64("nan"), "g": "NaN", "h": np.int64(2), "i": True}
    with RunFolder.create(path, {}) as run:
        run.write_summary(summary)

    def refuse(word):
        raise AssertionError(word)

    found = json.loads((path / "summary.json").read_text(), parse_constant=refuse)
    plain = {"a": None, "b": [None, None, 1.5], "c": 0.5, "d": 3, "e": str(path), "f": None, "g": "NaN", "h": 2}
    assert found == plain | {"i": True}


# History


@pytest.mark.parametrize(
    "torn", [b'{"count": 3', b"\0\0\0\0", b'{"count": 3, "x": "\xff\n', b"[3]\n", b"{", b"\n", b"\r"]
)
def test_a_torn_end_is_dropped_and_the_next_row_is_whole(path, torn):
    with RunFolder.create(path, {}) as run:
        run.append({"count": 1})
        run.append({"count": 2, "text": "line\nbreak \u2028 é"})
    with (path / "history.jsonl").open("ab") as stream:
        stream.write(torn)
    rows = [{"count": 1}, {"count": 2, "text": "line\nbreak \u2028 é"}]
    assert read_history(path) == rows
    with RunFolder.open(path) as run:
        assert run.rows == 2
        run.append({"count": 3})
        assert run.read_history() == [*rows, {"count": 3}]


def test_rewind(path):
    with RunFolder.create(path, {}) as run:
        run.rewind(0)
        for count in range(5):
            run.append({"count": count})
        run.rewind(3)
        assert run.rows == 3
        run.append({"count": "new"})
        assert [row["count"] for row in run.read_history()] == [0, 1, 2, "new"]
        for wrong in (5, -1):
            with pytest.raises(RunError, match=f"has 4 rows, the checkpoint knows {wrong}"):
                run.rewind(wrong)
        run.rewind(0)
        assert run.read_history() == []


def test_damage_in_the_middle_of_the_history(path):
    with RunFolder.create(path, {}) as run:
        for count in range(4):
            run.append({"count": count})
        content = (path / "history.jsonl").read_bytes()
        (path / "history.jsonl").write_bytes(content.replace(b'{"count": 2}', b'{"count" 2}'))
        with pytest.raises(RunError, match=r"history\.jsonl, line 3"):
            run.read_history()
        with pytest.raises(RunError, match="line 3"):
            run.rewind(4)
        run.rewind(2)
        assert [row["count"] for row in run.read_history()] == [0, 1]


# Checkpoints


def save(run, *counts):
    for count in counts:
        run.save_checkpoint({"count": count})


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_two_newest_are_kept(path):
    with RunFolder.create(path, {}) as run:
        save(run, 1)
        assert not (path / "checkpoint.previous.safetensors").exists()
        save(run, 2, 3)
        assert run.load_checkpoint() == {"count": 3}
        assert checkpoint.load(path / "checkpoint.previous.safetensors") == {"count": 2}


def test_a_damaged_checkpoint_falls_back_and_never_replaces_the_good_one(path):
    with RunFolder.create(path, {}) as run:
        save(run, 1, 2)
    damage(path / "checkpoint.safetensors")
    with RunFolder.open(path) as run:
        with pytest.warns(RunWarning, match=r"checkpoint\.safetensors is damaged.*checkpoint\.previous\.safetensors"):
            assert run.load_checkpoint() == {"count": 1}
        save(run, 3)
        assert checkpoint.load(path / "checkpoint.previous.safetensors") == {"count": 1}
        save(run, 4)
        assert checkpoint.load(path / "checkpoint.previous.safetensors") == {"count": 3}


def test_saving_without_loading_looks_at_the_newest_first(path):
    with RunFolder.create(path, {}) as run:
        save(run, 1, 2)
    damage(path / "checkpoint.safetensors")
    with RunFolder.open(path) as run:
        save(run, 3)
    assert checkpoint.load(path / "checkpoint.previous.safetensors") == {"count": 1}
    with RunFolder.open(path) as run:
        save(run, 4)
    assert checkpoint.load(path / "checkpoint.previous.safetensors") == {"count": 3}


def test_both_damaged(path):
    with RunFolder.create(path, {}) as run:
        save(run, 1, 2)
        damage(path / "checkpoint.safetensors")
        damage(path / "checkpoint.previous.safetensors")
        with pytest.raises(RunError, match=r"checkpoint\.safetensors is.*previous\.safetensors is.*another --name"):
            run.load_checkpoint()


def test_a_missing_newest_checkpoint_is_said(path):
    with RunFolder.create(path, {}) as run:
        save(run, 1, 2)
        (path / "checkpoint.safetensors").unlink()
        with pytest.warns(RunWarning, match=r"checkpoint\.safetensors is missing"):
            assert run.load_checkpoint() == {"count": 1}
        save(run, 3)
        assert load_newest(path) == ({"count": 3}, "checkpoint.safetensors")


def test_a_disk_without_hard_links(path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with RunFolder.create(path, {}) as run:
        save(run, 1, 2, 3)
        assert run.load_checkpoint() == {"count": 3}
        assert checkpoint.load(path / "checkpoint.previous.safetensors") == {"count": 2}


# The lock

HOLDER = """
import sys, time
from bayesprune.runs import RunFolder
run = RunFolder.open(sys.argv[1])
print("locked", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(path):
    RunFolder.create(path, {}).close()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        for action in (RunFolder.open, lambda place: RunFolder.create(place, {})):
            start = time.monotonic()
            with pytest.raises(RunError, match=f"{path} is in use by process {holder.pid}; .*kill {holder.pid}"):
                action(path)
            assert time.monotonic() - start < 1
        assert read_config(path) == {}  # reading needs no lock
    finally:
        holder.kill()
        holder.communicate()
    RunFolder.open(path).close()


def test_a_second_time_in_one_process(path):
    with RunFolder.create(path, {}), pytest.raises(RunError, match="by this process"):
        RunFolder.open(path)
    RunFolder.open(path).close()


def test_the_lock_outlives_an_error_in_the_block_by_nothing(path):
    with pytest.raises(ZeroDivisionError), RunFolder.create(path, {}):
        1 / 0  # noqa: B018
    RunFolder.open(path).close()


FORKING = """
import os, sys, time
from bayesprune.runs import RunFolder, RunError
run = RunFolder.open(sys.argv[1])
child = os.fork()
if child == 0:
    try:
        run.append({})
    except RunError as error:
        os.write(1, b"child refused\\n")
    time.sleep(60)
os.write(1, b"%d\\n" % child)
time.sleep(60)
"""


def test_a_worker_that_outlives_its_parent_does_not_keep_the_lock(path):
    RunFolder.create(path, {}).close()
    parent = subprocess.Popen([sys.executable, "-c", FORKING, path], stdout=subprocess.PIPE, text=True)
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    assert "child refused" in lines
    child = int(next(line for line in lines if line.isdigit()))
    try:
        with pytest.raises(RunError, match=f"in use by process {parent.pid}"):
            RunFolder.open(path)  # the child closed its copy, the parent still has the lock
        parent.kill()
        parent.wait()
        RunFolder.open(path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_closed_folder_is_not_written(path):
    run = RunFolder.create(path, {})
    run.close()
    run.close()
    for action in (lambda: run.append({}), lambda: run.save_checkpoint({}), lambda: run.rewind(0)):
        with pytest.raises(RunError, match="not open in this process"):
            action()


def test_a_lock_held_by_nobody_known(path):
    RunFolder.create(path, {}).close()
    lock = FolderLock(path / "lock")
    (path / "lock").write_text("")
    with pytest.raises(RunError, match="by another process"):
        RunFolder.open(path)
    lock.release()


def test_leftovers_of_a_killed_process_go(path):
    RunFolder.create(path, {}).close()
    left = path / ".checkpoint.safetensors.123-abcd.tmp"
    left.touch()
    RunFolder.open(path).close()
    assert not left.exists()


def test_the_files_have_the_names_that_the_documentation_says():
    assert folder_module.RUN_FILES == (
        "config.json",
        "checkpoint.safetensors",
        "checkpoint.previous.safetensors",
        "history.jsonl",
        "summary.json",
        "network.safetensors",
    )
