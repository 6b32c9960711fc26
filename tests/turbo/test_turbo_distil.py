"""The unpruned network as a teacher: what it adds to the loss, and that it alone is enough to keep what was learned."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from turbo_examples import QUICK, digits, residual, small_mlp

from bayesprune.baselines import BaselineSettings, run
from bayesprune.data import Split
from bayesprune.likelihoods import Classification, GaussianRegression, Likelihood
from bayesprune.turbo import Settings, SettingsError, compress
from bayesprune.turbo.training import Teacher, TrainStep, make_optimiser

TAUGHT = Settings(distil=0.3, distil_temperature=2.0)


def a_step(network, teacher, likelihood=None):
    optimiser = make_optimiser(network.parameters(), QUICK)
    return TrainStep(network, likelihood or Classification(), optimiser, teacher=teacher)


def test_the_loss_is_the_blend_of_labels_and_teacher():
    network, other = small_mlp(0), small_mlp(1)
    teacher = Teacher.from_settings(TAUGHT, "prune", network, other.state_dict())
    x, y = digits().train.x[:64], digits().train.y[:64]
    with torch.no_grad():
        own, taught = network(x), other(x)
    labels = functional.cross_entropy(own, y)
    soft = functional.kl_div((own / 2).log_softmax(1), (taught / 2).softmax(1), reduction="batchmean")
    torch.testing.assert_close(a_step(network, teacher)(x, y), 0.7 * labels + 0.3 * 4 * soft)


def test_a_teacher_stays_as_it_is_and_in_eval_mode():
    network = residual()
    network.train()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    teacher = Teacher.from_settings(TAUGHT, "prune", network, state)
    step = a_step(network, teacher)
    x, y = torch.randn(32, 3, 8, 8), torch.arange(32) % 4
    for _ in range(3):
        step(x, y)
    assert not teacher.network.training
    assert network.training
    for name, tensor in teacher.network.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    assert not torch.equal(network.stem.weight, state["stem.weight"])


def test_without_distillation_there_is_no_teacher():
    assert Teacher.from_settings(Settings(), "finetune", small_mlp(), small_mlp().state_dict()) is None


@pytest.mark.parametrize(("begins", "taught"), [("prune", {"prune", "finetune"}), ("finetune", {"finetune"})])
@pytest.mark.parametrize("phase", ["warmup", "prune", "finetune"])
def test_phases_before_the_teacher_begins_have_none(phase, begins, taught):
    settings = replace(TAUGHT, distil_from=begins)
    teacher = Teacher.from_settings(settings, phase, small_mlp(), small_mlp().state_dict())
    assert (teacher is not None) == (phase in taught)


def test_a_teacher_of_fine_tuning_changes_nothing_before_it():
    """Under one seed pruning goes the same way to the last bit, with or without a teacher that begins after it."""
    alone = compress(small_mlp(), digits(), settings=QUICK)
    taught = compress(small_mlp(), digits(), settings=replace(QUICK, distil=0.5, distil_from="finetune"))
    losses = [[(row["phase"], row["loss"]) for row in one.history] for one in (alone, taught)]
    before = [[row for row in one if row[0] != "finetune"] for one in losses]
    assert before[0] == before[1]
    assert losses[0] != losses[1]


def with_wrong_labels():
    """Digits whose training labels say nothing; those to look at are right."""
    given = digits()
    order = torch.randperm(len(given.train.y), generator=torch.Generator().manual_seed(0))
    return replace(given, train=Split(given.train.x, given.train.y[order]))


def trained():
    network = compress(small_mlp(), digits(), settings=replace(QUICK, prune_epochs=0, unit_strength=0.0)).network
    return network.requires_grad_(True)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_teacher_alone_keeps_what_was_learned(share):
    """Under labels that say nothing a network with a teacher stays as good as it was; without one it does not."""
    settings = replace(QUICK, warmup_epochs=0, distil=share)
    pruned = compress(trained(), with_wrong_labels(), settings=settings)
    lost = pruned.summary["accuracy_unpruned"] - pruned.summary["accuracy"]
    assert pruned.summary["nonzero_fraction"] < 0.9
    assert lost < 0.05 if share else lost > 0.5


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_baselines_learn_from_the_teacher_as_well(share):
    settings = BaselineSettings(
        warmup_epochs=0, prune_epochs=8, finetune_epochs=4, batch_size=64, target_nonzero=0.3, distil=share
    )
    pruned = run("magnitude", trained(), with_wrong_labels(), settings=settings)
    lost = pruned.summary["accuracy_unpruned"] - pruned.summary["accuracy"]
    assert lost < 0.05 if share else lost > 0.5


def test_an_untrained_network_is_no_teacher():
    settings = BaselineSettings(warmup_epochs=0, prune_epochs=2, finetune_epochs=0, distil=0.5)
    with pytest.raises(SettingsError, match="no trained one to learn from"):
        run("snip", small_mlp(), digits(), settings=settings)


class Unusual(Likelihood):
    """A likelihood of the user's own, without a divergence."""

    def negative_log_likelihood(self, output, target, variance=None):
        return functional.cross_entropy(output, target)

    def score(self, output, target):
        return {"accuracy": float((output.argmax(1) == target).double().mean())}


def test_a_likelihood_that_cannot_teach_is_named():
    settings = replace(QUICK, warmup_epochs=0, distil=0.5)
    with pytest.raises(ValueError, match="Unusual does not say how far two outputs are apart; leave distil at 0"):
        compress(small_mlp(), digits(), settings=settings, likelihood=Unusual())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"distil": 1.5}, "distil must be a share between 0 and 1, got 1.5"),
        ({"distil": -0.1}, "distil must be a share between 0 and 1, got -0.1"),
        ({"distil_temperature": 0.0}, "distil_temperature must be above 0, got 0.0"),
    ],
)
def test_shares_and_temperatures_that_cannot_be(values, message):
    for settings in (Settings, BaselineSettings):
        with pytest.raises(SettingsError, match=message):
            settings(**values)


def test_a_regression_learns_from_its_teacher():
    network, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    teacher = Teacher.from_settings(replace(TAUGHT, distil=1.0), "finetune", network, other.state_dict())
    x = torch.randn(16, 3)
    with torch.no_grad():
        expected = (other(x) - network(x)).square().sum() / (2 * 0.5 * 16)
    torch.testing.assert_close(a_step(network, teacher, GaussianRegression(0.5))(x, torch.zeros(16, 2)), expected)
