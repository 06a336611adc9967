"""Our port to DDP of Horovod's examples/pytorch/pytorch_mnist.py: the flags, the seed and the order
of data are its own.

torchrun --standalone --nproc-per-node 2 port_of_pytorch_mnist.py --data-dir DIR --no-cuda
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


class Net(nn.Module):
    """The two convolutions and two linear layers that the original's parameters are named after."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, images):
        hidden = F.max_pool2d(self.conv1(images), 2).relu()
        hidden = F.max_pool2d(self.conv2_drop(self.conv2(hidden)), 2).relu()
        hidden = self.fc1(hidden.flatten(1)).relu()
        return self.fc2(F.dropout(hidden, training=self.training)).log_softmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--data-dir", default="./data")
    args = parser.parse_args()

    with_cuda = torch.cuda.is_available() and not args.no_cuda
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if with_cuda else torch.device("cpu")
    )
    if with_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if with_cuda else "gloo")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    train_loader = loader_of(args, train=True, batch_size=args.batch_size)
    test_loader = loader_of(args, train=False, batch_size=args.test_batch_size)
    model = DistributedDataParallel(
        Net().to(device), device_ids=[device.index] if with_cuda else None
    )
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr * dist.get_world_size(), momentum=args.momentum
    )
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loader.sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = F.nll_loss(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if number % args.log_interval == 0:
                print(
                    f"Epoch {epoch}, batch {number} of {len(train_loader)}: loss {loss.item():.6f}"
                )
        test(model, test_loader, device)
    dist.destroy_process_group()


def loader_of(args, *, train, batch_size):
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    images = datasets.MNIST(args.data_dir, train=train, transform=steps)
    return DataLoader(images, batch_size=batch_size, sampler=DistributedSampler(images))


def test(model, loader, device):
    model.eval()
    loss = hits = 0
    for images, labels in loader:
        answers = model(images.to(device)).detach().cpu()
        loss += F.nll_loss(answers, labels, reduction="sum")
        hits += (answers.argmax(1) == labels).sum()
    sums = torch.tensor([loss, hits, len(loader.sampler)], device=device)
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        print(f"Test: loss {sums[0] / sums[2]:.4f}, accuracy {sums[1] / sums[2]:.1%}")


if __name__ == "__main__":
    main()
