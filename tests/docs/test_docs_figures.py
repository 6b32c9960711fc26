"""The figures of speed in the README and on the page of fast execution are those of the JSON that is kept."""

import json
import re

import pytest
from markdown_pages import DOCS, ROOT

RUNTIME, README = (DOCS / "runtime.md").read_text(), (ROOT / "README.md").read_text()
BENCHMARKS, ACCELERATION = ROOT / "benchmarks" / "results", ROOT / "results" / "acceleration"
ROWS = {"LeNet-5": "lenet5", "AlexNet-small": "alexnet", "VGG-11": "vgg11"}
DENSE, OURS = "unpruned", "ours"


def tables(text):
    """The tables of a page: lists of rows, each a list of cells without emphasis; the first is the head."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [[cell.strip(" *") for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        yield [line for line in lines if not set("".join(line)) <= set("-")]


def table(text, *heads):
    (found,) = [one for one in tables(text) if set(heads) <= set(one[0])]
    return found


def three_digits(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:#.3g}".rstrip(".")


def ways(row, place, network):
    """The medians in milliseconds by runtime, in the best layout of each; of the run that measured `ours`."""
    entry = json.loads((ACCELERATION / f"{ROWS[row]}-{place}.json").read_text())
    measured = entry["methods"][OURS].get("earlier", {}).get("dense_ways") if network == DENSE else None
    found: dict[str, float] = {}
    for way in measured or entry["ways"]:
        if way["network"] == network and way["milliseconds"]:
            found[way["runtime"]] = min(found.get(way["runtime"], float("inf")), way["milliseconds"]["median"])
    return found


@pytest.mark.parametrize("row", ROWS)
def test_networks_on_the_cpu(row):
    dense, ours = ways(row, "cpu", DENSE), ways(row, "cpu", OURS)
    cells = next(line for line in table(RUNTIME, "engine dense", "engine shrunk")[1:] if line[0].startswith(row))
    figures = [one[runtime] for runtime in ("eager", "onnx", "native") for one in (dense, ours)]
    assert [cell.removesuffix(" (*)") for cell in cells[1:]] == [three_digits(one) for one in figures]

    cells = next(line for line in table(README, "ours, compressed")[1:] if line[0] == f"{row}, CPU")
    figures = [dense[runtime] for runtime in ("eager", "compile", "onnx", "native")]
    assert cells[1:6] == [three_digits(one) for one in (*figures, ours["native"])]
    assert cells[6].split(" / ") == [f"{one / ours['native']:#.2g}".rstrip(".") for one in figures]


@pytest.mark.parametrize(("row", "place"), [*((row, "cuda") for row in ROWS), ("VGG-11", "cuda-tf32")])
def test_networks_on_the_gpu(row, place):
    dense, ours = ways(row, place, DENSE), ways(row, place, OURS)
    in_torch = [min(one["eager"], one["cuda_graph"]) for one in (dense, ours)]
    name = f"{row}, TF32" if place.endswith("tf32") else row
    cells = next(line for line in table(RUNTIME, "Triton kernels shrunk")[1:] if line[0] == name)
    figures = [*in_torch, dense["compile"], *(one[way] for way in ("fused", "triton") for one in (dense, ours))]
    assert cells[1:] == [three_digits(one) for one in figures]


def test_single_layers():
    rows = {row["what"]: row for row in json.loads((BENCHMARKS / "sparse_layers-cpu.json").read_text())["rows"]}
    head, *lines = table(RUNTIME, "blocks of 16x16", "single weights")
    shown = {f"{line[0]}, {kind}": cell for line in lines for kind, cell in zip(head[1:], line[1:], strict=True)}
    assert shown == {what: f"{row['times_faster_than_dense']:.1f}" for what, row in rows.items()}
    slower = re.search(r"torch's CSR is ([\d.]+) to ([\d.]+) times slower.*its BSR ([\d.]+) to ([\d.]+)", RUNTIME)
    expected = []
    for name in ("csr", "bsr"):
        found = [row["slower"][name] for row in rows.values() if name in row["slower"]]
        expected += [min(found), max(found)]
    assert slower is not None
    assert [float(one) for one in slower.groups()] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_choices(device):
    found = json.loads((BENCHMARKS / f"never_slower-{device}.json").read_text())
    text = " ".join(RUNTIME.split())
    said = re.search(
        rf"never_slower-{device}\.json`[^)]*\) (\d+) of (\d+) choices were within 5 % of the best way, the worst "
        r"([\d.]+) % slower",
        text,
    )
    assert said is not None
    within, count, worst = int(said[1]), int(said[2]), float(said[3])
    assert (within, count) == (len(found["layers"]) - found["above_5_percent"], len(found["layers"]))
    assert worst == pytest.approx(100 * (found["worst"] - 1), abs=0.06)
