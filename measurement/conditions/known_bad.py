"""Versions with a known fault that slows or breaks exchange: our list (``known_bad.yaml``), and
those of sites and users.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter

from measurement.errors import RingsideError, cut
from measurement.files import read_text

BUILT_IN = Path(__file__).with_suffix(".yaml")
Version = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$")]


class KnownBad(BaseModel):
    """One entry of a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    """Such as nccl: the last part of a condition's name."""
    first: Version
    last: Version | None = None
    """With all versions that begin so; None: all later ones."""
    fault: str
    """What follows package and version in a sentence."""
    source: str
    """Address of a report of the fault."""
    remedy: str = ""

    def covers(self, version: str) -> bool:
        """Whether this version has the fault."""
        first, last, own = map(_numbers, (self.first, self.last or version, version))
        return first <= own and own[: len(last)] <= last


VERSION = re.compile(r"\d+(\.\d+)*")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def faults(package: str, version_text: object) -> dict[str, str]:
    """The known faults of a version, as sentences without a full stop, each with its remedy or an
    empty one.

    ``version_text``: a text with the version in it, such as ``2.30.7
    (nvidia/nccl/lib/libnccl.so.2)``.
    """
    version = VERSION.search(str(version_text))
    return {
        f"{package} {version[0]} {entry.fault} ({entry.source})": entry.remedy
        for entry in known_bad()
        if version and entry.package == package and entry.covers(version[0])
    }


def faults_clause(field: str, values: Mapping[str, Any]) -> str:
    """The known faults of these versions, to append to the sentence about a difference; empty where
    there are none.
    """
    package = field.rpartition(".")[2]
    found = dict.fromkeys(fault for value in values.values() for fault in faults(package, value))
    return "".join(f"; {fault}" for fault in found)


@functools.cache
def known_bad() -> Sequence[KnownBad]:
    """All entries.

    Raises:
        RingsideError: an added list cannot be read.
    """
    of_user = Path(os.environ.get("HOME", "/"), ".config/ringside/known-bad.yaml")
    return [
        entry
        for path in (BUILT_IN, Path("/etc/ringside/known-bad.yaml"), of_user)
        for entry in _read(path)
    ]


def _read(path: Path) -> list[KnownBad]:
    try:
        return TypeAdapter(list[KnownBad]).validate_python(yaml.safe_load(read_text(path)) or [])
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RingsideError(
            f"{path} cannot be read: {cut(str(error))}; it must be a list like {BUILT_IN}"
        ) from error
