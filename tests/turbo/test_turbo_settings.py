"""Settings: what a file may say, and what it is told when it says something else."""

import json

import pytest
import yaml

from bayesprune.priors import PerKind, SharedPrecision
from bayesprune.turbo import PRESETS, Settings, SettingsError


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"learning_rat": 0.1}, "unknown setting 'learning_rat'; did you mean learning_rate"),
        ({"optimiser": "adamm"}, "optimiser must be one of adam, sgd, got 'adamm'"),
        ({"family": "meanfield"}, "family must be one of collapsed, mean_field"),
        ({"groups": "rows"}, "groups must be one of weight, tile"),
        ({"batch_size": 64.5}, "batch_size must be a whole number, got 64.5"),
        ({"batch_size": True}, "batch_size must be a whole number, got True"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"warmup_epochs": -1}, "warmup_epochs must be at least 0, got -1"),
        ({"learning_rate": "fast"}, "learning_rate must be a finite number, got 'fast'"),
        ({"learning_rate": 0}, "learning_rate must be above 0, got 0; try 3e-3"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"weight_strength": -1.0}, "weight_strength must be at least 0"),
        ({"weight_ramp": 0.5}, "weight_ramp must be 2 numbers, got 0.5"),
        ({"weight_ramp": [0.1, 0.2, 0.3]}, "weight_ramp must be 2 numbers"),
        ({"weight_ramp": [0.8, 0.2]}, "weight_ramp must be two growing fractions"),
        ({"augment": "yes"}, "augment must be true or false"),
        ({"target_macs": 25}, "target_macs must be a fraction between 0 and 1, such as 0.25, got 25"),
        ({"target_nonzero": 0.0}, "target_nonzero must be a fraction"),
        ({"max_accuracy_drop": -0.5}, "max_accuracy_drop must be at least 0 points"),
        ({"validation": 0}, "validation must be a fraction between 0 and 1, got 0; try 0.1"),
        ({"p01": 0.1}, "p01 and p10 go together"),
        ({"linear_groups": "rows"}, "linear_groups must be one of weight, tile, panel"),
        ({"linear_groups": 3}, "linear_groups must be one of weight, tile, panel"),
        ({"groups": None}, "groups must be one of weight, tile"),
        ({"learning_rate": None}, "learning_rate must be a finite number, got None"),
        ({"target_macs": "few"}, "target_macs must be a finite number, got 'few'"),
        ({"reorder_at": 40}, "reorder_at must be a fraction between 0 and 1, such as 0.25, got 40"),
        ({"reorder_at": True}, "reorder_at must be a finite number, got True"),
    ],
)
def test_what_cannot_be_is_refused(values, words):
    with pytest.raises(SettingsError) as error:
        Settings.from_dict(values)
    assert words in str(error.value)


def test_yaml_json_and_back():
    settings = Settings.from_dict(yaml.safe_load("learning_rate: 1e-3\nweight_ramp: [0.1, 0.9]\ntarget_macs: 25e-2"))
    assert settings.learning_rate == 1e-3
    assert settings.target_macs == 0.25
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    assert Settings.from_dict(Settings().as_dict()) == Settings()


def test_linear_layers_may_have_groups_of_their_own():
    assert Settings(groups="panel").prior().groups == SharedPrecision("panel")
    settings = Settings.from_dict({"groups": "kernel", "linear_groups": "panel", "tile": [4, 8], "reorder_at": "4e-1"})
    assert settings.prior().groups == PerKind(SharedPrecision("kernel", (4, 8)), SharedPrecision("panel", (4, 8)))
    assert settings.reorder_at == 0.4
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    assert Settings.from_dict({"linear_groups": None, "reorder_at": None}) == Settings()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_settings(name):
    Settings.from_dict(PRESETS[name]).prior()
