"""``--cpu``: scripts for GPUs where there are none.

They start, are compared, and get no verdict on speed."""

from __future__ import annotations

import re

import pytest

from measurement.agent.ringside_agent import cpus_for_gpus
from runners.scripts.script_setup import lists_for_agent
from tests.conftest import HAS_HOROVOD, REPOSITORY
from tests.distributed.test_scripts import NAMES, ab, cache  # noqa: F401
from tests.kit.commands import run_python

RANK_VARIABLES = lists_for_agent()["rank_variables"]

AS_WRITTEN = """
import copy, sys, threading, torch
sys.path.insert(0, {agent!r})
from ringside_agent import cpus_for_gpus
cpus_for_gpus.emulate_cuda(torch, {rank_variables!r})

assert torch.cuda.is_available() and torch.cuda.device_count() == 2
torch.cuda.set_device("cuda:1")
assert torch.cuda.current_device() == 1
device, cpu = torch.device("cuda", 1), torch.device("cpu")
assert device.type == torch.accelerator.current_accelerator().type == "cuda"
ones = torch.ones(3, device=device)
moved = [torch.ones(3).cuda(), torch.ones(3).to(0), torch.ones(3).to(device, torch.float64), torch.ones(3).pin_memory(), ones,
         torch.zeros_like(ones, device="cuda"), torch.tensor([1.0], device=1), torch.cuda.FloatTensor([1.0])]
assert all(one.device == cpu for one in moved)
drawn = torch.randn(2, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
assert drawn.device == cpu and isinstance(torch.default_generator, torch.Generator)
torch.set_default_device("cuda")
assert torch.ones(1).device == cpu
torch.set_default_device(None)
layer = torch.nn.Linear(3, 3).cuda().to(0).to("cuda:1")
assert layer.weight.device == cpu
torch.save(layer.state_dict(), {file!r})
assert torch.load({file!r}, map_location="cuda:1")["weight"].device == cpu
assert torch.load({file!r}, map_location=lambda storage, place: storage.cuda(0))["weight"].device == cpu
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream), torch.cuda.device(0), torch.cuda.nvtx.range("step"):
    start.record()
    end.record(stream)
stream.wait_stream(torch.cuda.current_stream())
torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0
assert torch.cuda.max_memory_allocated() == 0 and torch.cuda.memory_summary() == "" and torch.cuda.get_device_properties(0).major
assert torch.cuda.make_graphed_callables(layer, (ones,)) is layer
with torch.autocast("cuda") as half:
    assert layer(ones).dtype == torch.bfloat16 and half.fast_dtype == torch.float16
scaler = torch.cuda.amp.GradScaler()
optimizer = torch.optim.Adam(layer.parameters(), 0.1)
scaler.scale(layer(ones).sum()).backward()
scaler.step(optimizer)
assert scaler.is_enabled()
assert torch.nn.DataParallel(layer, device_ids=[0, 1])(ones).shape == (3,)
found = []
thread = threading.Thread(target=lambda: found.append(torch.ones(1, device="cuda").device))
thread.start(); thread.join()
assert found == [cpu]
compiled = torch.compile(lambda x: x.to("cuda") + 1, backend="eager")
assert compiled(ones).device == cpu
torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1, device_id=device)
assert torch.distributed.get_backend() == "gloo"
torch.distributed.barrier(device_ids=[0])
alone, images = torch.nn.BatchNorm2d(3), torch.randn(4, 3, 5, 5)
synced = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))
torch.testing.assert_close(synced(images), alone(images))
torch.testing.assert_close(synced.running_var, alone.running_var)
try:
    torch.cuda.CUDAGraph()
except RuntimeError as error:
    assert "cannot replay" in str(error)
if {has_horovod}:
    import horovod.torch
    from ringside_agent.reading import libraries
    cpus_for_gpus.emulate_horovod_build(horovod.torch)
    assert libraries.transport_of("horovod", torch.ones(1, device="cuda").device) in ("gloo", "mpi")
print("all")
"""


def test_what_asks_for_a_gpu_gets_the_cpu(tmp_path):
    code = AS_WRITTEN.format(
        agent=str(REPOSITORY / "measurement" / "agent"),
        rank_variables=RANK_VARIABLES,
        file=str(tmp_path / "w.pt"),
        has_horovod=HAS_HOROVOD,
    )
    done = run_python(code)
    assert done.stdout == "all\n", done.stderr


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, 2),
        ({"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 4),
    ],
)
def test_there_are_as_many_gpus_as_are_visible_or_have_ranks(monkeypatch, variables, devices):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cpus_for_gpus.device_count(RANK_VARIABLES) == devices


CASES = {
    "its port to CPUs": ("", "--cpus", 0, "train alike|same"),
    "another learning rate": ("", "--lr 0.1", 3, "the learning rate of .* is 2 times that"),
    "its buffers": ("--sync", "--cpus", 3, "SyncBatchNorm"),
    "half precision": ("--half", "--half --gpus 2", 0, "train alike|same"),
}


@pytest.mark.timeout(600)
@pytest.mark.costly
@pytest.mark.parametrize("case", CASES)
def test_scripts_for_gpus_are_checked_without_any(tmp_path, case):
    first, second, code, pattern = CASES[case]
    commands = [f"python for_gpus.py {words}" for words in (first, second)]
    done = ab(
        *commands, f"{NAMES} --cpu --small", tmp_path / "out", code=code, start_timeout_s=200
    ).done
    said = " ".join((done.stdout + done.stderr).split())
    assert "No verdict on speed: CPUs stand in for GPUs" in said
    assert re.search(pattern, said), said
