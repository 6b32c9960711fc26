"""Splits, normalisation and users' own tensors."""

import hashlib
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from bayesprune.data import DataError, DataSet, Split, channel_statistics, load, read
from bayesprune.data.splitting import hold_out


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.floats(0, 0.95), st.integers(0, 9), st.booleans())
def test_hold_out_parts_the_examples_and_keeps_the_shares(labels, fraction, seed, stratify):
    y = torch.tensor(labels)
    stay, go = hold_out(y, fraction, torch.Generator().manual_seed(seed), stratify)
    assert sorted([*stay.tolist(), *go.tolist()]) == list(range(len(labels)))
    assert len(go) == min(round(fraction * len(labels)), len(labels) - 1)
    if stratify:
        for label in set(labels):
            share = (y == label).sum().item() * len(go) / len(labels)
            assert abs((y[go] == label).sum().item() - share) < 1
    again = hold_out(y, fraction, torch.Generator().manual_seed(seed), stratify)
    assert torch.equal(go, again[1])


def test_hold_out_of_equal_classes_is_exact_and_depends_on_the_seed():
    y = torch.arange(10).repeat(30)
    chosen = [hold_out(y, 0.1, torch.Generator().manual_seed(seed), True)[1] for seed in (0, 1)]
    for go in chosen:
        assert torch.bincount(y[go]).tolist() == [3] * 10
    assert not torch.equal(*chosen)


def test_ties_between_classes_are_broken_at_random():
    y = torch.arange(10).repeat(10)
    picked = [int(y[hold_out(y, 1, torch.Generator().manual_seed(s), True)[1]]) for s in range(60)]
    assert len(set(picked)) > 5


@pytest.mark.parametrize("amount", [-0.1, 1.0, 1.5, 20, -1, float("nan")])
def test_hold_out_refuses_impossible_amounts(amount):
    with pytest.raises(DataError, match=r"got .*; try 0\.1"):
        hold_out(torch.zeros(20, dtype=torch.long), amount, torch.Generator(), False)


def test_statistics_are_those_of_numpy():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (300, 3, 4, 5), np.uint8)
    for x in (torch.from_numpy(images), torch.from_numpy(images).double() + 1e6):
        mean, std = channel_statistics(x)
        np.testing.assert_allclose(mean, x.numpy().mean((0, 2, 3), dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(std, x.numpy().std((0, 2, 3), dtype=np.float64), rtol=1e-6)


def test_digits_parts_and_normalisation():
    data = load("digits", validation=0.1, seed=3)
    assert data.validation is not None
    assert [tuple(part.x.shape) for part in (data.train, data.validation, data.test)] == [
        (1293, 1, 8, 8),
        (144, 1, 8, 8),
        (360, 1, 8, 8),
    ]
    assert data.classes == tuple("0123456789")
    assert data.input_shape == (1, 8, 8)
    assert (data.source, data.seed) == ("scikit-learn", 3)
    assert data.train.x.mean().abs() < 1e-5
    assert abs(data.train.x.var(correction=0) - 1) < 1e-5
    assert data.train.x.dtype == torch.float32
    assert data.train.y.dtype == torch.int64
    raw = data.test.x * data.std[0] + data.mean[0]
    torch.testing.assert_close(raw.round(), raw, atol=1e-4, rtol=0)


def test_digits_test_part_is_the_same_for_every_seed_and_disjoint():
    first, second = load("digits", seed=0, validation=0), load("digits", seed=1, validation=0)
    assert first.validation is None
    assert len(first.train) == 1437
    assert torch.equal(first.test.x, second.test.x)
    everything = sorted(image.tobytes() for image in load_digits().images.astype(np.uint8))
    raw = read("digits").raw
    assert sorted(image.tobytes() for image in np.concatenate([raw.train.images, raw.test.images])) == everything
    shares = np.bincount(load_digits().target) * 360 / 1797
    assert (np.abs(np.bincount(raw.test.labels) - shares) < 1).all()
    # Published results depend on this split: it must never change.
    assert hashlib.md5(raw.test.images.tobytes()).hexdigest() == "d2844c6295f32686e5248dd64adeba34"


def test_digits_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        load("digits")


def test_statistics_come_from_the_training_part_alone(made_cifar, tmp_path):
    data = load(made_cifar.spec, made_cifar.write(tmp_path), validation=3, seed=5)
    assert data.validation is not None
    raw = read(made_cifar.spec, tmp_path).raw
    pixels = data.train.x * data.std[:, None, None] + data.mean[:, None, None]
    kept = {image.tobytes() for image in pixels.round().to(torch.uint8).numpy()}
    held = (data.validation.x * data.std[:, None, None] + data.mean[:, None, None]).round().to(torch.uint8)
    assert kept | {image.tobytes() for image in held.numpy()} == {image.tobytes() for image in raw.train.images}
    stay = np.stack([image for image in raw.train.images if image.tobytes() in kept]).astype(np.float64)
    assert len(stay) == 9
    np.testing.assert_allclose(data.mean, stay.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(data.std, stay.std((0, 2, 3)), rtol=1e-6)
    assert data.name == "cifar100"


def test_own_tensors_for_classification_are_copied():
    x, y = torch.randn(40, 3, 4, 4), torch.arange(40) % 4
    before = x.clone()
    data = DataSet.from_tensors(x, y, test=(x[:8], y[:8]), validation=0.25, classes=["a", "b", "c", "d"])
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 10, 8)
    assert torch.equal(x, before)
    assert data.classes == ("a", "b", "c", "d")
    plain = DataSet.from_tensors(x, y, test=0.5, validation=0, normalise=False)
    assert plain.validation is None
    assert all(any(torch.equal(row, other) for other in x) for row in plain.train.x)
    assert plain.classes == ("0", "1", "2", "3")


def test_own_tensors_for_regression():
    x, y = torch.randn(50, 2, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64)
    x[:, 1] = 7.0
    data = DataSet.from_tensors(x, y, test=10, validation=(x[:5], y[:5]))
    assert (len(data.train), len(data.test)) == (40, 10)
    assert data.classes == ()
    assert data.train.y.dtype == torch.float32
    assert data.train.y.shape == (40, 3)
    assert data.std[1] == 1
    assert data.train.x[:, 1].abs().max() == 0


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.ones(3, 2), torch.ones(4), "as many examples"),
        (torch.ones(3), torch.ones(3), r"x\[:, None\]"),
        (torch.ones(0, 2), torch.ones(0), "at least one"),
        (torch.tensor([[1.0], [float("nan")]]), torch.ones(2), "x must be finite, got 1"),
        (torch.ones(2, 1), torch.tensor([1.0, float("inf")]), "y must be finite"),
        (torch.ones(2, 1), torch.tensor([0, -1]), r"got -1\.\.0"),
        (torch.ones(2, 1), torch.tensor([0, 10**12]), r"in 0\.\.99999, got 0\.\.10{12}; .* y\.float\(\)"),
        (torch.ones(2, 1), torch.tensor([[0], [1]]), r"shape \(n,\)"),
        (torch.ones(2, 1, dtype=torch.complex64), torch.ones(2), "must be real"),
    ],
)
def test_own_tensors_that_cannot_work_are_explained(x, y, words):
    with pytest.raises(DataError, match=words):
        DataSet.from_tensors(x, y, test=(torch.ones(1, 1), y[:1]), validation=0)


