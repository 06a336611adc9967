"""Two optimizers that step in turn: a generator and a discriminator of points on a circle, under DDP.

torchrun --standalone --nproc-per-node 2 train_gan.py
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    torch.manual_seed(args.seed)
    angles = torch.rand(8192) * 2 * torch.pi
    points = TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1))
    sampler = DistributedSampler(points, seed=args.seed)
    loader = DataLoader(points, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    generator = DistributedDataParallel(mlp(16, args.hidden, 2))
    discriminator = DistributedDataParallel(mlp(2, args.hidden, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=4e-4, betas=(0.5, 0.9))

    torch.manual_seed(1000 * args.seed + dist.get_rank())
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            made = generator(torch.randn(len(real), 16))
            judged = discriminator(torch.cat([real, made.detach()]))
            truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
            of_discriminator.zero_grad()
            loss = binary_cross_entropy_with_logits(judged, truth)
            loss.backward()
            of_discriminator.step()

            of_generator.zero_grad()
            discriminator.requires_grad_(False)
            fooled = binary_cross_entropy_with_logits(discriminator.module(made), torch.ones(len(real), 1))
            fooled.backward()
            discriminator.requires_grad_(True)
            of_generator.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: discriminator {loss.item():.4f}, generator {fooled.item():.4f}", flush=True)
    dist.destroy_process_group()


def mlp(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


if __name__ == "__main__":
    main()
