"""Measured accelerations as Markdown, beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bayesprune.reproduce.methods import OURS, UNPRUNED
from bayesprune.reproduce.tables import NONE, heading, made_with, table

TITLE: Final = "Acceleration (Fig. 9 of the paper)"
PLACES: Final = {"cpu": "CPU", "cuda": "GPU"}
MARK: Final = " †"  # of what an earlier run measured
TORCH: Final = ("eager", "compile", "cuda_graph")  # the ways in which nothing but torch runs a network
INTRODUCTION: Final = (
    "One forward pass of a batch, float32 (where TF32 is named, all may multiply in that), the median ± standard"
    " deviation of the rounds.  Every network runs in its best way of those that were measured, the dense one too;"
    " times faster: median of the dense network over that of the pruned one, with its 95 % interval.  The paper does"
    " not say in which way its networks ran: its ratio is that of its own machine and software."
)
ROOFLINE: Final = (
    "Over the bound: the time over max(FLOPs / peak, bytes / bandwidth).  FLOPs are 2 x the live MACs of the masked"
    " network, its nonzero weights times their uses (for `unpruned` all weights); bytes are those of input, output and"
    " weights (zeros left out), each moved once.  Peak and bandwidth are those that a GEMM and a copy reach on this"
    " machine, not the maker's."
)


def acceleration_markdown(entries: Sequence[Mapping[str, Any]]) -> str:
    """The whole file."""
    trial = next((one["epochs_scale"] for one in entries if one["epochs_scale"] != 1), 1.0)
    return "\n".join([*heading(TITLE, trial), *acceleration_sections(entries, "##")])


def acceleration_sections(entries: Sequence[Mapping[str, Any]], marks: str) -> list[str]:
    """All tables and sentences; marks: those of a heading."""
    lines = [INTRODUCTION, "", *summary_table(entries), "", ROOFLINE, ""]
    for entry in entries:
        lines += [f"{marks} {entry_title(entry)}", "", *methods_table(entry), ""]
        if OURS in entry["methods"]:
            lines += ["`ours` in every way:", "", *ways_table(entry), ""]
        lines += [*sentences(entry), *made_with([entry]), ""]
    return lines


def entry_title(entry: Mapping[str, Any]) -> str:
    """Network, data, device and batch."""
    return f"{entry['title']}, {place_of(entry)}, batch {entry['batch']:,}"


def place_of(entry: Mapping[str, Any]) -> str:
    """The device, and TF32 where it was allowed."""
    return PLACES[entry["device"]] + (", TF32" if entry.get("tf32") else "")


def summary_table(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for every measurement: `ours`, the fastest of the baselines, and the paper."""
    lines = []
    for entry in entries:
        methods = entry["methods"]
        others = {name: one for name, one in methods.items() if name != UNPRUNED and not name.startswith(OURS)}
        first = max(others, key=lambda name: float(others[name]["ratio"]), default=None)
        lines.append(
            [
                entry["title"],
                place_of(entry),
                times(methods[OURS]) if OURS in methods else NONE,
                _against_torch(entry),
                f"`{first}` {times(others[first])}" if first else NONE,
                f"{entry['paper']:.2f}" if entry.get("paper") else NONE,
            ]
        )
    head = ["network", "device", "`ours`, times faster", "than dense in torch alone", "fastest baseline", "paper"]
    return table(head, lines)


def dense_in_torch(entry: Mapping[str, Any]) -> float | None:
    """Milliseconds of the dense network in torch's best way, torch.compile too where it was measured."""
    dense = [
        float(one["milliseconds"]["median"])
        for one in entry["ways"]
        if one["network"] == UNPRUNED and one["runtime"] in TORCH and one["milliseconds"]
    ]
    return min(dense, default=None)


def _against_torch(entry: Mapping[str, Any]) -> str:
    """`ours` in its best way against the dense network in torch's best one, both of one run."""
    ours = entry["methods"].get(OURS)
    if ours is None:
        return NONE
    dense = ours["earlier"]["dense_torch_ms"] if "earlier" in ours else dense_in_torch(entry)
    return NONE if dense is None else f"{dense / ours['best']['milliseconds']['median']:.2f}"


def methods_table(entry: Mapping[str, Any]) -> list[str]:
    """Every method in its best way."""
    head = ["method", "accuracy %", "nonzero %", "MACs removed %", "live MACs", "best way", "ms", "passes"]
    lines = []
    for name, one in entry["methods"].items():
        shares = [_percent(one.get(key)) for key in ("accuracy", "nonzero_fraction", "macs_removed")]
        roofline, best = one["roofline"], one["best"]
        speed = [way_of(best), _ms(best["milliseconds"]), str(best["passes"]), times(one)]
        bound = f"{roofline['times_bound']:.1f} ({roofline['limit']}, {digits(roofline['bound_ms'])} ms)"
        lines.append([f"`{name}`{mark(one)}", *shares, f"{one['live_macs']:,}", *speed, bound])
    return table([*head, "times faster", "over the bound"], lines)