def test_parts_that_do_not_agree_are_explained():
    x, y = torch.ones(6, 2), torch.arange(6)
    with pytest.raises(DataError, match="all parts must agree"):
        DataSet.from_tensors(x, y, test=(torch.ones(1, 3), y[:1]))
    with pytest.raises(DataError, match="all parts must agree"):
        DataSet.from_tensors(x, y, test=(x, y.float()))
    with pytest.raises(DataError, match=r"in 0\.\.1, got 0\.\.5"):
        DataSet.from_tensors(x, y, test=(x, y), classes=["a", "b"])
    with pytest.raises(DataError, match="as many"):
        Split(x, y[:2])


def test_maps_of_classes_and_arrays_that_are_no_tensors():
    x, y = torch.rand(20, 1, 4, 4), torch.randint(0, 3, (20, 4, 4))
    data = DataSet.from_tensors(x, y, test=0.2, classes=("a", "b", "c"))
    assert data.train.y.shape[1:] == (4, 4)
    assert len(data.train) + len(data.validation) + len(data.test) == 20
    with pytest.raises(DataError, match=r"or \(n, h, w\) for maps, got \(20, 3\); try y.argmax"):
        DataSet.from_tensors(x, torch.ones(20, 3, dtype=torch.int64), test=0.2)
    with pytest.raises(DataError, match=r"y must be a tensor, got ndarray; try torch.as_tensor\(y\)"):
        DataSet.from_tensors(x, y.numpy(), test=0.2)


def test_the_repr_is_short_and_holds_no_values():
    data = load("digits", validation=0.1, seed=3)
    counts = [len(part) for part in (data.train, data.validation, data.test)]
    assert sum(counts) == len(load_digits().target)
    train, validation, test = counts
    assert repr(data) == (
        f"DataSet('digits', inputs of shape (1, 8, 8), 10 classes, train={train}, validation={validation}, "
        f"test={test}, device=cpu, source='scikit-learn', seed=3)"
    )
    assert repr(data.train) == f"Split(x=({train}, 1, 8, 8) float32, y=({train},) int64, device=cpu)"
    points = DataSet.from_tensors(torch.randn(50, 3), torch.randn(50, 2), test=10, validation=0)
    assert "inputs of shape (3,), targets of shape (2,), train=40, validation=0, test=10" in repr(points)
    assert repr(points.test) == "Split(x=(10, 3) float32, y=(10, 2) float32, device=cpu)"
