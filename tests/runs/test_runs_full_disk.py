"""A full disk at every call that touches it: a clear error, nothing lost, nothing left behind, and it goes on after."""

import errno
import os
import shutil
import subprocess

import pytest
import torch

from bayesprune.runs import RunError, RunFolder, load_newest, read_config, read_history, read_summary

CALLS = ("open", "write", "fsync", "replace", "link", "mkdir")
CONFIG = {"seed": 0}


class FullDisk:
    """Fails the `at`-th call that touches the disk, and all later writes; a write gets half of its bytes out first."""

    def __init__(self, monkeypatch, at, code):
        self.left = at
        for name in CALLS:
            monkeypatch.setattr(os, name, self.limited(name, getattr(os, name), code))

    def limited(self, name, original, code):
        def function(*arguments, **options):
            if name == "open" and not arguments[1] & os.O_CREAT:
                return original(*arguments, **options)
            self.left -= 1
            if self.left == 0 or (self.left < 0 and name == "write"):
                if name == "write" and len(arguments[1]) > 1:
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(code, os.strerror(code))
            return original(*arguments, **options)

        return function


def state(count):
    return {"count": count, "rows": count, "tensor": torch.full((100,), float(count))}


def row(count):
    return {"count": count}


def new_run(path):
    with RunFolder.create(path, CONFIG) as run:
        for count in (1, 2):
            run.append(row(count))
            run.save_checkpoint(state(count))
        run.write_summary({"count": 2})


ACTIONS = {
    "append": lambda run: run.append(row(3)),
    "save": lambda run: run.save_checkpoint(state(3)),
    "summary": lambda run: run.write_summary({"count": 3}),
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=["full", "quota"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_full_disk_loses_nothing(tmp_path, action, code):
    failures = 0
    for at in range(1, 100):
        path = tmp_path / f"run{at}"
        new_run(path)
        files = sorted(entry.name for entry in path.iterdir())
        with RunFolder.open(path) as run, pytest.MonkeyPatch.context() as monkeypatch:
            disk = FullDisk(monkeypatch, at, code)
            try:
                ACTIONS[action](run)
            except RunError as error:
                failures += 1
                message = str(error)
                words = "the disk is full" if code == errno.ENOSPC else "quota is used up"
                for part in (words, "MB free", "nothing was lost", f"bayesprune compress --resume {path}"):
                    assert part in message
                assert str(path / {"append": "history", "save": "", "summary": "summary"}[action]) in message
            else:
                if disk.left > 0:
                    break
            monkeypatch.undo()

            assert sorted(entry.name for entry in path.iterdir()) == files
            newest, _ = load_newest(path)
            assert newest["count"] in (2, 3)
            assert torch.equal(newest["tensor"], state(newest["count"])["tensor"])
            assert read_config(path) == CONFIG
            assert read_history(path) in ([row(1), row(2)], [row(1), row(2), row(3)])
            assert read_summary(path)["count"] in (2, 3)
            # There is space again: the same process goes on.
            if run.rows > 2:
                run.rewind(2)
            run.append(row("on"))
            run.save_checkpoint(state(4))
            assert [entry["count"] for entry in run.read_history()] == [1, 2, "on"]
            assert run.load_checkpoint()["count"] == 4
    assert failures >= {"append": 2, "save": 7, "summary": 5}[action]


def test_a_disk_that_takes_a_few_bytes_at_a_time(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    new_run(tmp_path / "run")
    assert load_newest(tmp_path / "run")[0]["count"] == 2
    assert read_history(tmp_path / "run") == [row(1), row(2)]


def test_a_full_disk_at_the_start(tmp_path):
    messages = []
    for at in range(1, 100):
        path = tmp_path / f"base{at}" / "run"
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = FullDisk(monkeypatch, at, errno.ENOSPC)
            try:
                RunFolder.create(path, CONFIG).close()
            except RunError as error:
                messages.append(str(error).replace(str(path.parent), "BASE"))
            else:
                if disk.left > 0:
                    break
        if path.exists():
            assert {entry.name for entry in path.iterdir()} <= {"lock", "config.json"}
        if not (path / "config.json").exists():
            RunFolder.create(path, CONFIG).close()
        with RunFolder.open(path) as run:
            assert run.read_config() == CONFIG
    assert len(messages) >= 6
    for message in messages:
        assert message.startswith("cannot write BASE/run")
        assert message.endswith("nothing was started; free some space and start again")


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 300 kB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    command = [mount, "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run([umount, str(place)], check=True)


def forever(action):
    while True:
        action()


def test_a_disk_that_is_really_full(tiny_disk):
    path = tiny_disk / "run"
    with RunFolder.create(path, CONFIG) as run:
        for count in (1, 2):
            run.append(row(count))
            run.save_checkpoint(state(count))
        with pytest.raises(RunError, match=r"checkpoint\.safetensors: the disk is full \(0\.\d MB free\)"):
            run.save_checkpoint({"count": 3, "tensor": torch.zeros(100_000)})
        filler = (tiny_disk / "filler").open("wb", buffering=0)
        with filler, pytest.raises(OSError, match="No space"):
            forever(lambda: filler.write(b"x" * 4096))
        with pytest.raises(RunError, match=r"history\.jsonl: the disk is full"):
            forever(lambda: run.append({"text": "x" * 1000}))
    with RunFolder.open(path) as run:  # opening and rewinding need no space
        assert run.load_checkpoint()["count"] == 2
        run.rewind(2)
        (tiny_disk / "filler").unlink()
        run.append(row(3))
        run.save_checkpoint(state(3))
        assert run.read_history() == [row(1), row(2), row(3)]
        assert load_newest(path)[0]["count"] == 3
