"""FLOPs against the formula, and what reports make of them, of memory."""

from __future__ import annotations

import pytest
import torch

from measurement.flops import count_flops, peak_of
from measurement.records.record import FlopCount
from reports.formats.pages import caption
from reports.tables.sections import resource_table
from tests.kit.changed import changed
from tests.kit.engines import make_engine
from tests.kit.results_factory import concluded, make_plan

BREAKS = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workloads.digits import Digits

class TooClever(Exception):
    pass

class Breaks(Digits):
    def compute_loss(self, model, batch):
        if torch._C._len_torch_dispatch_stack():
            raise TooClever("not under a dispatch mode")
        return super().compute_loss(model, batch)
"""


def test_what_has_no_formula_and_may_compute_much_is_named():
    @torch.library.custom_op("ringside_test::scale", mutates_args=())
    def scale(values: torch.Tensor) -> torch.Tensor:
        return 2 * values

    _, unseen = count_flops(lambda: scale(torch.ones(3)) * 2 + 1)
    assert unseen == ["ringside_test.scale"], "elementwise operations are no news"


@pytest.mark.slow
def test_rank_0_counts_in_the_gate_by_the_formulas():
    engine = make_engine()
    count = engine.run_gate(counts_flops=True).flops
    first, second, linear = (28 * 28 * 25 * 16, 14 * 14 * 25 * 16 * 32, 7 * 7 * 32 * 10)
    assert (count.samples, count.dtype, count.error) == (2, "float32", None)
    assert sum(count.by_operation.values()) == 2 * 2 * (2 * first + 3 * second + 3 * linear)
    assert engine.run_gate().flops is None, "once is enough"


@pytest.mark.slow
def test_what_breaks_when_flops_are_counted_fails_nothing(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    count = make_engine(f"{tmp_path / 'breaks.py'}:Breaks").run_gate(counts_flops=True).flops
    assert "TooClever: not under a dispatch mode" in count.error and "breaks.py" in count.error


def test_a_devices_peak_is_found_by_its_name():
    assert peak_of("NVIDIA H100 80GB HBM3").tflops["fp16"] == 989.5
    for other in ("NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA RTX A1000"):
        assert peak_of(other) is None


@pytest.mark.parametrize(
    ("device", "dtype", "precision", "operation", "tflops"),
    [
        ("NVIDIA A100", "float32", "fp32", "aten.convolution", 156),
        ("NVIDIA A100", "float32", "fp32", "aten.mm", 19.5),
        ("NVIDIA A100", "float32", "amp-bf16", "aten.mm", 312),
        ("NVIDIA A100", "float64", "fp32", "aten.mm", None),
        ("AMD Instinct MI300X", "float32", "fp32", "aten.convolution", 163.4),
    ],
)
def test_the_peak_is_that_of_the_precision_in_use(device, dtype, precision, operation, tflops):
    count = FlopCount(samples=1, by_operation={operation: 10}, dtype=dtype)
    assert peak_of(device).at(count, precision=precision) == tflops


def resources_of(root, *, device="cpu", **plan):
    """Three launches: an image takes 50 MFLOP, and Horovod a quarter more memory than DDP."""

    def change(record):
        factor = (1.25 if record.arm == "horovod-gloo" else 1.0) * (1 + 0.01 * record.launch)
        record.peak_memory_bytes = [100, round(factor * 2**30)]
        if record.launch == 0:
            record.flops = FlopCount(samples=2, by_operation={"aten.mm": 10**8}, dtype="float32")
        for rank in record.ranks:
            rank.device = device
            rank.fingerprint["gpus"] = [] if device == "cpu" else [device]

    return concluded(root, plan=changed(make_plan(["horovod-gloo"]), **plan), change=change)


@pytest.mark.slow
def test_memory_and_mfu_of_each_arm_are_in_the_table(tmp_path):
    comparison = resources_of(tmp_path, peak_tflops=0.5)
    arm = comparison.arm("horovod-gloo")
    resources, speed = arm.resources, arm.throughput_per_s
    memory = resources.memory_bytes
    assert memory.value == pytest.approx(1.25 * 1.01 * 2**30)
    assert memory.excludes(1.26 * 1.05 * 2**30) and not memory.excludes(1.27 * 2**30)
    assert resources.per_device_per_s == speed.times(0.5)
    assert resources.flops_per_s.value == pytest.approx(speed.value / 2 * 5e7)
    assert resources.mfu.bounds == pytest.approx(
        [bound / 2 * 5e7 / 0.5e12 for bound in speed.bounds]
    )
    titles = [column.title for column in resource_table(comparison).columns]
    assert titles == ["arm", "images/s per core", "GFLOP/s per core", "MFU", "peak GiB"]
    assert "(peak_tflops of the plan)" in caption("resources", comparison)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "peak"), [("NVIDIA A100-SXM4-80GB", 19.5e12), ("X1", None)])
def test_a_known_gpu_needs_no_peak_and_an_unknown_one_has_no_mfu(tmp_path, device, peak):
    resources = resources_of(tmp_path, device=device).arm("ddp-gloo").resources
    assert resources.device == "GPU"
    mfu = peak and pytest.approx(resources.flops_per_s.value / peak)
    assert (resources.mfu and resources.mfu.value) == mfu
