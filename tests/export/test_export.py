"""Exported files compute what the network computes, at any batch size, and appear only when they do."""

import io
import json
import math
import sys
import zipfile
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import Tensor, nn

from bayesprune import models
from bayesprune.export import ExportError, onnx_file, to_onnx, to_safetensors, to_torch_export
from bayesprune.export.checking import compare

GREY = torch.zeros(2, 1, 28, 28)


def created(name: str, shape: tuple[int, int, int]) -> nn.Module:
    network = models.create(name, shape, 10, generator=torch.Generator().manual_seed(0))
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):  # running values that matter
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
        elif isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.uniform_(layer.bias, -0.5, 0.5)  # the exporter drops biases that are zero
    return network


def half_lenet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(200, 60), nn.ReLU(), nn.Linear(60, 42), nn.ReLU(), nn.Linear(42, 10)),
    )


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def assert_same_outputs(path: Path, network: nn.Module, shape: tuple[int, ...]) -> None:
    """With a session of the test's own, on other inputs and batch sizes than the export tried."""
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    for batch in (1, 2, 7):
        x = torch.rand(batch, *shape)
        with torch.no_grad():
            expected = network.eval()(x)
        (got,) = session.run(["output"], {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 28, 28)), ("resnet20", (3, 32, 32))])
def test_onnx_gives_the_same_outputs_at_any_batch_size(
    name: str, shape: tuple[int, int, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network, path = created(name, shape), tmp_path / "network.onnx"
    report = to_onnx(network, torch.zeros(5, *shape), path)
    assert capfd.readouterr() == ("", "")  # the exporter is silent
    assert network.training  # the network itself is as it was
    assert_same_outputs(path, network, shape)
    assert report.batches == (1, 3, 5)
    assert report.bytes == path.stat().st_size
    assert 0 <= report.max_rel < 1e-5
    assert report.opset is not None
    assert report.opset >= 17
    assert [file.name for file in tmp_path.iterdir()] == ["network.onnx"]  # one file, no external data
    json.dumps(report.as_dict())
    assert f"{report.bytes:,} bytes" in report.in_words()


def test_onnx_is_valid_names_its_batch_and_holds_no_folder_names(tmp_path: Path) -> None:
    to_onnx(created("lenet5", (1, 28, 28)), GREY[:1], tmp_path / "network.onnx")  # a batch of one stays free too
    model = onnx.load(tmp_path / "network.onnx")
    onnx.checker.check_model(model, full_check=True)
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dimensions] == ["batch", 1, 28, 28]
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    content = (tmp_path / "network.onnx").read_bytes()
    assert b".py" not in content
    assert b"site-packages" not in content


def test_a_narrower_network_gives_a_smaller_onnx_file_in_proportion(tmp_path: Path) -> None:
    dense, narrow = created("lenet5", (1, 28, 28)), half_lenet()
    before, after = (to_onnx(net, GREY, tmp_path / f"{i}.onnx") for i, net in enumerate((dense, narrow)))
    assert_same_outputs(tmp_path / "1.onnx", narrow, (1, 28, 28))
    # Beside the weights the files hold only the graph, which has not become smaller.
    graph = before.bytes - 4 * parameters(dense)
    assert 0 < graph < 3000
    assert abs(after.bytes - 4 * parameters(narrow) - graph) < 100


def test_a_graph_module_with_its_own_flattening_is_exported(tmp_path: Path) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 4, 3)
            self.out = nn.Linear(4 * 26 * 26, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).relu_()
            return self.out(x.view(x.size(0), -1))  # type: ignore[no-any-return]

    network = torch.fx.symbolic_trace(Viewing())
    to_onnx(network, GREY, tmp_path / "network.onnx")
    assert_same_outputs(tmp_path / "network.onnx", network, (1, 28, 28))
    to_torch_export(network, GREY, tmp_path / "network.pt2")


