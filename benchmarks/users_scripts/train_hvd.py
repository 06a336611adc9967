"""Trains a ConvNet with Horovod, as scripts of 2020 do.

    horovodrun -np 2 -H localhost:2 python train_hvd.py --epochs 4

``--mistake`` plants a mistake that people make with Horovod.
"""

import horovod.torch as hvd
import torch
from digits_net import Net, Ranks, add_work, evaluate, parse_args, read_data, train
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

MISTAKES = ["op-sum", "ranks-start-apart", "fp16-compression", "no-buffer-broadcast"]


def loaders(args):
    train_set = read_data(args.data, args.samples, train=True)
    sampler = DistributedSampler(
        train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True
    )
    loader = DataLoader(
        train_set,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        drop_last=True,
    )
    test_set = read_data(args.data, args.samples, train=False)
    test_sampler = DistributedSampler(
        test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False
    )
    return loader, DataLoader(test_set, batch_size=256, sampler=test_sampler)


def build(args, device):
    torch.manual_seed(args.seed + (hvd.rank() if args.mistake == "ranks-start-apart" else 0))
    model = Net(args.width, args.dropout).to(device)
    if args.resume and hvd.rank() == 0:
        model.load_state_dict(torch.load(args.resume))

    # Horovod: the learning rate grows with the ranks.
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    if args.mistake == "no-buffer-broadcast":
        hvd.broadcast_parameters(dict(model.named_parameters()), root_rank=0)
    elif args.mistake != "ranks-start-apart":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return model, hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16
        if args.mistake == "fp16-compression"
        else hvd.Compression.none,
        op=hvd.Sum if args.mistake == "op-sum" else hvd.Average,
    )


def main():
    args = parse_args(__doc__, MISTAKES)
    hvd.init()
    torch.set_num_threads(1)
    device = (
        torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks = Ranks(
        hvd.rank(), hvd.size(), lambda value: hvd.allreduce(torch.tensor(float(value))).item()
    )
    train_loader, test_loader = loaders(args)
    model, optimizer = build(args, device)
    add_work(args, model, train_loader.dataset, device, ranks)
    torch.manual_seed(1000 * args.seed + hvd.rank())  # each rank drops out other units

    def evaluation():
        if not args.no_evaluation:
            # Each rank has batch statistics of its own; those of rank 0 count.
            hvd.broadcast_parameters(dict(model.named_buffers()), root_rank=0)
            evaluate(args, model, test_loader, device, ranks)

    train(args, model, optimizer, train_loader, device, ranks, evaluation)


if __name__ == "__main__":
    main()