def ways_table(entry: Mapping[str, Any]) -> list[str]:
    """`ours` and the dense network in every runtime and layout, of one run."""
    earlier = entry["methods"][OURS].get("earlier", {})
    measured = earlier.get("dense_ways", ()) if earlier else entry["ways"]
    dense = {way_of(one): one for one in measured if one["network"] == UNPRUNED}
    lines = []
    for one in entry["ways"]:
        if one["network"] == OURS:
            before = dense.get(way_of(one))
            both = [_ms(way["milliseconds"]) if way and way["milliseconds"] else NONE for way in (before, one)]
            if one["error"]:
                lines.append([way_of(one), *both, f"not measured: {one['error']}", NONE, NONE])
                continue
            same = times(one["same_way"]) if one["same_way"] else NONE
            lines.append([way_of(one), *both, str(one["passes"]), times(one), same])
    head = [
        "way",
        "dense, ms",
        "`ours`, ms",
        "passes",
        "against dense in its best way",
        "against dense in the same way",
    ]
    return table(head, lines)


def sentences(entry: Mapping[str, Any]) -> list[str]:
    """What must be said, computed from the figures."""
    methods, lines = entry["methods"], []
    ours = methods.get(OURS)
    if ours is not None:
        if entry.get("paper"):
            where = "above" if ours["ratio"] > entry["paper"] else "below"
            lines.append(f"- `{OURS}` is {ours['ratio']:.2f} times faster, {where} the paper's {entry['paper']:.2f}")
        faster = [f"`{name}` {times(one)}" for name, one in methods.items() if one["ratio"] > ours["ratio"]]
        if faster:
            lines.append(f"- faster than `{OURS}`: {', '.join(faster)}")
    slower = [f"`{name}`" for name, one in methods.items() if name != UNPRUNED and one["interval"][0] <= 1]
    if slower:
        lines.append(f"- not surely faster than the dense network: {', '.join(slower)}")
    if beyond := [f"`{name}`" for name, one in methods.items() if one["roofline"]["times_bound"] < 1]:
        lines.append(f"- below the bound: {', '.join(beyond)}; the GEMM or the copy did not reach what the machine can")
    for reason in dict.fromkeys(entry["left_out"].values()):
        names = ", ".join(f"`{name}`" for name, why in entry["left_out"].items() if why == reason)
        lines.append(f"- left out: {names} ({reason})")
    if entry.get("padding_counts", True):
        lines.append("- FLOPs with products with the zeros of padding: the bound is too high where maps are small")
    lines += _earlier_runs(methods)
    machine = entry["machine"]
    lines.append(
        f"- dense: {entry['dense']}, seed {entry['seed']}, {entry['settings']['threads']} threads; peak "
        f"{machine['flops'] / 1e9:,.0f} GFLOP/s (GEMM), bandwidth {machine['bandwidth'] / 1e9:,.1f} GB/s (copy)"
    )
    return lines


def _earlier_runs(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is to be known of methods that were measured before the others."""
    runs: dict[tuple[float, bool], list[str]] = {}
    for name, one in methods.items():
        if origin := one.get("earlier"):
            runs.setdefault((origin["dense_ms"], origin["padding_counts"]), []).append(f"`{name}`")
    return [
        f"-{MARK} of an earlier run, whose dense network took {digits(dense)} ms: {', '.join(names)}"
        + ("; products with the zeros of padding count in their bound" if padding else "")
        for (dense, padding), names in runs.items()
    ]


def mark(one: Mapping[str, Any]) -> str:
    """A dagger behind what an earlier run measured."""
    return MARK if "earlier" in one else ""


def times(one: Mapping[str, Any]) -> str:
    """A ratio with its interval."""
    low, high = one["interval"]
    return f"{one['ratio']:.2f} ({low:.2f} to {high:.2f})"


def way_of(one: Mapping[str, Any]) -> str:
    """Runtime and layout; the usual layout is not named."""
    return f"{one['runtime']}, {one['layout']}" if one["layout"] != "contiguous" else str(one["runtime"])


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.2f}"


def _ms(milliseconds: Mapping[str, float]) -> str:
    return f"{digits(milliseconds['median'])} ± {digits(milliseconds['deviation'])}"


def digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:.0f}"
