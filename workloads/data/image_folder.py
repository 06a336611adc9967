"""``torchvision.datasets.ImageFolder`` on folders as people have them.

Imported when images are read, since torchvision takes a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import is_image_file, pil_loader

from measurement.errors import PlanError
from workloads.data.folders import entries, is_data, readable


class Images(ImageFolder):
    """Images in RGB, decoded on demand, and their classes. What systems and downloads leave beside them is neither."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, loader=read_image)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Return the folders' names, and the number of each."""
        names = [path.name for path in entries(Path(directory)) if path.is_dir()]
        return names, {name: number for number, name in enumerate(names)}

    @staticmethod
    def make_dataset(directory: str | Path, class_to_idx: dict[str, int], *_: Any, **__: Any) -> list[tuple[str, int]]:
        """List the images, class by class."""
        return [(path, number) for name, number in class_to_idx.items() for path in images_below(Path(directory, name))]


def images_below(folder: Path) -> Iterator[str]:
    """Yield the images in a folder and in those below it, sorted. Hidden ones, leftovers and links to nothing are left out.

    Raises:
        PlanError: a folder cannot be read.
    """
    with readable(folder), os.scandir(folder) as listed:
        found = sorted((entry for entry in listed if is_data(entry.name)), key=lambda entry: entry.name)
        for entry in found:
            if entry.is_dir():
                yield from images_below(Path(entry.path))
            elif is_image_file(entry.name) and entry.is_file():
                yield entry.path


def read_image(path: str) -> Any:
    """Read a PIL image in RGB.

    Raises:
        PlanError: the file is damaged, or is no image.
    """
    try:
        return pil_loader(path)
    except (OSError, EOFError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PlanError(f"image '{path}' cannot be read: {' '.join(str(error).split())}; replace it, or remove it") from error
