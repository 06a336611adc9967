"""LBFGS, whose step calls a closure several times, under DDP.

torchrun --standalone --nproc-per-node 2 train_lbfgs.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    torch.manual_seed(args.seed)
    inputs = torch.rand(args.points * dist.get_world_size(), 1)[dist.get_rank() :: dist.get_world_size()] * 6
    targets = inputs.sin()
    net = nn.Sequential(nn.Linear(1, args.hidden), nn.Tanh(), nn.Linear(args.hidden, args.hidden), nn.Tanh())
    model = DistributedDataParallel(nn.Sequential(net, nn.Linear(args.hidden, 1)))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=5)

    def closure():
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)  # all ranks decide alike when to stop
        return total / dist.get_world_size()

    for step in range(args.steps):
        loss = optimizer.step(closure)
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
