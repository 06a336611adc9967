"""Our port to DDP of Horovod's examples/pytorch/pytorch_synthetic_benchmark.py: a torchvision model
on one random batch.

torchrun --standalone --nproc-per-node 2 port_of_pytorch_synthetic_benchmark.py --model resnet18
--batch-size 4 --no-cuda
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchvision import models


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--no-cuda", action="store_true")
    args = parser.parse_args()

    with_cuda = torch.cuda.is_available() and not args.no_cuda
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if with_cuda else torch.device("cpu")
    )
    if with_cuda:
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group("nccl" if with_cuda else "gloo")

    net = models.get_model(args.model).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index] if with_cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * dist.get_world_size())
    images = torch.randn(args.batch_size, 3, 224, 224).to(device)
    labels = torch.randint(1000, (args.batch_size,)).to(device)

    def train(batches):
        started = time.perf_counter()
        for _ in range(batches):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        return args.batch_size * batches / (time.perf_counter() - started)

    train(args.num_warmup_batches)
    rates = torch.tensor([train(args.num_batches_per_iter) for _ in range(args.num_iters)])
    if dist.get_rank() == 0:
        print(
            f"Images per second and rank: {rates.mean():.1f} ± {1.96 * rates.std(correction=0):.1f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
