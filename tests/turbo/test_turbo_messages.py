"""What a compression says about the messages between Module A and Module B, checked against the definitions."""

import json
from dataclasses import replace

import pytest
import torch
from run_processes import SMALL_RUN, Processes
from turbo_examples import QUICK, Recording, coloured_images, digits, residual, small_mlp

from bayesprune.runs import read_history, read_messages
from bayesprune.turbo import Compressor, MessageRecorder, compress
from bayesprune.turbo.loop import Silent
from bayesprune.turbo.windows import message_windows

SHORT = replace(QUICK, warmup_epochs=1, prune_epochs=3, finetune_epochs=1)
SHORTER = ("--set", "warmup_epochs=1", "--set", "prune_epochs=2", "--set", "finetune_epochs=0", "--no-bench")
SETTINGS = {
    "independent": {},
    "coupled": {"coupling": 0.4, "random_start": True},
    "paper": {"family": "mean_field", "p01": 0.05, "p10": 0.1, "random_start": True, "restart": True},
    "tiles": {"groups": "tile", "tile": (3, 3), "coupling": 0.2},
    "matrix": {"layout": "matrix", "coupling": 0.3},
}


class Wanting(Recording):
    """A recorder that wants the messages."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def messages(self, messages):
        self.sent.append(messages())


def probabilities(compressor, logits):
    return {
        weight.name: torch.sigmoid(compressor.settings.prior().groups.to_weights(one, weight.weight.shape).double())
        for weight, one in zip(compressor.prior.weights, logits, strict=True)
    }


def shaken(compressor):
    """Move the weights, as an epoch of training would."""
    with torch.no_grad():
        for weight in compressor.prior.weights:
            weight.weight.add_(torch.randn_like(weight.weight), alpha=0.1)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "tiles"])
def test_changes_are_those_of_the_probabilities(name):
    torch.manual_seed(0)
    options = replace(QUICK, **SETTINGS[name])
    compressor = Compressor(residual(), torch.zeros(2, 3, 8, 8), examples=200, epochs=3, settings=options)
    received = probabilities(compressor, compressor.prior.prior_logits)
    sent = {layer: torch.full_like(p, 0.5) for layer, p in received.items()}  # nothing was said yet
    for _ in range(3):
        shaken(compressor)
        update = compressor.exchange()
        now_received = probabilities(compressor, compressor.prior.prior_logits)
        now_sent = probabilities(compressor, compressor.prior.evidence_logits)
        for layer in received:
            changed = (now_received[layer] - received[layer]).abs().mean().item()
            assert update.message_change_by_layer[layer] == pytest.approx(changed, rel=1e-4, abs=1e-7)
            changed = (now_sent[layer] - sent[layer]).abs().mean().item()
            assert update.evidence_change_by_layer[layer] == pytest.approx(changed, rel=1e-4, abs=1e-7)
        weights = {w.name: w.weight.numel() for w in compressor.prior.weights}
        mean = sum(update.message_change_by_layer[n] * count for n, count in weights.items()) / sum(weights.values())
        assert update.change == pytest.approx(mean, rel=1e-4, abs=1e-7)
        received, sent = now_received, now_sent
    assert max(update.evidence_change_by_layer.values()) > 0
    assert (max(update.message_change_by_layer.values()) > 0) == (name != "independent")


@pytest.mark.parametrize("name", SETTINGS)
def test_windows_show_the_first_rows_and_columns_of_the_weights(name):
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 5, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(5 * 36, 70),
        torch.nn.Linear(70, 4),
    )
    options = replace(QUICK, **SETTINGS[name])
    compressor = Compressor(network, torch.zeros(2, 3, 8, 8), examples=200, epochs=3, settings=options)
    shaken(compressor)
    masks, prior = compressor.exchange().masks, compressor.prior
    found = message_windows(prior, 3)
    assert found.iteration == 3
    assert {layer: one.shape for layer, one in found.layers.items()} == {"0": (5, 27), "3": (70, 180), "4": (4, 70)}
    posterior_logits = [p.active_logit for p in prior.posteriors()]
    for part, logits in (
        ("from_supports", prior.prior_logits),
        ("to_supports", prior.evidence_logits),
        ("posterior", posterior_logits),
    ):
        for layer, wanted in probabilities(compressor, logits).items():
            window = getattr(found.layers[layer], part)
            rows, columns = window.shape
            assert (rows, columns) == tuple(min(64, size) for size in found.layers[layer].shape)
            assert window.dtype == torch.uint8
            for i, j in ((0, 0), (rows - 1, columns - 1), (1, 2), (rows // 2, columns // 3)):
                p = wanted[i].flatten()[j].item()
                assert abs(window[i, j].item() - 255 * p) <= 0.5001
    for layer, mask in masks.items():  # closing over dead units may only kill more
        window = found.layers[layer].posterior
        live = mask.flatten(1)[: window.shape[0], : window.shape[1]]
        assert bool((window[live] >= 127).all())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_posterior_is_both_messages_together(name):
    """q(s) is the product of v_{h->s} and v_{eta->s} (paper (17)); Module A's evidence is new after restarts."""
    torch.manual_seed(0)
    options = replace(QUICK, **SETTINGS[name])
    compressor = Compressor(small_mlp(), torch.zeros(2, 1, 8, 8), examples=200, epochs=3, settings=options)
    compressor.exchange()
    prior = compressor.prior
    for posterior, received, sent in zip(prior.posteriors(), prior.prior_logits, prior.evidence_logits, strict=True):
        if options.family == "collapsed":
            torch.testing.assert_close(posterior.active_logit, received + sent, rtol=1e-4, atol=1e-4)


