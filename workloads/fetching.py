"""Published data sets through torchvision's own downloads, which check their digests; only where the user asked for it."""

from __future__ import annotations

from pathlib import Path

from measurement.errors import PlanError


def fetch(name: str, root: Path) -> None:
    """Put a data set of ``torchvision.datasets`` into ``root``, laid out as torchvision does.

    Raises:
        PlanError: it cannot be fetched from here.
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
