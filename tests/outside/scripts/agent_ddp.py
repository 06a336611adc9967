"""A small script under DDP over Gloo, as a user writes it; it knows nothing of Ringside."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(4096, 20), torch.randint(0, 4, (4096,)))
    sampler = DistributedSampler(dataset, seed=3)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    body = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = DistributedDataParallel(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    try:
        for epoch in range(int(os.environ.get("EPOCHS", "1000"))):
            sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                schedule.step()
    finally:
        dist.destroy_process_group()
        print("left the group", flush=True)


main()
