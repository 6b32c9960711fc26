"""The commands report and figures."""

import pytest

from report.small_run import write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "small")


def test_report(call, folder, tmp_path):
    code, out, err = call("report", folder, "-o", tmp_path / "page.html")
    assert (code, err) == (0, "")
    content = (tmp_path / "page.html").read_text("utf-8")
    assert content.startswith("<!doctype html>")
    assert f"{len(content.encode()):,} bytes" in out
    assert len(content) < 1_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_report_of_several(call, folder, tmp_path):
    assert call("report", folder, folder / "network.safetensors")[0] == 0
    assert "Side by side" in (tmp_path / "report.html").read_text("utf-8")


def test_report_says_what_is_wrong(call, folder, tmp_path):
    code, _, err = call("report", tmp_path / "nothing")
    assert code == 1
    assert "there is no" in err
    code, _, err = call("report", folder, "-o", tmp_path / "no" / "folder" / "page.html")
    assert code == 1
    assert "cannot write" in err


def test_figures(call, folder, tmp_path):
    pytest.importorskip("matplotlib")
    code, out, err = call("figures", folder / "network.safetensors", "-o", tmp_path / "figures", "--format", "svg")
    assert (code, err) == (0, "")
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert {"kernels.svg", "layers.svg", "weights-01-conv1.svg"} <= set(names)
    assert f"{len(names)} files" in out


def test_figures_refuses_other_formats(call, folder):
    code, _, err = call("figures", folder, "--format", "png,gif")
    assert code == 2
    assert "gif" in err
