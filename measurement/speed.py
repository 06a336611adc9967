"""Settings of speed that PyTorch has for every framework, alike for all arms."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from measurement.errors import PlanError


class SpeedSettings(BaseModel):
    """A plan's section. What is left out is as PyTorch has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    compile: bool = False
    """Use ``torch.compile`` on the model as the backend wrapped it. Compiling is not timed."""
    channels_last: bool = False
    """Keep image models and batches in PyTorch's channels-last memory format."""
    cudnn_benchmark: bool = False
    """Let cuDNN try its algorithms for each new shape and take the fastest."""
    sync_batchnorm: bool = False
    """Use each framework's synchronised batch norm (``torch.nn.SyncBatchNorm``, ``hvd.SyncBatchNorm``), on GPUs only. Forward
    passes then exchange, so there is no step without exchange and no floor."""
    tf32: bool = False
    """Compute float32 matrix products and convolutions in TensorFloat-32, on GPUs that have it."""

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
