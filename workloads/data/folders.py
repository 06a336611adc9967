"""What users' folders hold: files in any spelling, and beside them what systems, editors and downloads leave."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measurement.errors import PlanError

LEFTOVERS = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "__pycache__", "lost+found", "@eadir", "$recycle.bin"}
)
HALF_WRITTEN = (".part", ".partial", ".crdownload", ".download", ".tmp", ".temp", ".filepart", ".aria2", ".opdownload", "~")
SYNONYMS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev")}
"""What the folders and files of the two parts of a data set are called."""
PACKED = (".gz", ".gzip", ".xz", ".bz2", ".zip")


def is_data(name: str) -> bool:
    """Whether an entry of a folder is data by its name: not hidden, no leftover, not half-written."""
    lower = name.lower()
    return not lower.startswith((".", "~$")) and lower not in LEFTOVERS and not lower.endswith(HALF_WRITTEN)


def spelling(name: str) -> str:
    """A file's name as it is compared: in small letters, with dashes for ``.`` and ``_``, without the suffixes of a packed file.

    7-Zip unpacks ``train-images.idx3-ubyte``, others ``train-images-idx3-ubyte``.
    """
    lower = name.lower()
    return re.sub(r"[._]", "-", re.sub(r"(\.(?:bin|pkl|pickle|gz|gzip|xz|bz2|zip))+$", "", lower))


def chosen(found: Sequence[Path], name: str) -> tuple[Path | None, str]:
    """Choose among paths that may be ``name``: the one that is called so, else the only one.

    Returns:
        The path, None if there is none; and one sentence for the user, empty where there was nothing to choose.

    Raises:
        PlanError: there are several, and none is called so.
    """
    exact = next((path for path in found if path.name == name), None)
    names = ", ".join(path.name for path in found if path != exact)
    if exact is not None:
        return exact, f"'{exact}' is read; beside it, {names} may be meant and is not read" if names else ""
    if len(found) > 1:
        raise PlanError(f"'{found[0].parent}' holds several that may be {name}: {names}; keep one, or call it {name}")
    return (found[0], f"'{found[0]}' is read as {name}") if found else (None, "")


@contextmanager
def readable(place: Path) -> Iterator[None]:
    """Turn what the system says of a path that cannot be read into an error of the user's.

    Raises:
        PlanError: with the path and the reason.
    """
    try:
        yield
    except OSError as error:
        raise PlanError(f"'{place}' cannot be read: {error.strerror}; see its permissions, or set data_dir elsewhere") from error


def entries(folder: Path) -> list[Path]:
    """The data in a folder, sorted; nothing where there is no such folder.

    Raises:
        PlanError: it cannot be read.
    """
    with readable(folder):
        try:
            return sorted(path for path in folder.iterdir() if is_data(path.name))
        except (FileNotFoundError, NotADirectoryError):
            return []


def below(folder: Path, inside: str) -> Path:
    """A path below a folder, in the spelling that it has there, capital letters or small."""
    for part in Path(inside).parts:
        alike = [path for path in entries(folder) if path.name.lower() == part.lower()]
        folder = folder / part if folder / part in alike or not alike else alike[0]
    return folder


def files_named(folder: Path, name: str) -> list[Path]:
    """Every file of that name in a folder, in whatever spelling; also below a folder of that name, as Kaggle has it.

    The one that is spelt as asked comes first, compressed ones come last.

    Raises:
        PlanError: the folder cannot be read.
    """
    alike = [path for path in entries(folder) if spelling(path.name) == spelling(name)]
    with readable(folder):
        inner = [file for path in alike if path.is_dir() for file in entries(path) if spelling(file.name) == spelling(name)]
        files = [path for path in (*alike, *inner) if path.is_file()]
    return sorted(files, key=lambda path: (path.name.lower().endswith(PACKED), path.name != name))
