"""The robustness of several networks as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bayesprune.reproduce.robustness_claims import Records, accuracy, claims, mean_of
from bayesprune.reproduce.tables import NONE, heading, made_with, table

PARTS: Final = {"before": "as it is", "after": "adversarial"}
Column = tuple[str, str, str, float]  # title, and the figure: its kind, and the key and value that pick it


def robustness_title(records: Records) -> str:
    """Networks and data."""
    names = list(dict.fromkeys(one["model"] for one in records if one["model"]))
    return f"Robustness: {', '.join(names) or 'networks'} on {records[0]['data']}"


def parts(records: Records) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    """Record, part and its figures, of every line."""
    for record in records:
        for part in PARTS:
            if part in record:
                yield record, part, record[part]


def robustness_markdown(records: Records) -> str:
    """The whole file."""
    return "\n".join([*heading(robustness_title(records)), *robustness_sections(records, "##")]) + "\n"


def robustness_sections(records: Records, marks: str) -> list[str]:
    """All tables and sentences; marks: those of a heading."""
    lines = [_introduction(records), "", *networks_table(records), ""]
    if any(count > 1 for count in _methods(records).values()):
        lines += [f"{marks} Means of the methods", "", *methods_table(records), ""]
    if said := claims(records):
        head = ["the paper says", "measured here", "it"]
        lines += [f"{marks} Beside the paper", "", *table(head, ([c.said, c.measured, c.verdict] for c in said)), ""]
    if remarks := _remarks(records):
        lines += [*remarks, ""]
    return [*lines, f"{marks} How it was made", "", *_made(records)]


def networks_table(records: Records) -> list[str]:
    """A line for every network, and one after adversarial fine-tuning."""
    shown = columns(records[0]["settings"])
    head = ["network", "method", "training", "clean %", *(title for title, *_ in shown), "ECE %", "NLL"]
    lines = []
    for record, part, found in parts(records):
        cells = [_percent(figure_of(found, column)) for column in shown]
        clean = found["clean"]
        ends = [_percent(clean["ece"]), f"{clean['nll']:.3f}" if clean["nll"] is not None else NONE]
        about = [record["name"], f"`{record['method']}`", PARTS[part]]
        lines.append([*about, _percent(clean["accuracy"]), *cells, *ends])
    return table(head, lines)


def methods_table(records: Records) -> list[str]:
    """Mean ± standard deviation over the networks of each method."""
    shown = columns(records[0]["settings"])
    lines = []
    for method, count in _methods(records).items():
        mine = [one for one in records if one["method"] == method]
        for part, title in PARTS.items():
            found = [one[part] for one in mine if part in one]
            if not found:
                continue
            rows = [[one["clean"]["accuracy"] for one in found]]
            rows += [[figure_of(one, column) for one in found] for column in shown]
            rows.append([one["clean"]["ece"] for one in found])
            lines.append([f"`{method}`", str(count), title, *map(_mean, rows)])
    head = ["method", "networks", "training", "clean %", *(title for title, *_ in shown), "ECE %"]
    return table(head, lines)


def columns(settings: Mapping[str, Any]) -> list[Column]:
    """All figures but the clean ones."""
    kinds = (
        ("FGSM", "fgsm", "epsilon", "epsilons"),
        ("PGD", "pgd", "epsilon", "pgd_epsilons"),
        ("noise", "noise", "sigma", "noise"),
    )
    return [
        (f"{title} {value:g}", kind, key, value)
        for title, kind, key, name in kinds
        for value in settings[name]
        if value
    ]


def figure_of(found: Mapping[str, Any], column: Column) -> float | None:
    """The accuracy of a part under a kind of harm; None where that was not measured."""
    _, kind, key, value = column
    return next((one["accuracy"] for one in found[kind] if one[key] == value), None)


def _methods(records: Records) -> dict[str, int]:
    methods = [one["method"] for one in records]
    return {method: methods.count(method) for method in dict.fromkeys(methods)}


def _introduction(records: Records) -> str:
    s = records[0]["settings"]
    lines = (
        f"Accuracy on all {records[0]['before']['examples']:,} test images, in %.  FGSM and PGD move every pixel"
        f" (0 is black, 1 white) by at most the number given, against the network itself; PGD in {s['pgd_steps']} steps"
        " from a random start.  Noise is Gaussian with that standard deviation.  Images stay within 0 and 1."
        f"  ECE: expected calibration error of the clean images, {s['bins']} bins, without a temperature."
    )
    adversarial = next((one["adversarial"] for one in records if "after" in one), None)
    if adversarial is None:
        return lines
    least, most = adversarial["epsilon"]
    strength = f"ε = {most:g}" if least == most else f"ε random between {least:g} and {most:g}"
    return (
        f"{lines}  Adversarial: after {adversarial['epochs']} epochs of fine-tuning on training images, half of each"
        f" batch clean, half moved by FGSM ({strength}) against the network of that step; dead weights stay zero."
    )


def _remarks(records: Records) -> list[str]:
    """What must be said about the figures, computed from them."""
    lines = []
    for record, part, found in parts(records):
        name = f"{record['name']} ({PARTS[part]})"
        for one in found["pgd"]:
            single = accuracy(record, part, one["epsilon"])
            if single is not None and 100 * one["accuracy"] > single + 0.005:
                lines.append(
                    f"- {name}: PGD leaves {100 * one['accuracy']:.2f} %, FGSM only {single:.2f} % at ε = "
                    f"{one['epsilon']:g}; PGD should be the stronger one, so its gradients mislead it"
                )
        stated = record["facts"].get("accuracy") if part == "before" else None
        if isinstance(stated, int | float) and abs(stated - found["clean"]["accuracy"]) > 0.002:
            lines.append(
                f"- {name}: its file says {100 * stated:.2f} %, measured {100 * found['clean']['accuracy']:.2f} %; "
                "other data, or data that were normalised in another way"
            )
    return lines


def _made(records: Records) -> list[str]:
    found = list(parts(records))
    seconds = sum(one["seconds"] for _, _, one in found)
    training = sum(row["seconds"] for record in records for row in record.get("history", ()))
    lines = [f"- {seconds:.0f} s of measuring" + (f", {training:.0f} s of fine-tuning" if training else "")]
    lines.append(f"- seed {records[0]['settings']['seed']}")
    adversarial = next((one["adversarial"] for one in records if "after" in one), None)
    if adversarial:
        texts = (f"{key} {value}" for key, value in adversarial.items() if key not in ("epsilon", "epochs"))
        lines.append(f"- fine-tuning: {', '.join(texts)}")
    return [*lines, *made_with(one for _, _, one in found)]


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}"


def _mean(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return NONE
    mean = mean_of(known)
    return f"{mean.mean:.2f}" + ("" if mean.spread is None else f" ± {mean.spread:.2f}")
