"""Settings of speed that PyTorch has for every framework, alike for all arms."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SpeedSettings(BaseModel):
    """A plan's section. What is left out is as PyTorch has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compile: bool = False
    """``torch.compile`` of the model as the backend wrapped it. Its first step takes long, and is in no time."""
    channels_last: bool = False
    """Models and batches of images lie in memory by pixels, with the channels of each together."""
    cudnn_benchmark: bool = False
    """cuDNN tries its algorithms for each new shape, and takes the fastest."""
    tf32: bool = False
    """Matrix products and convolutions of float32 in TensorFloat-32, on GPUs that have it."""
