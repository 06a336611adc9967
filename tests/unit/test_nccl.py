"""What NCCL is and what it chose: by the linker, and by lines as it prints them. No GPU is
needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from measurement.host import nccl_of, version_of
from measurement.records.record import ArmTrace, NcclCollective, Traces
from reports import conclude
from reports.formats.pages import MarkdownReport
from runners.traces import merge_nccl_choices, nccl_choices
from tests.kit.results_factory import make_plan, write_results

RANK_0 = """
node1:310:310 [0] NCCL INFO cudaDriverVersion 13000
NCCL version 2.28.9+cuda13.0
node1:310:388 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:310:388 [0] NCCL INFO Using network IB
node1:310:388 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
node1:310:390 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
node1:310:390 [0] NCCL INFO Channel 01/0 : 0[0] -> 2[0] [send] via NET/IB/1(1)/GDRDMA
node1:310:391 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:310:310 [0] NCCL INFO Broadcast: 4 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
node1:310:310 [0] NCCL INFO AllReduce: 26214400 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
node1:310:310 [0] NCCL INFO AllReduce: 26214400 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
loss 0.31 via P2P/nothing
""".splitlines()
RANK_1 = [
    "node1:311:392 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct",
    "node1:311:392 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0/Shared",
]


def test_the_log_says_by_what_network_connections_and_algorithms():
    choices = merge_nccl_choices([nccl_choices(RANK_0), nccl_choices(RANK_1), None])
    assert (choices.version, choices.network, choices.channels) == ("2.28.9+cuda13.0", "IB", 16)
    assert choices.connections == [
        "NET/IB/GDRDMA",
        "NET/Socket/Shared",
        "P2P/CUMEM",
        "SHM/direct/direct",
    ]
    assert choices.collectives == [
        NcclCollective(
            operation="AllReduce", num_bytes=26_214_400, algorithm="RING", protocol="SIMPLE"
        ),
        NcclCollective(operation="Broadcast", num_bytes=4, algorithm="RING", protocol="LL"),
    ]


def test_a_rank_without_nccl_says_nothing():
    assert nccl_choices(["loss 0.3", "Algo 1"]) is None
    assert merge_nccl_choices([None, None]) is None


@pytest.mark.slow
def test_the_report_shows_what_each_arm_chose(tmp_path):
    folder = write_results(tmp_path, plan=make_plan())
    arms = [ArmTrace(arm="ddp-gloo", nccl=nccl_choices(RANK_0)), ArmTrace(arm="horovod-gloo")]
    folder.traces_folder.mkdir()
    (folder.traces_folder / "traces.json").write_text(
        Traces(arms=arms).model_dump_json(), encoding="utf-8"
    )
    text = MarkdownReport().render(conclude(folder)).decode()
    assert "What NCCL chose" in text
    assert "AllReduce of 26,214,400 bytes by RING, SIMPLE" in text


def test_a_code_is_a_version():
    assert version_of(23007) == "2.30.7"


@pytest.mark.skipif(not torch.version.cuda, reason="this torch has no NCCL")
def test_the_nccl_that_torch_calls_is_found_with_its_file():
    choices = nccl_of(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")
    assert choices.startswith(f"{'.'.join(map(str, torch.cuda.nccl.version()))} (")


def test_a_library_without_nccl_calls_none(tmp_path):
    assert nccl_of("libc.so.6") is nccl_of(tmp_path / "none.so") is None
