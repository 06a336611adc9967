"""Floating-point operations: how many a workload's forward and backward pass take, and how many a device can do.

They are counted by the formulas of ``torch.utils.flop_counter``: matrix products, convolutions and attention, a multiply-add as
two. Elementwise operations and the optimizer are left out, as is the custom for model FLOP/s and MFU (Chowdhery et al., PaLM:
Scaling Language Modeling with Pathways, 2022, appendix B). What recomputes activations in its backward pass is counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from measurement.records.record import FlopCount

HEAVY = re.compile(r"mm$|rnn|attention|sparse_|fft|linalg|trilinear")
"""Names of PyTorch's own operations that may compute much."""
OWN_NAMESPACES = ("aten", "prim", "prims", "profiler")


def count_flops(run: Callable[[], object]) -> tuple[dict[str, int], list[str]]:
    """Call ``run``; returns the FLOPs of its operations, by name, and what it called that has no formula and may compute much.

    Kernels that are called past PyTorch's dispatcher, such as Triton's, are not seen.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    counter, called = FlopCounterMode(display=False), dict[Any, None]()

    class Watch(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called[getattr(func, "overloadpacket", func)] = None
            return func(*args, **(kwargs or {}))

    with counter, Watch():
        run()
    unseen = [str(packet) for packet in called if packet not in counter.flop_registry]
    found = counter.get_flop_counts().get("Global", {})
    return {str(name): int(number) for name, number in found.items()}, sorted(filter(_may_compute_much, unseen))


def _may_compute_much(operation: str) -> bool:
    namespace, _, name = operation.partition(".")
    return namespace not in OWN_NAMESPACES or HEAVY.search(name) is not None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What one device can do at most, in TFLOP/s of dense matrices. Sparse ones, which data sheets like to show, are twice that."""

    source: str
    sheet: str
    """Where the maker says so."""
    tflops: Mapping[str, float]
    """By ``fp32``, ``tf32``, ``fp16``, ``bf16``."""

    def at(self, count: FlopCount, *, precision: str) -> float | None:
        """TFLOP/s at the precision in which most of these FLOPs are computed; None where the device has none for it.

        cuDNN's convolutions of float32 use TensorFloat-32 unless they are told otherwise, matrix products only where asked.
        """
        flops = count.by_operation
        convolved = sum(number for name, number in flops.items() if "conv" in name)
        is_tf32 = precision == "tf32" or ("NVIDIA" in self.source and 2 * convolved > sum(flops.values()))
        usual = {"float32": "tf32" if is_tf32 and "tf32" in self.tflops else "fp32", "float16": "fp16", "bfloat16": "bf16"}
        return self.tflops.get(usual.get(count.dtype, "") if precision in ("fp32", "tf32") else precision.removeprefix("amp-"))


def _peak(device: str, sheet: str, **tflops: float) -> Peak:
    return Peak(source=f"data sheet of {device}", sheet=sheet, tflops=tflops)


NVIDIA, WIDEN = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center", "https://nvdam.widen.net/s"
BLACKWELL = f"{WIDEN}/wwnsxrhm2w/blackwell-datasheet-3384703"
HOPPER = "https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306"
H200 = f"{WIDEN}/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446"
ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
VOLTA = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
INSTINCT = "https://www.amd.com/en/products/accelerators/instinct"
PEAKS = {
    r"GB200": _peak("NVIDIA GB200 NVL72", BLACKWELL, bf16=2500, fp16=2500, tf32=1250, fp32=80),
    r"B200": _peak("NVIDIA HGX B200", BLACKWELL, bf16=2250, fp16=2250, tf32=1100, fp32=75),
    r"H100 NVL": _peak("NVIDIA H100 NVL", HOPPER, bf16=835.5, fp16=835.5, tf32=417.5, fp32=60),
    r"H100 PCIe": _peak("NVIDIA H100 PCIe", HOPPER, bf16=756.5, fp16=756.5, tf32=378, fp32=51),
    r"H100": _peak("NVIDIA H100 SXM", HOPPER, bf16=989.5, fp16=989.5, tf32=494.5, fp32=67),
    r"H200(?! NVL)": _peak("NVIDIA H200 SXM", H200, bf16=989.5, fp16=989.5, tf32=494.5, fp32=67),
    r"A100": _peak(
        "NVIDIA A100",
        f"{NVIDIA}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
        bf16=312,
        fp16=312,
        tf32=156,
        fp32=19.5,
    ),
    r"L40S": _peak(
        "NVIDIA L40S", "https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413", bf16=362, fp16=362, tf32=183, fp32=91.6
    ),
    r"L4": _peak("NVIDIA L4", ADA, bf16=121, fp16=121, tf32=60, fp32=30.3),
    r"A10": _peak("NVIDIA A10", f"{NVIDIA}/a10/pdf/a10-datasheet.pdf", bf16=125, fp16=125, tf32=62.5, fp32=31.2),
    r"V100-PCIE": _peak("NVIDIA V100 PCIe", VOLTA, fp16=112, fp32=14),
    r"V100": _peak("NVIDIA V100 SXM2", VOLTA, fp16=125, fp32=15.7),
    r"T4": _peak("NVIDIA T4", f"{NVIDIA}/tesla-t4/t4-tensor-core-datasheet-951643.pdf", fp16=65, fp32=8.1),
    r"MI300X": _peak("AMD Instinct MI300X", f"{INSTINCT}/mi300/mi300x.html", bf16=1307.4, fp16=1307.4, tf32=653.7, fp32=163.4),
    r"MI325X": _peak("AMD Instinct MI325X", f"{INSTINCT}/mi300/mi325x.html", bf16=1307.4, fp16=1307.4, tf32=653.7, fp32=163.4),
    r"MI250X": _peak(
        "AMD Instinct MI250X, half of it for each of its two devices",
        f"{INSTINCT}/mi200/mi250x.html",
        bf16=191.5,
        fp16=191.5,
        fp32=47.9,
    ),
}
"""By what a device's name holds; the first that fits. A figure stands here if somebody else quotes it of the same sheet: tables of
Lightning and torchtitan, and pages that copy the sheet's own table. Of GH200 and H200 NVL quotations differ or lack."""


def peak_of(device: str) -> Peak | None:
    """Find a device's peak by its name as PyTorch gives it; None where it is not known, as of a part of a GPU (MIG)."""
    if " MIG " in f"{device} ":
        return None
    return next((peak for name, peak in PEAKS.items() if re.search(rf"\b{name}\b", device)), None)
