"""Provenance says what a number depends on and nothing about whose machine it was."""

import json
import platform

import torch

from bayesprune.provenance import hardware, versions


def test_versions_and_hardware_are_plain_data_without_names() -> None:
    found = {**versions(), **hardware()}
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["threads"] == torch.get_num_threads()
    assert platform.node() not in json.dumps(found).split('"')
