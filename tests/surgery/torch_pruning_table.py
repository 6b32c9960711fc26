"""What Torch-Pruning makes of the networks of `complaint_networks`: the table of docs/surgery.md.

python -m venv /tmp/peer && /tmp/peer/bin/pip install --constraint constraints.txt torch torch-pruning==1.6.1
/tmp/peer/bin/python tests/surgery/torch_pruning_table.py
"""

import copy
import sys
import warnings
from importlib.metadata import version

import torch
import torch_pruning as tp
from complaint_networks import CONNECTIONS, OPERATIONS, Case, random_values
from torch import nn

REMOVERS = {
    nn.Conv2d: tp.prune_conv_out_channels,
    nn.Linear: tp.prune_linear_out_channels,
    nn.Embedding: tp.prune_embedding_out_channels,
    nn.MultiheadAttention: tp.prune_multihead_attention_out_channels,
}


def verdict(case: Case) -> str:
    """What happens when the unread channels are removed from the masked network."""
    network = random_values(case.network)
    with torch.no_grad():
        for name, mask in case.masks().items():
            network.get_submodule(name).weight.mul_(mask)
        expected = copy.deepcopy(network)(case.example)
    before = list(network.parameters())
    try:
        graph = tp.DependencyGraph().build_dependency(network, example_inputs=case.example)
        layer = network.get_submodule(case.layer)
        group = graph.get_pruning_group(layer, REMOVERS[type(layer)], idxs=case.channels)
        if not graph.check_pruning_group(group):
            return "refuses"
        group.prune()
        with torch.no_grad():
            given = network(case.example)
    except Exception as error:  # whatever it raises goes into the table
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:70]}"
    if given.shape != expected.shape:
        return f"output has shape {tuple(given.shape)} instead of {tuple(expected.shape)}"
    difference = float((given - expected).abs().max() / expected.abs().max())
    result = "same output" if difference < 1e-10 else f"output differs by {difference:.1%}"
    return result if len(list(network.parameters())) == len(before) else f"{result}, but what was tied is not any more"


def main() -> None:
    warnings.simplefilter("ignore")
    lines = [f"torch-pruning {version('torch-pruning')}, torch {torch.__version__}", ""]
    lines += [f"| {name} | {verdict(make())} |" for name, make in (CONNECTIONS | OPERATIONS).items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
