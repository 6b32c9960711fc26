"""Stopped after any epoch and resumed from a run folder: the same weights, masks, history and figures, to the bit."""

from dataclasses import replace

import pytest
import torch
from turbo_examples import QUICK, Recording, coloured_images, digits, residual, small_mlp, with_dropout, without_seconds

from bayesprune.data import Split
from bayesprune.likelihoods import GaussianRegression, LearnedNoise
from bayesprune.models import create
from bayesprune.runs import RunFolder
from bayesprune.turbo import Interrupted, compress

SHORT = replace(QUICK, warmup_epochs=2, prune_epochs=4, finetune_epochs=2, refresh_every=9)
CASES = {
    "adam": (small_mlp, digits, SHORT),
    "sgd": (small_mlp, digits, replace(SHORT, optimiser="sgd", learning_rate=0.05)),
    "paper": (
        *(small_mlp, digits),
        replace(SHORT, family="mean_field", p01=0.05, p10=0.1, random_start=True, restart=True, convention="complex"),
    ),
    "dropout": (with_dropout, digits, SHORT),
    "distilled": (small_mlp, digits, replace(SHORT, distil=0.7, groups="panel", reorder_at=0.5)),
    "residual": (residual, coloured_images, replace(SHORT, batch_size=48)),
    "augmented": (residual, coloured_images, replace(SHORT, batch_size=48, augment=True)),
    "budget": (small_mlp, digits, replace(SHORT, max_accuracy_drop=0.0, prune_epochs=5)),
    "panels": (small_mlp, digits, replace(SHORT, groups="panel", coupling=0.2, reorder_at=0.5)),
    "panels and budget": (
        *(residual, coloured_images),
        replace(SHORT, batch_size=48, groups="panel", reorder_at=0.6, max_accuracy_drop=0.0, target_nonzero=0.9),
    ),
    "collapse": (
        *(small_mlp, digits),
        replace(SHORT, weight_strength=1e6, weight_ramp=(0.0, 0.0), optimiser="sgd", learning_rate=0.01),
    ),
}
STABLE = ("accuracy", "accuracy_unpruned", "nonzero_fraction", "macs", "structure", "converged", "status", "notes")


class InFolder(Recording):
    """Rows and checkpoints go through a run folder."""

    def __init__(self, run, stop_after):
        super().__init__(stop_after)
        self.run = run

    def row(self, row):
        super().row(row)
        self.run.append(row)

    def checkpoint(self, state, *, must=False):
        self.run.save_checkpoint(state())


def run_in_pieces(folder, make, load, settings, every, likelihood=None):
    """Run at most `every` epochs at a time, each time as a fresh process would."""
    for piece in range(100):
        torch.manual_seed(settings.seed)
        network = make()
        torch.manual_seed(1234 + (piece > 0))  # a resumed process has another random state
        run = RunFolder.create(folder, {}) if piece == 0 else RunFolder.open(folder)
        with run:
            state = run.load_checkpoint()
            run.rewind(state["rows"] if state else 0)
            resume = (state, run.read_history()) if state else None
            options = {"likelihood": likelihood()} if likelihood else {}
            try:
                recorder = InFolder(run, every)
                result = compress(network, load(), settings=settings, recorder=recorder, resume=resume, **options)
            except Interrupted:
                continue
            assert run.read_history() == result.history
            return result, piece
    raise AssertionError("never finished")


def same(one, two):
    a, b = one.network.state_dict(), two.network.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for field in ("masks", "active", "expected_precision"):
        assert all(torch.equal(getattr(one, field)[n], getattr(two, field)[n]) for n in one.masks)
    assert without_seconds(one.history) == without_seconds(two.history)
    assert {k: one.summary.get(k) for k in STABLE} == {k: two.summary.get(k) for k in STABLE}


@pytest.mark.parametrize(("name", "every"), [*((name, 1) for name in CASES), ("adam", 3)])
def test_stopped_after_every_epoch_it_ends_the_same(tmp_path, name, every):
    make, load, settings = CASES[name]
    whole, pieces = run_in_pieces(tmp_path / "whole", make, load, settings, None)
    assert pieces == 0
    broken, pieces = run_in_pieces(tmp_path / "broken", make, load, settings, every)
    assert pieces >= (len(whole.history) - 1) // every
    same(whole, broken)


def test_learned_noise_is_resumed(tmp_path):
    def make():
        return create("mlp", (64,), 1, generator=torch.Generator().manual_seed(0), widths=(8,))

    def load():
        data = digits()
        split = {
            part: Split(getattr(data, part).x.flatten(1), getattr(data, part).y[:, None] / 10)
            for part in ("train", "validation", "test")
        }
        return replace(data, classes=(), **split)

    def likelihood():
        return GaussianRegression(LearnedNoise(0.5))

    whole, _ = run_in_pieces(tmp_path / "whole", make, load, SHORT, None, likelihood)
    broken, _ = run_in_pieces(tmp_path / "broken", make, load, SHORT, 1, likelihood)
    assert whole.summary["rmse"] == broken.summary["rmse"]
    same(whole, broken)


def test_a_finished_run_can_be_resumed_to_its_summary(tmp_path):
    recorder, network = Recording(), small_mlp()
    whole = compress(network, digits(), settings=SHORT, recorder=recorder)
    again = compress(small_mlp(), digits(), settings=SHORT, resume=(recorder.saved, recorder.rows))
    same(whole, again)
    assert again.summary["seconds"] == whole.summary["seconds"]


def test_a_wish_to_stop_that_comes_late_is_saved():
    """Between the decision to write no checkpoint and the question whether to stop, Ctrl-C may come."""

    class Late(Recording):
        def __init__(self):
            super().__init__()
            self.asked = 0
            self.musts = []

        def should_stop(self):
            self.asked += 1
            return self.asked >= 2

        def checkpoint(self, state, *, must=False):
            self.musts.append(must)

    recorder = Late()
    with pytest.raises(Interrupted):
        compress(small_mlp(), digits(), settings=SHORT, recorder=recorder)
    assert recorder.musts == [False, True]


def test_a_state_from_another_network_is_refused():
    recorder = Recording(stop_after=1)
    with pytest.raises(Interrupted):
        compress(small_mlp(), digits(), settings=SHORT, recorder=recorder)
    with pytest.raises(RuntimeError, match="size mismatch"):
        compress(small_mlp(widths=(8, 8)), digits(), settings=SHORT, resume=(recorder.saved, recorder.rows))


def test_every_random_state_is_in_the_checkpoint():
    recorder = Recording(stop_after=1)
    with pytest.raises(Interrupted):
        compress(with_dropout(), digits(), settings=SHORT, recorder=recorder)
    assert torch.equal(recorder.saved["torch_random"], torch.get_rng_state())
