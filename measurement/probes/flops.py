"""Floating-point operations: how many a workload's forward and backward pass take, and how many a
device can do.

They are counted by the formulas of ``torch.utils.flop_counter``: matrix products, convolutions and
attention, a multiply-add as two. Elementwise operations and the optimizer are left out, as usual
for model FLOP/s and MFU (Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022,
appendix B). What recomputes activations in its backward pass is counted twice.
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
    """Call ``run``; returns the FLOPs of its operations, by name, and what it called that has no
    formula and may compute much.

    Kernels that are called past PyTorch's dispatcher, such as Triton's, are not seen.
    """
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    counter, called = FlopCounterMode(display=False), dict[Any, None]()

    class Watch(TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called[getattr(func, "overloadpacket", func)] = None
            return func(*args, **(kwargs or {}))

    with counter, Watch():
        run()
    unseen = [str(packet) for packet in called if packet not in counter.flop_registry]
    counts = counter.get_flop_counts().get("Global", {})
    return {str(name): int(number) for name, number in counts.items()}, sorted(
        filter(_may_compute_much, unseen)
    )


def _may_compute_much(operation: str) -> bool:
    namespace, _, name = operation.partition(".")
    return namespace not in OWN_NAMESPACES or HEAVY.search(name) is not None


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak of one device, in TFLOP/s of dense matrices.

    Data sheets often show sparse ones, which are twice that.
    """

    source: str
    tflops: Mapping[str, float]
    """By ``fp32``, ``tf32``, ``fp16``, ``bf16``."""

    def at(self, count: FlopCount, *, precision: str) -> float | None:
        """TFLOP/s at the precision in which most of these FLOPs are computed; None where the device
        has none for it.

        By default, cuDNN's convolutions of float32 use TensorFloat-32, and matrix products do not.
        """
        flops = count.by_operation
        convolved = sum(number for name, number in flops.items() if "conv" in name)
        is_tf32 = precision == "tf32" or (
            "NVIDIA" in self.source and 2 * convolved > sum(flops.values())
        )
        usual = {
            "float32": "tf32" if is_tf32 and "tf32" in self.tflops else "fp32",
            "float16": "fp16",
            "bfloat16": "bf16",
        }
        return self.tflops.get(
            usual.get(count.dtype, "")
            if precision in ("fp32", "tf32")
            else precision.removeprefix("amp-")
        )


DATA_SHEETS = (
    # name, device, fp32, tf32, fp16, bf16
    (r"GB200", "NVIDIA GB200 NVL72", 80, 1250, 2500, 2500),
    (r"B200", "NVIDIA HGX B200", 75, 1100, 2250, 2250),
    (r"H100 NVL", "NVIDIA H100 NVL", 60, 417.5, 835.5, 835.5),
    (r"H100 PCIe", "NVIDIA H100 PCIe", 51, 378, 756.5, 756.5),
    (r"H100", "NVIDIA H100 SXM", 67, 494.5, 989.5, 989.5),
    (r"H200(?! NVL)", "NVIDIA H200 SXM", 67, 494.5, 989.5, 989.5),
    (r"A100", "NVIDIA A100", 19.5, 156, 312, 312),
    (r"L40S", "NVIDIA L40S", 91.6, 183, 362, 362),
    (r"L4", "NVIDIA L4", 30.3, 60, 121, 121),
    (r"A10", "NVIDIA A10", 31.2, 62.5, 125, 125),
    (r"V100-PCIE", "NVIDIA V100 PCIe", 14, None, 112, None),
    (r"V100", "NVIDIA V100 SXM2", 15.7, None, 125, None),
    (r"T4", "NVIDIA T4", 8.1, None, 65, None),
    (r"MI300X", "AMD Instinct MI300X", 163.4, 653.7, 1307.4, 1307.4),
    (r"MI325X", "AMD Instinct MI325X", 163.4, 653.7, 1307.4, 1307.4),
    (
        r"MI250X",
        "AMD Instinct MI250X, half of it for each of its two devices",
        47.9,
        None,
        191.5,
        191.5,
    ),
)
"""By a pattern in a device's name; the first match counts. Each figure of a maker's sheet also
appears elsewhere: in tables of Lightning and torchtitan, and on pages that copy the sheet. GH200
and H200 NVL are left out: quotations differ or are missing.

- Blackwell: nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703
- H100: resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306
- H200: nvdam.widen.net/s/nb5zzzsjdf/hpc-datasheet-sc23-h200-datasheet-3002446
- A100, A10, T4: nvidia.com/content/dam/en-zz/Solutions/Data-Center, such as
  nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
- L40S: resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
- L4: images.nvidia.com, nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf
- V100: images.nvidia.com, volta-v100-datasheet-update-us-1165301-r5.pdf
- Instinct: amd.com/en/products/accelerators/instinct"""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def peak_of(device: str) -> Peak | None:
    """Find a device's peak by its name as PyTorch gives it; None where it is not known, as of a
    part of a GPU (MIG).
    """
    if " MIG " in f"{device} ":
        return None
    sheet = next((sheet for sheet in DATA_SHEETS if re.search(rf"\b{sheet[0]}\b", device)), None)
    if sheet is None:
        return None
    _, source, *tflops = sheet
    known_tflops = {
        name: value for name, value in zip(PRECISIONS, tflops, strict=True) if value is not None
    }
    return Peak(source=f"data sheet of {source}", tflops=known_tflops)
