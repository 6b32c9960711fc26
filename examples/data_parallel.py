"""Your own loop and your own optimiser on several processes: DDP, SGD with momentum, and a `Compressor`.

    torchrun --nproc-per-node 2 examples/data_parallel.py

Every process has a compressor of its own.  They see the same weights, so they say the same, and nothing has to be sent.
Half a minute on two cores.
"""

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from bayesprune import Compressor, Settings, models, save, shrink
from bayesprune.data import load
from bayesprune.turbo import apply_masks

distributed.init_process_group("gloo")
rank, processes = distributed.get_rank(), distributed.get_world_size()

torch.manual_seed(0)  # the same first weights and the same order of examples everywhere
data = load("digits")
network = models.create("mlp", data.input_shape)
settings = Settings(optimiser="sgd", unit_strength=1000, weight_strength=2, weight_start=0.01, refresh_every=20)
compressor = Compressor(network, data.train.x[:2], examples=len(data.train), epochs=40, settings=settings)
parallel = DistributedDataParallel(network)  # after the compressor, which takes the network itself
optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [40], gamma=0.2)  # lower for fine-tuning
masks: dict[str, Tensor] = {}

for epoch in range(1, 56):  # 40 to prune, 15 to fine-tune
    for batch in torch.randperm(len(data.train)).split(64):
        mine = batch[rank::processes]
        loss = functional.cross_entropy(parallel(data.train.x[mine]), data.train.y[mine])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if not masks:
            compressor.decay(float(schedule.get_last_lr()[0]))  # after the optimiser's step, with its learning rate
        apply_masks(network, masks)
    if epoch <= 40:
        size = compressor.update().size
    if epoch == 40:
        masks = compressor.finish()
    schedule.step()

if rank == 0:
    small = shrink(network, masks, data.train.x[:2]).eval()
    save("small.safetensors", small)
    with torch.no_grad():
        accuracy = (small(data.test.x).argmax(1) == data.test.y).float().mean()
    print(f"{processes} processes, accuracy {accuracy:.2%}")
    print(f"{size.nonzero_fraction:.1%} of the weights, {1 - size.macs_fraction:.1%} of the MACs removed")
distributed.destroy_process_group()
