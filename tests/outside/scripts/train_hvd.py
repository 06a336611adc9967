"""Trains a ConvNet with Horovod, as scripts of 2020 do.

    horovodrun -np 2 -H localhost:2 python train_hvd.py --epochs 4

``--mistake`` plants a mistake that people make with Horovod.
"""

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from digits_net import Net, parse_args, read_data, schedule, units_for
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

MISTAKES = ["op-sum", "ranks-start-apart", "fp16-compression", "no-buffer-broadcast"]


def mean_over_ranks(value, name):
    return hvd.allreduce(torch.tensor(float(value)), name=name).item()


def evaluate(args, model, loader, device):
    if args.no_evaluation:
        return
    # Each rank has batch statistics of its own; those of rank 0 count.
    hvd.broadcast_parameters(dict(model.named_buffers()), root_rank=0)
    model.eval()
    loss = hits = 0.0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images.to(device))
            loss += F.cross_entropy(logits, labels.to(device), reduction="sum").item()
            hits += (logits.argmax(1).cpu() == labels).sum().item()
    model.train()
    count = len(loader.sampler)
    loss, accuracy = mean_over_ranks(loss / count, "loss"), mean_over_ranks(hits / count, "accuracy")
    if hvd.rank() == 0:
        print(f"evaluation: loss {loss:.4f}, accuracy {accuracy:.1%}", flush=True)


def loaders(args):
    train_set = read_data(args.data, args.samples, train=True)
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed, drop_last=True)
    train = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)
    test_set = read_data(args.data, args.samples, train=False)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    return train, DataLoader(test_set, batch_size=256, sampler=test_sampler)


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
        compression=hvd.Compression.fp16 if args.mistake == "fp16-compression" else hvd.Compression.none,
        op=hvd.Sum if args.mistake == "op-sum" else hvd.Average,
    )


def train(args, model, optimizer, train_loader, test_loader, device):
    scheduler = LambdaLR(optimizer, schedule(args.warmup_steps, args.epochs * len(train_loader)))
    steps = 0
    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            scheduler.step()
            steps += 1
            crash(args, steps)
            if steps % 50 == 0 and hvd.rank() == 0:
                print(f"epoch {epoch}, step {steps}: loss {loss.item():.4f}", flush=True)
            if args.evaluate_every and steps % args.evaluate_every == 0:
                evaluate(args, model, test_loader, device)
            if steps == args.max_steps:
                return
        evaluate(args, model, test_loader, device)
        if args.checkpoint and hvd.rank() == 0:
            torch.save(model.state_dict(), args.checkpoint)


def crash(args, step):
    if step == args.crash_at and hvd.rank() == hvd.size() - 1:
        raise RuntimeError(f"planted: this script crashes in step {step}")


def main():
    args = parse_args(__doc__, MISTAKES)
    hvd.init()
    torch.set_num_threads(1)
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    train_loader, test_loader = loaders(args)
    model, optimizer = build(args, device)
    if args.extra_work:
        first = [part[: args.batch_size].to(device) for part in train_loader.dataset.tensors]
        model.extra_units = round(mean_over_ranks(units_for(model, *first, args.extra_work), "units"))
        print(f"{model.extra_units} units of extra work in each step", flush=True)
    torch.manual_seed(1000 * args.seed + hvd.rank())  # each rank drops out other units
    if args.only_evaluate:
        evaluate(args, model, test_loader, device)
    else:
        train(args, model, optimizer, train_loader, test_loader, device)


if __name__ == "__main__":
    main()