def test_rows_of_outer_iterations_have_the_changes_of_every_layer():
    recorder = Wanting()
    result = compress(small_mlp(), digits(), settings=replace(SHORT, coupling=0.3), recorder=recorder)
    for row in result.history:
        by_layer = [key for key in row if key.endswith("_by_layer")]
        assert by_layer == (["message_change_by_layer", "evidence_change_by_layer"] if row["phase"] == "prune" else [])
        for key in by_layer:
            assert list(row[key]) == ["fc1", "fc2", "out"]
            assert all(0 <= change <= 1 for change in row[key].values())
    json.dumps(result.history)
    assert [sent.iteration for sent in recorder.sent] == [1, 2, 3]


def test_messages_are_made_for_recorders_that_want_them_only(monkeypatch):
    made = []
    monkeypatch.setattr("bayesprune.turbo.loop.message_windows", lambda prior, iteration: made.append(iteration))
    for recorder in (None, Recording(), Silent()):
        assert not isinstance(recorder, MessageRecorder)
        compress(small_mlp(), digits(), settings=SHORT, recorder=recorder)
    assert made == []
    compress(small_mlp(), digits(), settings=SHORT, recorder=Wanting())
    assert made == [1, 2, 3]


def test_recording_changes_nothing():
    plain = compress(residual(), coloured_images(), settings=replace(SHORT, batch_size=48))
    watched = compress(residual(), coloured_images(), settings=replace(SHORT, batch_size=48), recorder=Wanting())
    assert all(torch.equal(plain.active[name], watched.active[name]) for name in plain.active)
    one, two = plain.network.state_dict(), watched.network.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_checkpoint_of_an_earlier_version_goes_on():
    def fresh():
        return Compressor(small_mlp(), torch.zeros(2, 1, 8, 8), examples=200, epochs=3, settings=QUICK)

    compressor = fresh()
    compressor.exchange()
    state = compressor.state()
    del state["prior"]["evidence_logits"]
    other = fresh()
    other.load(state)
    assert all(bool((evidence == 0).all()) for evidence in other.prior.evidence_logits)
    assert other.exchange().change == compressor.exchange().change


def test_a_run_folder_holds_the_messages_of_one_process(tmp_path):
    """Two ranks, one writer: a file for every pruning epoch, and nothing else."""
    processes = Processes(tmp_path)
    try:
        codes, output = processes.run("cli", "compress", *SMALL_RUN, *SHORTER, "--name", "two", world=2)
    finally:
        processes.close()
    assert codes == [0, 0], output
    folder = tmp_path / "runs" / "two"
    found = read_messages(folder)
    assert [one.iteration for one in found] == [1, 2]
    assert sorted(path.name for path in (folder / "messages").iterdir()) == [f"000{i}.safetensors" for i in (1, 2)]
    rows = [row for row in read_history(folder) if row["phase"] == "prune"]
    assert len(rows) == 2
    assert all(list(row["message_change_by_layer"]) == list(found[0].layers) for row in rows)
    assert "_by_layer" not in output
    assert "by layer" not in output