@pytest.mark.parametrize("existing", [None, b"the old file"])
def test_a_file_that_computes_something_else_is_not_kept(
    existing: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "network.onnx"
    if existing:
        path.write_bytes(existing)
    right = onnx_file.run_session
    monkeypatch.setattr(onnx_file, "run_session", lambda session, x: right(session, x) * 1.001)
    with pytest.raises(ExportError, match=r"differs from the network by .* at batch size 1"):
        to_onnx(half_lenet(), GREY, path)
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == ([("network.onnx", existing)] if existing else [])


def test_a_session_that_breaks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(session: object, x: Tensor) -> Tensor:
        raise RuntimeError("no kernel\nand pages more")

    monkeypatch.setattr(onnx_file, "run_session", broken)
    with pytest.raises(ExportError, match=r"cannot be run at batch size 1: RuntimeError: no kernel$"):
        to_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "network.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_remedy(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf"package {package}; .*pip install 'bayesprune\[onnx\]'"):
        to_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "network.onnx")
    assert not list(tmp_path.iterdir())


def test_networks_and_folders_that_cannot_be_exported_say_so(tmp_path: Path) -> None:
    broken = nn.Linear(3, 2)
    nn.init.constant_(broken.weight, math.nan)
    with pytest.raises(ExportError, match="not finite"):
        to_torch_export(broken, torch.zeros(2, 3), tmp_path / "network.pt2")
    with pytest.raises(ExportError, match="does not exist"):
        to_safetensors(broken, tmp_path / "missing" / "network.safetensors")
    with pytest.raises(ExportError, match="is a folder"):
        to_safetensors(broken, tmp_path)

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(ExportError, match=r"torch\.onnx cannot export this network"):
        to_onnx(Branching(), torch.zeros(2, 3), tmp_path / "network.onnx")
    with pytest.raises(ExportError, match=r"torch\.export cannot export this network"):
        to_torch_export(Branching(), torch.zeros(2, 3), tmp_path / "network.pt2")
    assert not list(tmp_path.iterdir())


def test_torch_export_gives_the_same_outputs_at_any_batch_size(tmp_path: Path) -> None:
    network, path = created("lenet5", (1, 28, 28)), tmp_path / "network.pt2"
    report = to_torch_export(network, GREY[:1], path)
    loaded = torch.export.load(io.BytesIO(path.read_bytes())).module()
    network.eval()
    for batch in (1, 2, 9):
        x = torch.rand(batch, 1, 28, 28)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), network(x))
    assert report.batches == (1, 3)
    assert "trust" in report.note
    assert "trust" in report.in_words()
    with zipfile.ZipFile(path) as archive:
        assert not any(b"site-packages" in archive.read(name) for name in archive.namelist())


def test_safetensors_holds_the_state_and_tied_weights_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(50, 50), nn.Linear(50, 50)
            self.second.weight = self.first.weight
            self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
            self.norm = nn.BatchNorm2d(4)

    network, path = Tied(), tmp_path / "network.safetensors"
    report = to_safetensors(network, path)
    with safe_open(path, framework="pt") as stored:
        assert set(stored.keys()) == set(network.state_dict()) - {"second.weight"}
        assert stored.metadata()["second.weight"] == "first.weight"
    assert report.bytes == path.stat().st_size < 4 * 2 * 50 * 50
    assert network.conv.weight.is_contiguous(memory_format=torch.channels_last)
    other = Tied()
    assert load_model(other, path) == (set(), [])
    for name, tensor in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_differences_are_relative_to_the_largest_output() -> None:
    expected = torch.tensor([[1.0, -4.0], [0.0, 2.0]])
    assert compare(expected, expected + 0.5).absolute == 0.5
    assert compare(expected, expected + 0.5).relative == 0.125
    assert compare(torch.zeros(2), torch.zeros(2)).relative == 0
    assert compare(torch.zeros(2), torch.ones(2)).relative == math.inf
    assert compare(expected, expected[:1]).relative == math.inf
    assert compare(expected, expected * math.nan).relative == math.inf
