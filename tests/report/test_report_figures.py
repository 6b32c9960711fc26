"""The figures as files."""

from dataclasses import replace
from pathlib import Path

import pytest

from bayesprune.report import drawings, read_sources, write_figures
from bayesprune.report.charts import Bar, BarGroup, Bars, Lines, Series

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("bayesprune.report.plates.DOTS_PER_INCH", 40)


def test_one_of_every_kind(run_folder, tmp_path):
    found = drawings(*read_sources([run_folder, run_folder / "network.safetensors"]))
    kinds = {type(one): one for one in found}
    assert len(kinds) == 5
    chosen = [replace(one, layers=one.layers[:1]) if hasattr(one, "layers") else one for one in kinds.values()]
    written = write_figures(chosen, tmp_path / "new" / "figures", ("png", "svg"))
    assert len(written) == 10
    assert sorted((tmp_path / "new" / "figures").iterdir()) == sorted(written)
    for path in written:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


def test_names_stay_in_the_folder_and_text_is_no_formula(tmp_path):
    bars = Bars("../../out", "$\\frac{", "", "x", (BarGroup("$a$", (Bar("$b$", 1.0, 0, "$\\c$", "t"),)),), ("$d$",))
    lines = Lines("a/b", "$\\bad{", "", "x", "y", (Series("$s", (1.0,), (2.0,)), Series("t", (1.0,), (None,))))
    written = write_figures([bars, lines], tmp_path / "figures", ("svg",))
    assert [path.name for path in written] == ["out.svg", "a-b.svg"]
    assert all(path.parent == tmp_path / "figures" for path in written)
    assert list(Path(tmp_path).iterdir()) == [tmp_path / "figures"]
    assert "$\\frac{" in written[0].read_text()


def test_the_same_figures_every_time(tmp_path):
    lines = Lines("a", "t", "", "x", "y", (Series("s", (1.0, 2.0), (2.0, 3.0)),), log_y=True)
    once, again = (write_figures([lines], tmp_path / name, ("svg", "png")) for name in ("1", "2"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]
