"""What the paper says about robustness (Fig. 12), beside what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bayesprune.reproduce.averaging import Mean
from bayesprune.reproduce.methods import OURS

Records = Sequence[Mapping[str, Any]]

SNIP, VD, POLARIZATION = "snip", "variational-dropout", "polarization"
COMPARED: Final = (OURS, POLARIZATION, VD, SNIP)  # the methods that the paper's text speaks of
STRUCTURED, UNSTRUCTURED = (OURS, POLARIZATION), (VD, SNIP)
MODEL, DATA = "lenet5", "fashion-mnist"
DROP_AT, GAIN_AT = 0.05, 0.1  # the epsilons of which the paper gives figures
PRINTED_AT_DROP: Final = 24.86  # accuracy in % of `ours` at DROP_AT
PRINTED_DROPS: Final = {OURS: 72.1, SNIP: 73.4}  # of the clean accuracy, in %
PRINTED_GAINS: Final = {VD: 77.31, OURS: 56.26}  # points at GAIN_AT
HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be said"
AMONG_THESE: Final = f"{HOLDS} among these"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what was measured, and whether it holds here."""

    said: str
    measured: str
    verdict: str

    def as_dict(self) -> dict[str, str]:
        """Plain JSON data."""
        return asdict(self)


def claims(records: Records) -> list[Claim]:
    """Every claim that the networks have something to say about; none for other networks than the paper's."""
    found = [one for one in records if (one["model"], one["data"]) == (MODEL, DATA) and one["method"] in COMPARED]
    if not found:
        return []
    drops, gains = _by_method(found, _drop), _by_method(found, _gain)
    under = _by_method(found, lambda one: accuracy(one, "before", DROP_AT))
    result = [
        _printed(f"`ours` has {PRINTED_AT_DROP} % at ε = {DROP_AT}", under.get(OURS), "%"),
        _extreme(f"`snip` has the largest drop, {PRINTED_DROPS[SNIP]} % of its accuracy", drops, SNIP, max, "%"),
        _printed(f"`ours` drops by {PRINTED_DROPS[OURS]} % of its accuracy", drops.get(OURS), "%"),
        _structured(under),
    ]
    if not gains:
        return result
    most, least = "gains most after adversarial fine-tuning", "gains least after adversarial fine-tuning"
    return [
        *result,
        _improve(gains),
        _extreme(f"`{VD}` {most}, {PRINTED_GAINS[VD]} points at ε = {GAIN_AT}", gains, VD, max, "points"),
        _printed(f"`ours` gains {PRINTED_GAINS[OURS]} points at ε = {GAIN_AT}", gains.get(OURS), "points"),
        _extreme(f"`snip` {least}", gains, SNIP, min, "points"),
    ]


def accuracy(record: Mapping[str, Any], part: str, epsilon: float, attack: str = "fgsm") -> float | None:
    """In percent; None where that was not measured."""
    for one in record.get(part, {}).get(attack, ()):
        if one["epsilon"] == epsilon:
            return 100 * float(one["accuracy"])
    return None


def mean_of(values: Sequence[float]) -> Mean:
    """Mean and spread."""
    return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _drop(record: Mapping[str, Any]) -> float | None:
    attacked, clean = accuracy(record, "before", DROP_AT), 100 * float(record["before"]["clean"]["accuracy"])
    return None if attacked is None or not clean else 100 * (1 - attacked / clean)


def _gain(record: Mapping[str, Any]) -> float | None:
    before, after = accuracy(record, "before", GAIN_AT), accuracy(record, "after", GAIN_AT)
    return None if before is None or after is None else after - before


def _by_method(records: Records, value: Any) -> dict[str, Mean]:
    found = {}
    for method in COMPARED:
        values = [figure for one in records if one["method"] == method and (figure := value(one)) is not None]
        if values:
            found[method] = mean_of(values)
    return found


def _text(means: Mapping[str, Mean], unit: str) -> str:
    return ", ".join(f"`{method}` {_number(mean)}" for method, mean in means.items()) + f" {unit}"


def _number(mean: Mean) -> str:
    return f"{mean.mean:.2f}" + ("" if mean.spread is None else f" ± {mean.spread:.2f}")


def _printed(said: str, mean: Mean | None, unit: str) -> Claim:
    """A figure of the paper beside ours: whether it is met depends on the whole training, so no verdict."""
    return Claim(said, "not measured" if mean is None else f"{_number(mean)} {unit}", "–")


def _extreme(said: str, means: Mapping[str, Mean], expected: str, choose: Any, unit: str) -> Claim:
    if expected not in means or len(means) < 2:
        return Claim(said, _text(means, unit) if means else "not measured", UNKNOWN)
    first = choose(means, key=lambda method: means[method].mean)
    return Claim(said, _text(means, unit), _holds(means) if first == expected else f"{FAILS}: `{first}`")


def _holds(means: Mapping[str, Mean]) -> str:
    return HOLDS if len(means) == len(COMPARED) else AMONG_THESE


def _structured(means: Mapping[str, Mean]) -> Claim:
    said = "structured methods (`ours`, `polarization`) are more robust than unstructured ones (VD, SNIP)"
    upper, lower = ([means[one].mean for one in kind if one in means] for kind in (STRUCTURED, UNSTRUCTURED))
    text = f"at ε = {DROP_AT}: {_text(means, '%')}" if means else "not measured"
    if not upper or not lower:
        return Claim(said, text, UNKNOWN)
    return Claim(said, text, _holds(means) if min(upper) > max(lower) else FAILS)


def _improve(gains: Mapping[str, Mean]) -> Claim:
    said = f"all methods improve by adversarial fine-tuning (here at ε = {GAIN_AT})"
    return Claim(said, _text(gains, "points"), _holds(gains) if min(one.mean for one in gains.values()) > 0 else FAILS)
