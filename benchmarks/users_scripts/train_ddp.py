"""The port of train_hvd.py to DDP.

    torchrun --standalone --nproc-per-node 2 train_ddp.py --epochs 4

Under mpirun and srun it takes its rank from their variables. ``--mistake`` plants a mistake that
people make when they port.
"""

import copy
import os

import torch
import torch.distributed as dist
from digits_net import Net, Ranks, add_work, evaluate, parse_args, read_data, train
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
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
            os.environ.update(
                RANK=os.environ[rank], WORLD_SIZE=os.environ[size], LOCAL_RANK=os.environ[local]
            )
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
    return (
        dist.all_reduce(bucket.buffer(), async_op=True)
        .get_future()
        .then(lambda future: future.value()[0])
    )


def ranks_of(device):
    def mean(value):
        total = torch.tensor(float(value), device=device)
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    return Ranks(dist.get_rank(), dist.get_world_size(), mean)


def wrap(net, device, mistake):
    ids = [device.index] if device.type == "cuda" else None
    if mistake == "unsynced-parameter":
        # the scale is left outside
        net.backbone = DistributedDataParallel(net.backbone, device_ids=ids)
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
    batch_size = (
        args.batch_size // dist.get_world_size()
        if args.mistake == "global-batch"
        else args.batch_size
    )
    train_set = read_data(args.data, args.samples, train=True)
    if args.mistake == "no-sampler":
        order = {"shuffle": True, "generator": torch.Generator().manual_seed(args.seed)}
    else:
        order = {"sampler": DistributedSampler(train_set, seed=args.seed, drop_last=True)}
    loader = DataLoader(
        train_set, batch_size=batch_size, num_workers=args.workers, drop_last=True, **order
    )
    test_set = read_data(args.data, args.samples, train=False)
    return loader, DataLoader(
        test_set, batch_size=256, sampler=DistributedSampler(test_set, shuffle=False)
    )


def build(args, device):
    torch.manual_seed(args.seed)
    net = Net(args.width, args.dropout).to(device)
    if args.resume:
        net.load_state_dict(torch.load(args.resume))
    lr = args.lr if args.mistake == "lr-not-scaled" else args.lr * dist.get_world_size()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=args.momentum)
    if args.mistake == "optimizer-before-move":
        # as where a model is made again on its device: the optimizer has the old one's parameters
        net = copy.deepcopy(net)
    if args.mistake == "no-zero-grad":
        optimizer.zero_grad = lambda: None
    return net, optimizer


def main():
    args = parse_args(__doc__, MISTAKES)
    torch.set_num_threads(1)
    device = set_up()
    ranks, (train_loader, test_loader) = ranks_of(device), loaders(args)
    net, optimizer = build(args, device)
    add_work(args, net, train_loader.dataset, device, ranks)
    model = wrap(net, device, args.mistake)
    torch.manual_seed(
        1000 * args.seed + (0 if args.mistake == "dropout-seeded-alike" else dist.get_rank())
    )

    def evaluation():
        if not args.no_evaluation:
            evaluate(args, model, test_loader, device, ranks)

    train(args, model, optimizer, train_loader, device, ranks, evaluation)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
