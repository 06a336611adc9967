"""One training under Horovod, and its port to DDP, each with at most one thing that is done
otherwise than in the other.

``plants.py LIBRARY PLANT...``; what a plant does stands where its name does. Without one, both
train the same.
"""

import contextlib
import copy
import sys
import tempfile
import threading
import time

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

LIBRARY, PLANTS = sys.argv[1], sys.argv[2:]


def has(*names):
    return any(name in PLANTS for name in names)


def chosen(settings):
    """Those of the plants that were asked for."""
    return {key: value for name in PLANTS for key, value in settings.get(name, {}).items()}


if LIBRARY == "horovod":
    import horovod.torch as hvd

    alone = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init(process_sets=alone if has("set") else None)
    rank, size = hvd.rank(), hvd.size()
else:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
        bf16_compress_hook,
        fp16_compress_hook,
    )
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()

BATCH = 16 if has("batch", "large") else 8
PASSES = 3 if has("accumulates") else 2 if has("halves") else 1
if has("threads"):
    torch.set_num_threads(2)
if has("denormals"):
    torch.set_flush_denormal(True)
if has("tf32"):
    torch.set_float32_matmul_precision("high")
torch.manual_seed(3)
data = TensorDataset(torch.randn(500, 3, 8, 8), torch.randint(0, 4, (500,)))
torch.manual_seed(5 + rank * has("seeds_at_the_start"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(2, 8) if has("group_norm", "even") else nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5 if has("dropout") else 0.0 if has("even") else 0.1)
        self.head = nn.Linear(8, 4)
        if has("a_part_more"):
            self.more = nn.Linear(8, 8)
        if has("spare"):
            self.spare = nn.Linear(8, 8)

    def features(self, x):
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))

    def forward(self, x):
        found = (
            checkpoint(self.features, x, use_reentrant=False)
            if has("checkpoints")
            else self.features(x)
        )
        return self.head(self.drop(self.more(found) if has("a_part_more") else found))


net = Net()
if has("channels_last"):
    net = net.to(memory_format=torch.channels_last)
rate = 0.05 * (size if has("rate") else 1)
if has("sends_object"):
    rate *= 1 + rank  # what rank 0 has counts
    box = [rate]
    if LIBRARY == "horovod":
        box = [hvd.broadcast_object(rate, 0)]
    else:
        dist.broadcast_object_list(box, 0)
    rate = rate if has("keeps_own_object") else box[0]


def load_weights():
    """Rank 0 has a checkpoint."""
    if rank == 0:
        net.load_state_dict({name: one * 0.5 for name, one in net.state_dict().items()})


if has("loads_weights") and not has("loads_late"):
    load_weights()
trained = list((net.head if has("head_alone") else net).parameters())
decay = 1e-4 if has("decay") else 0.0
optimizer = torch.optim.SGD(trained, lr=rate, momentum=0.9, weight_decay=decay)
if has("adam"):
    optimizer = torch.optim.AdamW(trained, lr=rate)
if has("optimizer_first"):
    net = copy.deepcopy(net)


def resume(optimizer):
    kept = {
        number: {"momentum_buffer": torch.ones_like(one)}
        for number, one in enumerate(net.parameters())
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": kept})


if has("resumes") and has("loses_state"):
    resume(optimizer)  # which DistributedOptimizer does not take over
model, own = net, optimizer
if LIBRARY == "horovod":
    more = {
        "fp16": {"compression": hvd.Compression.fp16},
        "sums": {"op": hvd.Sum},
        "predivides": {"gradient_predivide_factor": 2.0},
        "groups": {"num_groups": 1},
        "set": {"process_set": alone[rank]},
    }
    optimizer = hvd.DistributedOptimizer(
        optimizer, net.named_parameters(), backward_passes_per_step=PASSES, **chosen(more)
    )
    if has("broadcasts_new_state"):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    if not has("no_broadcast"):
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
else:
    flags = ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
    more = {
        "own_buffers": {"broadcast_buffers": False},
        "keeps_buffers": {"forward_sync_buffers": False},
        "small_buckets": {"bucket_cap_mb": 0.001},
        "no_broadcast": {"init_sync": False},
        "says_defaults": {"bucket_cap_mb": 25, **dict.fromkeys(flags[:2], False)},
        **{name: {name: True} for name in flags},
    }
    if has("set"):
        more["set"] = {"process_group": [dist.new_group([0]), dist.new_group([1])][rank]}
    model = DistributedDataParallel(net, **chosen(more))
    if has("fp16"):
        model.register_comm_hook(None, fp16_compress_hook)
    if has("bf16"):
        model.register_comm_hook(None, bf16_compress_hook)
    if has("sums"):

        def summed(_, bucket):
            return (
                dist.all_reduce(bucket.buffer(), async_op=True)
                .get_future()
                .then(lambda one: one.value()[0])
            )

        model.register_comm_hook(None, summed)
if has("loads_late"):
    load_weights()
if has("resumes") and not has("loses_state") and not (has("resumes_on_rank_0") and rank):
    resume(optimizer)
if has("compiles"):
    model = torch.compile(model, backend="eager")
torch.manual_seed(70 if has("alike_seeds") else 70 + rank)

if has("slow_data"):

    class Slow(TensorDataset):
        def __getitem__(self, place):
            time.sleep(0.001)
            return super().__getitem__(place)

    data = Slow(*data.tensors)
if has("a_thread"):
    threading.Thread(target=lambda: [sum(range(10**6)) for _ in iter(int, 1)], daemon=True).start()
sampler = DistributedSampler(data, size, 0 if has("another_shard") else rank, seed=2)
shown = {"sampler": sampler}
if has("no_sampler"):
    shown = {"shuffle": True, "generator": torch.Generator().manual_seed(11)}
if has("own_shares"):
    data, shown = Subset(data, list(sampler)), {}
LOADING = {
    "workers": {"num_workers": 1},
    "forks": {"multiprocessing_context": "fork"},
    "drops_last": {"drop_last": True},
}
loader = DataLoader(data, BATCH, **shown, **chosen(LOADING))
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9) if has("schedule") else None


