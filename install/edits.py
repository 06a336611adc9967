"""The edits that Horovod 0.28.1 (2023) needs before it compiles against current PyTorch.

Each edit is an exact replacement in one file. A text that is not found is an error, because the
sources are then not the ones that the edits were made for.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from install.toolchain import BuildError


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One exact replacement in one file of the unpacked source distribution."""

    name: str
    """Its name in messages."""
    reason: str
    """Why it is needed."""
    path: str
    """File, relative to the root of the sources."""
    old: str
    """Text to replace; must occur exactly once."""
    new: str
    """Text put in its place."""


CXX_STANDARD = (
    "torch 2.15's headers need C++20; CMakeLists.txt strips -std= from CXXFLAGS, so only an edit"
    " raises it"
)

# Horovod's torch extension is in <prefix>/lib/pythonX.Y/site-packages/horovod/torch.
RPATHS = ("$ORIGIN/../../../..", "$ORIGIN/../../torch/lib", "$ORIGIN/../../nvidia/nccl/lib")

COMMON_EDITS = (
    Edit(
        name="C++20 in the project",
        reason=CXX_STANDARD,
        path="CMakeLists.txt",
        old="set(CMAKE_CXX_STANDARD 14)",
        new="set(CMAKE_CXX_STANDARD 20)",
    ),
    Edit(
        name="C++20 in the torch extension",
        reason=CXX_STANDARD,
        path="horovod/torch/CMakeLists.txt",
        old="set(CMAKE_CXX_STANDARD 14)",
        new="set(CMAKE_CXX_STANDARD 20)",
    ),
    Edit(
        name="relocatable library paths",
        reason=(
            "CMake writes the build environment's absolute path to libmpi into the extension; a"
            " cached wheel must find the Open MPI and the NCCL of the environment that it is"
            " installed into"
        ),
        path="CMakeLists.txt",
        old="project(horovod CXX)",
        new=(
            "project(horovod CXX)\nset(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\nset(CMAKE_INSTALL_RPATH"
            f' "{";".join(RPATHS)}")'
        ),
    ),
)

CPU_EDITS = (
    Edit(
        name="no CUDA in a CPU build",
        reason=(
            "a CUDA build of torch beside any nvcc on PATH makes FindPytorch demand a whole CUDA"
            " toolkit"
        ),
        path="cmake/Modules/FindPytorch.cmake",
        old="(torch.version.cuda is not None)",
        new="False",
    ),
)

NCCL_EDITS = (
    Edit(
        name="C++17 in the CUDA kernels",
        reason="nvcc 13 no longer knows C++11, and its headers need C++17",
        path="horovod/common/ops/cuda/CMakeLists.txt",
        old="set(CMAKE_CUDA_STANDARD 11)",
        new="set(CMAKE_CUDA_STANDARD 17)",
    ),
)


def edits_for(operations: str) -> tuple[Edit, ...]:
    """List the edits of a build for "cpu" or "nccl", in the order in which they are applied."""
    return COMMON_EDITS + (NCCL_EDITS if operations == "nccl" else CPU_EDITS)


def apply_edits(root: Path, edits: Sequence[Edit]) -> None:
    """Apply edits to the unpacked source distribution at ``root``.

    Raises:
        BuildError: A text does not occur exactly once. Edits before it are already made.
    """
    for edit in edits:
        file = root / edit.path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        count = text.count(edit.old)
        if count != 1:
            raise BuildError(
                f"edit '{edit.name}': {edit.path} holds {edit.old!r} {count} times, expected once; "
                "these are not the Horovod sources that the edits in install/edits.py were made for"
            )
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def edits_digest(edits: Sequence[Edit]) -> str:
    """Digest the edits, without names and reasons, for the key of a cached wheel: ten hexadecimal
    digits.
    """
    digest = hashlib.sha256()
    for edit in edits:
        digest.update(f"{edit.path}\0{edit.old}\0{edit.new}\0".encode())
    return digest.hexdigest()[:10]
