"""The port of train_hvd.py to DDP.

    torchrun --standalone --nproc-per-node 2 train_ddp.py --epochs 4

Under mpirun and srun it takes its rank from their variables. ``--mistake`` plants a mistake that people make when they port.
"""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits_net import Net, parse_args, read_data, schedule, units_for
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

MISTAKES = [
    "lr-not-scaled",
    "no-sampler",
    "op-sum",
    "unsynced-parameter",
    "ranks-start-apart",
    "dropout-seeded-alike",
    "global-batch",
    "fp16-compression",
    "no-buffer-broadcast",
    "schedule-per-epoch",
    "optimizer-before-move",
    "no-zero-grad",
]


def set_up():
    """Take the rank from whichever launcher gave one."""
    for rank, size, local in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if "RANK" not in os.environ and rank in os.environ:
            os.environ.update(RANK=os.environ[rank], WORLD_SIZE=os.environ[size], LOCAL_RANK=os.environ[local])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return device


def sum_hook(_state, bucket):
    """Averages nothing: the sum is what Horovod's ``op=Sum`` gives."""
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])


def mean_over_ranks(value, device):
    total = torch.tensor(float(value), device=device)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def evaluate(args, model, loader, device):
    if args.no_evaluation:
        return
    model.eval()
    loss = hits = 0.0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images.to(device))
            loss += F.cross_entropy(logits, labels.to(device), reduction="sum").item()
            hits += (logits.argmax(1).cpu() == labels).sum().item()
    model.train()
    count = len(loader.sampler)
    loss, accuracy = mean_over_ranks(loss / count, device), mean_over_ranks(hits / count, device)
    if dist.get_rank() == 0:
        print(f"evaluation: loss {loss:.4f}, accuracy {accuracy:.1%}", flush=True)


def wrap(net, device, mistake):
    ids = [device.index] if device.type == "cuda" else None
    if mistake == "unsynced-parameter":
        net.backbone = DistributedDataParallel(net.backbone, device_ids=ids)  # the scale is left outside
        return net
    options = {"broadcast_buffers": False} if mistake == "no-buffer-broadcast" else {}
    model = DistributedDataParallel(net, device_ids=ids, **options)
    if mistake == "fp16-compression":
        model.register_comm_hook(None, fp16_compress_hook)
    if mistake == "op-sum":
        model.register_comm_hook(None, sum_hook)
    if mistake == "ranks-start-apart":
        torch.manual_seed(100 + dist.get_rank())
        model.module.backbone[-1].reset_parameters()  # after DDP has sent rank 0's weights to all
    return model


def loaders(args):
    batch_size = args.batch_size // dist.get_world_size() if args.mistake == "global-batch" else args.batch_size
    train_set = read_data(args.data, args.samples, train=True)
    if args.mistake == "no-sampler":
        order = {"shuffle": True, "generator": torch.Generator().manual_seed(args.seed)}
    else:
        order = {"sampler": DistributedSampler(train_set, seed=args.seed, drop_last=True)}
    train = DataLoader(train_set, batch_size=batch_size, num_workers=args.workers, drop_last=True, **order)
    test_set = read_data(args.data, args.samples, train=False)
    return train, DataLoader(test_set, batch_size=256, sampler=DistributedSampler(test_set, shuffle=False))


def build(args, device):
    torch.manual_seed(args.seed)
    net = Net(args.width, args.dropout).to(device)
    if args.resume:
        net.load_state_dict(torch.load(args.resume))
    lr = args.lr if args.mistake == "lr-not-scaled" else args.lr * dist.get_world_size()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=args.momentum)
    if args.mistake == "optimizer-before-move":
        net = copy.deepcopy(net)  # as where a model is made anew on its device: the optimizer has the old one's parameters
    if args.mistake == "no-zero-grad":
        optimizer.zero_grad = lambda: None
    return net, optimizer


def train(args, model, optimizer, train_loader, test_loader, device):
    scheduler = LambdaLR(optimizer, schedule(args.warmup_steps, args.epochs * len(train_loader)))
    per_epoch = args.mistake == "schedule-per-epoch"
    steps = 0
    for epoch in range(args.epochs):
        if isinstance(train_loader.sampler, DistributedSampler):
            train_loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if not per_epoch:
                scheduler.step()
            steps += 1
            crash(args, steps)
            if steps % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch}, step {steps}: loss {loss.item():.4f}", flush=True)
            if args.evaluate_every and steps % args.evaluate_every == 0:
                evaluate(args, model, test_loader, device)
            if steps == args.max_steps:
                return
        if per_epoch:
            scheduler.step()
        evaluate(args, model, test_loader, device)
        if args.checkpoint and dist.get_rank() == 0:
            torch.save(getattr(model, "module", model).state_dict(), args.checkpoint)


def crash(args, step):
    if step == args.crash_at and dist.get_rank() == dist.get_world_size() - 1:
        raise RuntimeError(f"planted: this script crashes in step {step}")


def main():
    args = parse_args(__doc__, MISTAKES)
    torch.set_num_threads(1)
    device = set_up()
    train_loader, test_loader = loaders(args)
    net, optimizer = build(args, device)
    if args.extra_work:
        first = [part[: args.batch_size].to(device) for part in train_loader.dataset.tensors]
        net.extra_units = round(mean_over_ranks(units_for(net, *first, args.extra_work), device))
        print(f"{net.extra_units} units of extra work in each step", flush=True)
    model = wrap(net, device, args.mistake)
    torch.manual_seed(1000 * args.seed + (0 if args.mistake == "dropout-seeded-alike" else dist.get_rank()))
    if args.only_evaluate:
        evaluate(args, model, test_loader, device)
    else:
        train(args, model, optimizer, train_loader, test_loader, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
