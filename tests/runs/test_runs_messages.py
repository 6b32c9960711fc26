"""Windows of messages in a run folder: what is read is what was written, and damage is named."""

import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bayesprune.runs import LayerMessages, Messages, RunError, RunFolder, read_messages

SHAPES = {"conv1": (6, 25), "fc": (70, 400)}
WINDOWS = {"conv1": (6, 25), "fc": (64, 64)}


def made_up(iteration):
    generator = torch.Generator().manual_seed(iteration)
    layers = {}
    for name, shape in SHAPES.items():
        parts = [torch.randint(0, 256, WINDOWS[name], generator=generator).to(torch.uint8) for _ in range(3)]
        layers[name] = LayerMessages(shape, *parts)
    return Messages(iteration, layers)


def same(one, two):
    assert one.iteration == two.iteration
    assert one.layers.keys() == two.layers.keys()
    for name, layer in one.layers.items():
        assert layer.shape == two.layers[name].shape
        for part in ("from_supports", "to_supports", "posterior"):
            assert torch.equal(getattr(layer, part), getattr(two.layers[name], part))


def outer_iteration(run, number):
    run.write_messages(made_up(number))
    run.append({"phase": "prune", "message_change": 0.1})


@pytest.fixture
def path(tmp_path):
    """A run with a warm-up of one epoch and three outer iterations."""
    with RunFolder.create(tmp_path / "run", {}) as run:
        run.append({"phase": "warmup"})
        for number in (1, 2, 3):
            outer_iteration(run, number)
    return tmp_path / "run"


def files(path):
    return sorted(entry.name for entry in (path / "messages").iterdir())


def test_what_is_read_is_what_was_written(path):
    found = read_messages(path)
    assert [one.iteration for one in found] == [1, 2, 3]
    for number, one in enumerate(found, 1):
        same(one, made_up(number))


def test_the_format_of_the_file(path):
    file = path / "messages" / "0002.safetensors"
    with safe_open(file, "pt") as content:
        metadata = content.metadata()
    assert metadata.keys() == {"format", "iteration", "shapes"}
    assert (metadata["format"], metadata["iteration"]) == ("bayesprune-messages-1", "2")
    assert json.loads(metadata["shapes"]) == {"conv1": [6, 25], "fc": [70, 400]}
    tensors = load_file(file)
    wanted = made_up(2).layers["fc"]
    assert torch.equal(tensors["fc/from_supports"], wanted.from_supports)
    assert torch.equal(tensors["fc/to_supports"], wanted.to_supports)
    assert torch.equal(tensors["fc/posterior"], wanted.posterior)
    assert len(tensors) == 6


def test_the_same_messages_make_the_same_file(path, tmp_path):
    """safetensors itself writes its metadata in any order."""
    contents = set()
    for number in range(8):
        with RunFolder.create(tmp_path / str(number), {}) as run:
            run.write_messages(made_up(1))
        contents.add((tmp_path / str(number) / "messages" / "0001.safetensors").read_bytes())
    assert contents == {(path / "messages" / "0001.safetensors").read_bytes()}


@pytest.mark.parametrize(("rows", "left"), [(4, 3), (3, 2), (2, 1)])
def test_rewinding_takes_later_iterations_away(path, rows, left):
    with RunFolder.open(path) as run:
        run.write_messages(made_up(4))  # killed before the row
    (path / "messages" / ".0005.safetensors.1-ab.tmp").write_bytes(b"torn")
    with RunFolder.open(path) as run:
        run.rewind(rows)
        assert files(path) == [f"{number:04d}.safetensors" for number in range(1, left + 1)]
        outer_iteration(run, left + 1)
    assert [one.iteration for one in read_messages(path)] == list(range(1, left + 2))


def test_rewinding_to_before_pruning_leaves_no_folder(path):
    with RunFolder.open(path) as run:
        run.rewind(1)
    assert not (path / "messages").exists()
    assert read_messages(path) == []


def test_overwriting_takes_the_messages_away_and_leaves_other_files(path):
    (path / "messages" / "notes.txt").write_text("mine")
    RunFolder.create(path, {}, overwrite=True).close()
    assert files(path) == ["notes.txt"]
    assert read_messages(path) == []


def test_messages_alone_are_part_of_a_run(path):
    for name in ("config.json", "history.jsonl"):
        (path / name).unlink()
    with pytest.raises(RunError, match="holds part of a run \\(messages, but no config"):
        RunFolder.create(path, {})


def test_a_run_without_messages_has_none(tmp_path):
    RunFolder.create(tmp_path / "old", {}).close()
    assert read_messages(tmp_path / "old") == []


def rewrite(file, change):
    """Change the tensors and metadata of a file in place."""
    with safe_open(file, "pt") as content:
        metadata = dict(content.metadata())
    tensors = load_file(file)
    change(tensors, metadata)
    save_file(tensors, file, metadata or None)


DAMAGE = {
    "another format": (lambda t, m: m.update(format="other-2"), "has the format 'other-2', this version reads"),
    "no metadata": (lambda t, m: m.clear(), "has the format None"),
    "no iteration": (lambda t, m: m.pop("iteration"), "its iteration must be a whole number from 1, got ''"),
    "another iteration": (lambda t, m: m.update(iteration="7"), "its iteration is 7"),
    "shapes not JSON": (lambda t, m: m.update(shapes="{"), "its shapes must be JSON"),
    "shapes not pairs": (lambda t, m: m.update(shapes='{"conv1": [6], "fc": [70, 400]}'), "its shapes must be JSON"),
    "shapes not positive": (lambda t, m: m.update(shapes='{"conv1": [0, 25], "fc": [70, 400]}'), "must be JSON"),
    "a tensor missing": (lambda t, m: t.pop("fc/posterior"), "do not agree about fc/posterior"),
    "a tensor too many": (lambda t, m: t.update(other=torch.zeros(1)), "do not agree about other"),
    "another kind": (
        lambda t, m: t.update({"fc/posterior": t["fc/posterior"].float()}),
        "fc/posterior must be uint8 [64, 64], got float32 [64, 64]",
    ),
    "another window": (
        lambda t, m: t.update({"conv1/to_supports": t["conv1/to_supports"][:5].clone()}),
        "conv1/to_supports must be uint8 [6, 25], got uint8 [5, 25]",
    ),
    "other layers": (
        lambda t, m: (
            [t.pop(name) for name in list(t) if name.startswith("fc/")],
            m.update(shapes='{"conv1": [6, 25]}'),
        ),
        "it has other layers than the iteration before",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(path, damage):
    change, message = DAMAGE[damage]
    rewrite(path / "messages" / "0002.safetensors", change)
    with pytest.raises(RunError, match=re.escape(message)) as caught:
        read_messages(path)
    assert "0002.safetensors" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 100, bytes([2, 0, 0, 0, 0, 0, 0, 0]) + b"[]"])
def test_other_files_are_refused(path, content):
    (path / "messages" / "0003.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=r"0003\.safetensors is damaged: it is no safetensors file"):
        read_messages(path)


def test_every_way_to_cut_a_file_is_noticed(path):
    file = path / "messages" / "0003.safetensors"
    whole = file.read_bytes()
    for length in range(0, len(whole), 701):
        file.write_bytes(whole[:length])
        with pytest.raises(RunError, match="damaged"):
            read_messages(path)


def test_a_gap_is_noticed(path):
    (path / "messages" / "0002.safetensors").unlink()
    with pytest.raises(RunError, match="the messages of iteration 2 are missing"):
        read_messages(path)
