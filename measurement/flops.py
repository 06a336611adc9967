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
from pathlib import Path
from typing import Any, NamedTuple

from measurement.records.record import FlopCount

HEAVY = re.compile(r"mm$|rnn|attention|sparse_|fft|linalg|trilinear")
"""Names of PyTorch's own operations that may compute much."""
OWN_NAMESPACES = ("aten.", "prim.", "prims.", "profiler.")


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
    may_compute_much = [
        operation
        for operation in unseen
        if not operation.startswith(OWN_NAMESPACES) or HEAVY.search(operation)
    ]
    return {str(name): int(number) for name, number in counts.items()}, sorted(may_compute_much)


class Peak(NamedTuple):
    """The peak of one device, in TFLOP/s of dense matrices (``data_sheets.yaml``)."""

    source: str
    tflops: Mapping[str, float]
    """By ``fp32``, ``tf32``, ``fp16``, ``bf16``."""

    def at(self, count: FlopCount, *, precision: str) -> float | None:
        """TFLOP/s at the precision in which most of these FLOPs are computed; None where the device
        has none for it.

        By default, cuDNN's convolutions of float32 use TensorFloat-32, and matrix products do not.
        """
        if precision not in ("fp32", "tf32"):
            return self.tflops.get(precision.removeprefix("amp-"))
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
        return self.tflops.get(usual.get(count.dtype, ""))


DATA_SHEETS = Path(__file__).with_name("data_sheets.yaml")


def peak_of(device: str) -> Peak | None:
    """Find a device's peak by its name as PyTorch gives it; None where it is not known, as of a
    part of a GPU (MIG).
    """
    import yaml  # only here: ranks import this module

    if " MIG " in f"{device} ":
        return None
    for sheet in yaml.safe_load(DATA_SHEETS.read_text(encoding="utf-8")):
        if re.search(rf"\b{sheet['pattern']}\b", device):
            return Peak(source=f"data sheet of {sheet['device']}", tflops=sheet["tflops"])
    return None
