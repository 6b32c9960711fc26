"""Load every artefact of a folder, without the classes, run it on its inputs and write what it computes.

python load_artefacts.py FOLDER THREADS
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.utils import _pytree

from bayesprune import artefact

folder, threads = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
for path in sorted(folder.glob("*.safetensors")):
    network = artefact.load(path)
    assert not network.training
    # Tensors of load_file are not aligned as torch's own are, which changes last bits.
    inputs = {name: tensor.clone() for name, tensor in load_file(folder / "inputs" / path.name).items()}
    with torch.no_grad():
        leaves, _ = _pytree.tree_flatten(network(*(inputs[name] for name in sorted(inputs))))
    outputs = {str(i): leaf.contiguous() for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    texts = {str(i): str(leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
    save_file(outputs, folder / "outputs" / path.name, metadata=texts)