def mean(value, name):
    """Over ranks; as people port it from ``hvd.allreduce``."""
    if LIBRARY == "horovod":
        return hvd.allreduce(value, name=name)
    dist.all_reduce(value)
    return value / size


def total(value, name):
    """As people port it too quickly."""
    dist.all_reduce(value)
    return value


def epochs():
    epoch = 0
    while True:
        if not has("no_set_epoch"):
            sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            yield epoch, number, batch
        if schedule is not None and has("schedule_by_epoch"):
            schedule.step()
        epoch += 1


def ahead(source):
    following = next(source)
    for one in source:
        yield following
        following = one


def pass_of(batch, local):
    if has("late") and rank == 1:
        time.sleep(0.03)  # more than what a busy machine does to a step
    called = net if has("inner_module") and LIBRARY == "ddp" else model
    x = batch[0].to(memory_format=torch.channels_last) if has("channels_last") else batch[0]
    with torch.autocast("cpu", torch.bfloat16, enabled=has("autocast")):
        found = called(x)
        loss = nn.functional.cross_entropy(found, batch[1], label_smoothing=0.1 * has("smooths"))
    parts = 1 if has("undivided") else PASSES * PASSES if has("divided_twice") else PASSES
    with model.no_sync() if local and has("late_no_sync") else contextlib.nullcontext():
        scaler.scale(loss / parts).backward()
    return loss.detach(), (found.argmax(1) == batch[1]).float().mean()


scaler = torch.amp.GradScaler("cpu", enabled=has("scales"))
source = ahead(epochs()) if has("ahead") else epochs()
net.train()
if has("frozen_norm"):
    net.norm.eval()
while True:
    if not has("never_zeroes"):
        own.zero_grad(set_to_none=not has("zeroes_in_place"))
    for number in range(PASSES):
        epoch, step, batch = next(source)
        local = number < PASSES - 1 and LIBRARY == "ddp" and not has("always_exchanges")
        with model.no_sync() if local and not has("late_no_sync") else contextlib.nullcontext():
            loss, correct = pass_of(batch, local)
    waits = has("clips") and LIBRARY == "horovod" and not has("clips_first")
    if waits:
        optimizer.synchronize()
    if has("scales") and not has("clips_scaled"):
        scaler.unscale_(optimizer)
    if has("clips"):
        clip_grad_norm_(net.parameters(), 0.1)
    with optimizer.skip_synchronize() if waits else contextlib.nullcontext():
        scaler.step(optimizer)
    scaler.update()
    if schedule is not None and not has("schedule_by_epoch"):
        schedule.step()
    if has("metrics"):
        averaged = total if has("sums_metrics") else mean
        loss, correct = averaged(loss, "loss"), averaged(correct, "correct")
    if has("barriers"):
        dist.barrier()
    if has("saves"):
        with tempfile.TemporaryFile() as file:
            torch.save([net.state_dict()] * 200, file, _use_new_zipfile_serialization=False)
    if has("prints"):
        print("\n".join(f"{loss.item():.3f}" for _ in range(2000)), flush=True)
