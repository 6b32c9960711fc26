"""Batches and augmentation against loops over single images."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from bayesprune.data import Batches, DataError, FlipAndCrop, Split, batching
from bayesprune.data.augmentation import Placement


def numbered(count, device="cpu"):
    """Images (count, 2, 6, 5) whose first pixel tells them apart, labelled by their number."""
    x = torch.randn(count, 2, 6, 5, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, 0] = torch.arange(count)
    return Split(x.to(device), torch.arange(count, device=device))


@given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.integers(0, 5))
def test_an_epoch_holds_every_example_once(count, size, drop_last, seed):
    if drop_last and size > count:
        return
    split = numbered(count)
    batches = Batches(split, size, torch.Generator().manual_seed(seed), drop_last=drop_last)
    parts = list(batches)
    assert len(parts) == len(batches)
    seen = torch.cat([y for _, y in parts])
    assert len(set(seen.tolist())) == len(seen) == (count // size * size if drop_last else count)
    assert all(torch.equal(x, split.x[y]) for x, y in parts)


def test_epochs_differ_and_the_generator_state_brings_them_back():
    generator = torch.Generator().manual_seed(1)
    batches = Batches(numbered(50), 8, generator, FlipAndCrop(padding=2))
    list(batches)
    state = generator.get_state()
    second = list(batches)
    third = list(batches)
    assert not torch.equal(second[0][1], third[0][1])
    generator.set_state(state)
    again = list(batches)
    assert all(torch.equal(a, b) for one, two in zip(second, again, strict=True) for a, b in zip(one, two, strict=True))
    generator.set_state(state)
    rest = list(batches.epoch(start=4))
    assert len(rest) == 3
    assert all(torch.equal(a[0], b[0]) for a, b in zip(second[4:], rest, strict=True))
    assert torch.equal(next(iter(batches))[1], third[0][1])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("augment", [None, FlipAndCrop(padding=2)])
def test_batches_gathered_together_are_the_same(monkeypatch, drop_last, start, augment):
    def epoch():
        return list(Batches(numbered(50), 8, torch.Generator().manual_seed(0), augment, drop_last).epoch(start))

    alone, image_bytes = epoch(), numbered(1).x.numel() * 4
    for together in (2, 4, 100):
        monkeypatch.setattr(batching, "BYTES_AT_ONCE", {"cpu": together * 8 * image_bytes})
        assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(alone, epoch(), strict=True))


def test_global_random_state_is_not_touched():
    before = torch.get_rng_state()
    list(Batches(numbered(20), 6, torch.Generator().manual_seed(0), FlipAndCrop()))
    assert torch.equal(torch.get_rng_state(), before)


def test_without_generator_the_order_is_kept():
    assert torch.cat([y for _, y in Batches(numbered(10), 3)]).tolist() == list(range(10))


@given(st.integers(0, 7), st.integers(0, 100))
def test_flip_and_crop_is_pad_slice_and_flip_of_each_image(padding, seed):
    split = numbered(9)
    augment = FlipAndCrop(padding)
    placement = augment.draw(9, torch.Generator().manual_seed(seed), torch.device("cpu"))
    index = torch.randperm(9, generator=torch.Generator().manual_seed(seed + 1))
    result = augment.gather(split.x, index, placement)
    for place, image in enumerate(index.tolist()):
        padded = functional.pad(split.x[image], (padding,) * 4)
        top, left = placement.row[place] + padding, placement.column[place] + padding
        crop = padded[:, top : top + 6, left : left + 5]
        expected = crop.flip(2) if placement.flip[place] else crop
        assert torch.equal(result[place], expected)


def test_draws_cover_all_placements_evenly():
    drawn = FlipAndCrop(2).draw(50_000, torch.Generator().manual_seed(0), torch.device("cpu"))
    for shifts in (drawn.row, drawn.column):
        shares = torch.bincount(shifts + 2, minlength=5) / 50_000
        torch.testing.assert_close(shares, torch.full((5,), 0.2), atol=0.01, rtol=0)
    assert abs(drawn.flip.float().mean() - 0.5) < 0.01
    assert not FlipAndCrop(2, flip=False).draw(99, torch.Generator(), torch.device("cpu")).flip.any()


def test_zeros_come_in_even_where_the_image_is_not_finite():
    images = torch.full((1, 1, 2, 2), torch.inf)
    placement = Placement(torch.tensor([1]), torch.tensor([0]), torch.tensor([False]))
    shifted = FlipAndCrop(1).gather(images, torch.tensor([0]), placement)
    assert shifted[0, 0].tolist() == [[torch.inf, torch.inf], [0, 0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 11, "drop_last": True}, "at most the 10 examples"),
        ({"batch_size": 2, "augment": FlipAndCrop()}, "pass a torch.Generator"),
    ],
)
def test_bad_options_are_explained(options, words):
    with pytest.raises(DataError, match=words):
        Batches(numbered(10), **options)


def test_more_bad_options_are_explained():
    vectors = Split(torch.ones(4, 3), torch.ones(4))
    with pytest.raises(DataError, match="needs images"):
        Batches(vectors, 2, torch.Generator(), FlipAndCrop())
    with pytest.raises(DataError, match="padding must be 0 or more"):
        FlipAndCrop(padding=-1)
    with pytest.raises(DataError, match=r"start must be in 0\.\.2"):
        Batches(vectors, 2).epoch(start=3)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_batches_on_the_gpu_are_those_of_the_cpu_and_never_wait():
    options = {"augment": FlipAndCrop(2), "drop_last": True}
    on_cpu = Batches(numbered(64), 16, torch.Generator().manual_seed(0), **options)
    on_gpu = Batches(numbered(64, "cuda"), 16, torch.Generator().manual_seed(0), **options)
    expected, epoch = list(on_cpu), on_gpu.epoch()
    try:
        torch.cuda.set_sync_debug_mode("error")
        batches = list(epoch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for (x, y), (x_cpu, y_cpu) in zip(batches, expected, strict=True):
        assert torch.equal(x.cpu(), x_cpu)
        assert torch.equal(y.cpu(), y_cpu)


@pytest.mark.gpu
def test_a_cuda_graph_can_capture_the_gather():
    split, augment = numbered(64, "cuda"), FlipAndCrop(2)
    generator = torch.Generator().manual_seed(0)
    placements = [augment.draw(16, generator, torch.device("cuda")) for _ in range(2)]
    indices = [torch.randperm(64, generator=generator)[:16].cuda() for _ in range(2)]
    index, placement = indices[0].clone(), Placement(*(tensor.clone() for tensor in placements[0]))
    augment.gather(split.x, index, placement)  # warm-up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = augment.gather(split.x, index, placement)
    index.copy_(indices[1])
    for target, source in zip(placement, placements[1], strict=True):
        target.copy_(source)
    graph.replay()
    assert torch.equal(captured, augment.gather(split.x, indices[1], placements[1]))
