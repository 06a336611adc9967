"""As tutorials write it: DDP over NCCL on GPUs, by ``mp.spawn``, in mixed precision; or its port to
CPUs (``--cpus``)."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def begin(gpu, given):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="8888")
    dist.init_process_group(
        "gloo" if given.cpus else "nccl", "env://", world_size=given.gpus, rank=gpu
    )


def network(given):
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    sync = given.sync and not given.cpus
    return nn.SyncBatchNorm.convert_sync_batchnorm(body) if sync else body


def loader():
    draw = torch.Generator().manual_seed(1)
    images = torch.randn(320, 3, 8, 8, generator=draw)
    data = TensorDataset(images, torch.randint(0, 10, (320,), generator=draw))
    return DataLoader(
        data, 16, sampler=DistributedSampler(data, shuffle=False), num_workers=1, pin_memory=True
    )


def train(gpu, given):
    begin(gpu, given)
    torch.manual_seed(0)
    if not given.cpus:
        torch.cuda.set_device(gpu)
        torch.cuda.manual_seed_all(0)
        torch.backends.cudnn.benchmark = True
    model = network(given) if given.cpus else network(given).cuda(gpu)
    model = DistributedDataParallel(model, device_ids=None if given.cpus else [gpu])
    optimizer = torch.optim.SGD(model.parameters(), given.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=given.half)
    for _ in range(50):
        for batch in loader():
            images, labels = (
                batch
                if given.cpus
                else (batch[0].to(gpu, non_blocking=True), batch[1].cuda(non_blocking=True))
            )
            with torch.autocast("cuda", enabled=given.half):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--lr", type=float, default=0.05)
    for flag in ("--cpus", "--half", "--sync"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args()
    if given.cpus:
        given.gpus = 2
    mp.spawn(train, args=(given,), nprocs=given.gpus)
