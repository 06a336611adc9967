"""Downloads published datasets through torchvision, which checks their digests. Only done where the user asked for it."""

from __future__ import annotations

from pathlib import Path

from measurement.errors import PlanError


def fetch(name: str, root: Path) -> None:
    """Download a dataset of ``torchvision.datasets`` into ``root``, where torchvision would look for it.

    Raises:
        PlanError: it cannot be downloaded from here.
    """
    from torchvision import datasets

    try:
        getattr(datasets, name)(root, download=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(
            f"{name} cannot be downloaded into '{root.absolute()}': {reason}; fetch it on a machine with a network, "
            f"torchvision.datasets.{name}({str(root)!r}, download=True), and copy the folder"
        ) from error
