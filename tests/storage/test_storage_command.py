"""`bayesprune info --storage`, `export --storage` and `compress --storage`."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from bayesprune import artefact
from bayesprune.cli import main
from bayesprune.storage import FORMATS

LENET = Path(__file__).parents[1] / "artefact" / "version-1.safetensors"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; exit code, output, messages."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bayesprune", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        out, err = capsys.readouterr()
        return exit_info.value.code or 0, out, err

    return run


@pytest.fixture
def lenet(tmp_path):
    return Path(shutil.copy(LENET, tmp_path / "network.safetensors"))


def table(out):
    """The rows of the table, by their first column."""
    lines = out[out.index("layer ") :].splitlines()
    assert re.split(r"  +", lines[0]) == ["layer", "weights", "live", *FORMATS, "index/live"]
    return {row[0]: [one.replace(",", "") for one in row[1:]] for row in (re.split(r"  +", line) for line in lines[1:])}


def test_info(call, lenet):
    code, out, _ = call("info", lenet, "--storage")
    assert code == 0
    network = artefact.load(lenet)
    rows = table(out)
    for name, parameter in network.named_parameters():
        if parameter.ndim > 1:
            live = int(parameter.count_nonzero())
            assert rows[name][:3] == [str(parameter.numel()), str(live), str(parameter.nbytes)]
            assert rows[name][3] == str(12 * live)
    total = rows["total"]
    assert int(total[0]) == sum(one.numel() for one in network.parameters())
    assert int(total[2]) == sum(one.nbytes for one in network.parameters())
    ours = int(total[2 + FORMATS.index("clusters")])
    assert ours == min(map(int, total[2 : 2 + len(FORMATS)]))
    assert f"stored as dense: {int(total[2]):,} of tensors" in out
    assert "stored as dense" in call("info", lenet)[1]
    assert "layer " not in call("info", lenet)[1]


def test_info_of_a_packed_file_adds_up(call, lenet):
    """The file is the table's bytes, the description and the 4 bytes between."""
    code, out, err = call("export", lenet, "--to", "safetensors", "--storage", "clusters")
    assert (code, err) == (0, "")
    file = lenet.with_name("network.clusters.safetensors")
    code, out, _ = call("info", file, "--storage")
    assert code == 0
    ours = int(table(out)["total"][2 + FORMATS.index("clusters")])
    described = re.search(r"stored as clusters: ([\d,]+) of tensors and ([\d,]+) of description", out)
    assert [int(one.replace(",", "")) for one in described.groups()] == [ours, file.stat().st_size - ours]
    assert 500 < file.stat().st_size - ours < 1000


def test_export(call, lenet):
    code, out, _ = call("export", lenet, "--to", "safetensors", "--storage", "clusters", "--output", "a.safetensors")
    assert code == 0
    assert "every value read back unchanged" in out
    assert "times smaller than the dense network" in out
    exact, network = artefact.load("a.safetensors"), artefact.load(lenet)
    for name, one in network.state_dict().items():
        assert torch.equal(exact.state_dict()[name], one)
    assert artefact.read("a.safetensors").config is None
    arguments = ("--to", "safetensors", "--storage", "clusters", "--values", "float16", "--output", "b.safetensors")
    code, out, _ = call("export", lenet, *arguments)
    assert code == 0
    assert "rounded to float16" in out
    assert Path("b.safetensors").stat().st_size < 0.7 * Path("a.safetensors").stat().st_size
    code, out, _ = call("info", "b.safetensors", "--storage")
    assert "rounded to F16" in out
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(artefact.load("b.safetensors")(x), network(x), atol=0.05)
    assert {one.name for one in Path().iterdir()} == {"a.safetensors", "b.safetensors", "network.safetensors"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "onnx", "--storage", "clusters"), "use --to safetensors"),
        (("--to", "safetensors", "--storage", "zip"), "not one of dense, clusters"),
        (("--to", "safetensors", "--values", "float16"), "with --storage"),
        (("--to", "safetensors", "--storage", "clusters", "--values", "int8"), "not one of float16, bfloat16"),
    ],
)
def test_export_refuses(call, lenet, arguments, message):
    code, _, err = call("export", lenet, *arguments)
    assert code == 2
    assert message in re.sub(r"[\s│]+", " ", err)
    assert list(lenet.parent.iterdir()) == [lenet]


def test_export_to_a_folder_that_is_not_there(call, lenet):
    arguments = ("--to", "safetensors", "--storage", "clusters", "--output", "none/a.safetensors")
    code, _, err = call("export", lenet, *arguments)
    assert code == 1
    assert "the folder none does not exist" in err


def test_compress(call):
    config = Path(__file__).parents[2] / "configs" / "demo.yaml"
    few = [("--set", f"{phase}_epochs=1") for phase in ("warmup", "prune", "finetune")]
    arguments = ("--config", config, "--device", "cpu", *sum(few, ()), "--quiet", "--no-bench")
    assert call("compress", *arguments, "--storage", "clusters", "--name", "packed")[0] == 0
    assert artefact.read("runs/packed/network.safetensors").storage == "clusters"
    code, _, err = call("compress", *arguments, "--storage", "zip")
    assert code == 2
    assert "not one of auto, dense, clusters" in re.sub(r"[\s│]+", " ", err)
