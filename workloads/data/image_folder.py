"""``torchvision.datasets.ImageFolder``, without hidden and half-written files.

Imported when images are read, since torchvision takes a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import is_image_file, pil_loader

from measurement.errors import PlanError
from workloads.data.files import entries, is_data


class Images(ImageFolder):
    """Images in RGB, decoded on demand, and their classes.

    Files that systems and downloads leave there are ignored.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, loader=read_image, is_valid_file=is_image, allow_empty=True)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Return the folders' names, and the number of each."""
        names = [path.name for path in entries(Path(directory)) if path.is_dir()]
        return names, {name: number for number, name in enumerate(names)}


def is_image(path: str) -> bool:
    """Whether a file is an image by its name, and neither hidden nor half-written, nor in a hidden
    folder.
    """
    return is_image_file(path) and all(map(is_data, Path(path).parts[-2:]))


def read_image(path: str) -> Any:
    """Read a PIL image in RGB.

    Raises:
        PlanError: the file is damaged, or is no image.
    """
    try:
        return pil_loader(path)
    except (OSError, EOFError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PlanError(
            f"image '{path}' cannot be read: {' '.join(str(error).split())}; replace it, or"
            " remove it"
        ) from error
