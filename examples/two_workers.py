"""An ordinary PyTorch loop on several workers: torchrun --nproc-per-node 2 examples/two_workers.py --trainer gtc"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

from megahour import sync

OPTIONS = {"gtc": {"threshold": 4.0, "capacity": 1.0}}  # the other trainers have defaults for all options
parser = argparse.ArgumentParser()
parser.add_argument("--trainer", default="dense", help="dense, gtc, bmuf, gossip, local_sgd, ddp …")
parser.add_argument("--steps", type=int, default=200)
given = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
worker = sync.build(given.trainer, model, optimiser, **OPTIONS.get(given.trainer, {}))

truth = torch.arange(8.0)
torch.manual_seed(1 + dist.get_rank())  # other data for each worker
for _ in range(given.steps):
    inputs = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(inputs)[:, 0], inputs @ truth)
    loss.backward()
    worker.step()
    optimiser.zero_grad()
worker.finish()

error = float((model.weight[0].detach() - truth).abs().max())
print(f"worker {dist.get_rank()} of {dist.get_world_size()}: largest error of a weight {error:.4f}")
dist.destroy_process_group()
