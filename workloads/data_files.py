"""Where a workload's data lies: options that name it, and one message that says what is missing and how to get it."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from measurement.errors import PlanError
from workloads.input import InputOptions

SHOWN = 4
"""How many names a message lists."""

Place = Annotated[Path, AfterValidator(Path.expanduser)]


class DataOptions(InputOptions):
    """Options of a workload that reads files."""

    data_dir: Place = Path("data")
    """Where the data lies; relative to where the run was started."""
    pretrained: Place | None = None
    """A state dict to start from, as ``torch.save(model.state_dict(), path)`` writes it; none is ever downloaded."""


class FetchOptions(DataOptions):
    """Options of a workload whose data torchvision can fetch."""

    download: bool = False
    """Fetch what is missing into ``data_dir``; needs a network."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Files that must lie together in one of some folders."""

    workload: str
    names: tuple[str, ...]
    folders: tuple[Path, ...]
    remedy: str
    suffixes: tuple[str, ...] = ("",)
    """A file may have any of these; the first wins."""

    def find(self) -> dict[str, Path] | None:
        """Each file by its name, in the first folder that has them all."""
        for folder in self.folders:
            found = {name: path for name in self.names if (path := self._in(folder, name))}
            if len(found) == len(self.names):
                return found
        return None

    def _in(self, folder: Path, name: str) -> Path | None:
        return next((path for suffix in self.suffixes if (path := folder / f"{name}{suffix}").is_file()), None)

    def require(self, fetch: Callable[[], None] | None = None) -> dict[str, Path]:
        """Each file by its name; fetched first where they are missing and ``fetch`` is given.

        Raises:
            PlanError: they are nowhere.
        """
        found = self.find()
        if found is None and fetch is not None:
            with only_one_process(self.folders[-1]):
                if self.find() is None:
                    fetch()
            found = self.find()
        if found is None:
            raise self._missing()
        return found

    def _missing(self) -> PlanError:
        or_with = "".join(f" (or with {suffix})" for suffix in self.suffixes if suffix)
        places = " or ".join(f"'{folder.absolute()}'" for folder in self.folders)
        return missing(self.workload, f"{', '.join(self.names)}{or_with} in {places}", folders=self.folders, remedy=self.remedy)


def missing(workload: str, expected: str, *, folders: Sequence[Path], remedy: str) -> PlanError:
    """The message for data that is not there: what was expected where, what was found, what to do."""
    found = "; ".join(map(describe, folders))
    return PlanError(f"workload '{workload}' finds no data: expected {expected}; found: {found}; {remedy}")


def describe(place: Path) -> str:
    """What lies there, in a few words."""
    if not place.exists():
        return f"'{place.absolute()}' does not exist"
    if not place.is_dir():
        return f"'{place.absolute()}' is a file"
    return f"'{place.absolute()}' holds {first_few(sorted(path.name for path in place.iterdir())) or 'nothing'}"


def first_few(names: Iterable[str]) -> str:
    """The first of a list, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"{', '.join(listed[:SHOWN])}{more}"


@contextmanager
def only_one_process(folder: Path) -> Iterator[None]:
    """One process at a time, of all on this host; a lock that a killed process does not keep.

    Raises:
        PlanError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".fetching").open("w")
    except OSError as error:
        raise PlanError(f"nothing can be fetched into '{folder.absolute()}': {error.strerror}; set data_dir elsewhere") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
