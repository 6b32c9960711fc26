"""Bars of the measured times (paper Fig. 9)."""

from typing import Any

from bayesprune.report.charts import Bar, BarGroup, Bars
from bayesprune.report.findings import DENSE, ROUNDED, SHRUNK, device_in_words, milliseconds
from bayesprune.report.reading import Run, number

RUNTIMES = {
    "eager": "PyTorch",
    "compile": "torch.compile",
    "onnx": "ONNX Runtime",
    "native": "our engine",
    "cuda_graph": "CUDA graph",
    "fused": "CUDA graph, fused",
    "triton": "our Triton kernels",
}


def latency_bars(run: Run, name: str = "latency") -> Bars | None:
    """The median of every network in every runtime, in its better layout; None where nothing was measured."""
    if run.latency is None:
        return None
    best: dict[tuple[int, str, str], tuple[float, dict[str, Any]]] = {}
    networks: dict[str, None] = {}
    for row in run.latency["rows"]:
        if not isinstance(row, dict) or not isinstance(row.get("milliseconds"), dict):
            continue
        median, batch = number(row["milliseconds"], "median"), number(row, "batch")
        if median is None or batch is None:
            continue
        key = (int(batch), str(row.get("runtime")), str(row.get("network")))
        networks[key[2]] = None
        if key not in best or median < best[key][0]:
            best[key] = (median, row)
    if not best:
        return None
    order = list(networks)
    groups = []
    for batch in sorted({key[0] for key in best}):
        bars = []
        for (_, runtime, network), (median, row) in sorted(
            ((key, value) for key, value in best.items() if key[0] == batch),
            key=lambda item: (_runtime_place(item[0][1]), order.index(item[0][2])),
        ):
            colour = order.index(network)
            tip = (
                f"{_network(network)} in {RUNTIMES.get(runtime, runtime)}, {row.get('layout')}: median "
                f"{milliseconds(median)}, 90 % of the rounds within {_p90(row)}"
            )
            bars.append(Bar(RUNTIMES.get(runtime, runtime), median, colour, milliseconds(median), tip))
        groups.append(BarGroup(f"batch {batch}", tuple(bars)))
    caption = f"Median time of a batch on {device_in_words(run.latency) or 'the machine that measured it'}, networks in"
    caption += " turns, milliseconds; shorter is better.  Every batch size has its own scale."
    legend = tuple(_network(one) for one in order)
    return Bars(name, "Time of a batch", caption, "milliseconds", tuple(groups), legend)


def _network(name: str) -> str:
    if name == DENSE:
        return "dense"
    if name.startswith(ROUNDED):
        return f"compressed, widths in multiples of {name.removeprefix(ROUNDED)}"
    return "compressed" if name == SHRUNK else name


def _p90(row: dict[str, Any]) -> str:
    value = number(row["milliseconds"], "p90")
    return "unknown" if value is None else milliseconds(value)


def _runtime_place(runtime: str) -> int:
    return list(RUNTIMES).index(runtime) if runtime in RUNTIMES else len(RUNTIMES)
