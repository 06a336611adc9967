"""Settings of speed that PyTorch has for every framework, alike for all arms."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from measurement.errors import PlanError


class SpeedSettings(BaseModel):
    """A plan's section. What is left out is as PyTorch has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compile: bool = False
    """``torch.compile`` of the model as the backend wrapped it. Its first step takes long, and is in no time."""
    channels_last: bool = False
    """Models and batches of images lie in memory by pixels, with the channels of each together."""
    cudnn_benchmark: bool = False
    """cuDNN tries its algorithms for each new shape, and takes the fastest."""
    sync_batchnorm: bool = False
    """Batch norms take their statistics over all ranks, each framework's own way (``torch.nn.SyncBatchNorm``,
    ``hvd.SyncBatchNorm``): on GPUs only. Forward passes exchange then, so that there are no steps without exchange, nor a floor."""
    tf32: bool = False
    """Matrix products and convolutions of float32 in TensorFloat-32, on GPUs that have it."""

    def check_device(self, kind: str) -> None:
        """Refuse settings that a kind of device, ``cpu`` or ``cuda``, has not.

        Raises:
            PlanError: with the libraries' reason.
        """
        if self.sync_batchnorm and kind != "cuda":
            raise PlanError(
                "speed.sync_batchnorm: this run is on the CPU, and the synchronised batch norms of PyTorch and Horovod refuse that "
                "('SyncBatchNorm expected input tensor to be on GPU'); leave it out"
            )
