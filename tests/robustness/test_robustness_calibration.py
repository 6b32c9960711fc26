"""The calibration error against a slow loop and cases with a known answer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesprune.robustness import expected_calibration_error, reliability


def slow(probabilities, labels, bins):
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        members = []
        for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
            top = max(row)
            if low < top <= high or (number == 0 and top == 0):
                members.append((top, row.index(top) == label))
        if members:
            confidence = sum(top for top, _ in members) / len(members)
            accuracy = sum(right for _, right in members) / len(members)
            total += len(members) / len(labels) * abs(confidence - accuracy)
    return total


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60), classes=st.integers(1, 6), bins=st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_the_error_is_that_of_a_slow_loop(seed, n, classes, bins):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn((n, classes), generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (n,), generator=generator)
    got = expected_calibration_error(logits.softmax(1), labels, bins)
    assert got == pytest.approx(slow(logits.softmax(1), labels, bins), abs=1e-12)


def test_known_cases():
    sure = torch.eye(3)[torch.tensor([0, 1, 2, 0])]
    assert expected_calibration_error(sure, torch.tensor([0, 1, 2, 0])) == 0
    assert expected_calibration_error(sure, torch.tensor([1, 2, 0, 1])) == 1
    assert expected_calibration_error(sure, torch.tensor([0, 1, 0, 1])) == 0.5
    four_of_five = torch.tensor([[0.8, 0.2]]).repeat(5, 1)
    assert expected_calibration_error(four_of_five, torch.tensor([0, 0, 0, 0, 1])) == pytest.approx(0, abs=1e-7)
    assert expected_calibration_error(four_of_five, torch.tensor([1, 1, 1, 1, 1])) == pytest.approx(0.8)


def test_two_bins_do_not_cancel_each_other():
    probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64)
    labels = torch.tensor([1, 0])  # too sure of the one, not sure enough of the other
    assert expected_calibration_error(probabilities, labels, 15) == pytest.approx((0.9 + 0.4) / 2)
    assert expected_calibration_error(probabilities, labels, 1) == pytest.approx(0.75 - 0.5)


def test_the_curve_has_every_example_once_and_its_edges():
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn((500, 4), generator=generator)).softmax(1)
    labels = torch.randint(4, (500,), generator=generator)
    curve = reliability(probabilities, labels, 10)
    assert sum(one["count"] for one in curve) == 500
    assert all(one["from"] < one["confidence"] <= one["to"] for one in curve)
    right = sum(one["count"] * one["accuracy"] for one in curve) / 500
    assert right == pytest.approx(float((probabilities.argmax(1) == labels).double().mean()))


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="bins must be at least 1"):
        expected_calibration_error(torch.ones(2, 2) / 2, torch.tensor([0, 1]), 0)
    with pytest.raises(ValueError, match="needs probabilities"):
        expected_calibration_error(torch.ones(2, 2) / 2, torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="needs probabilities"):
        expected_calibration_error(torch.ones(0, 2), torch.zeros(0, dtype=torch.int64))
