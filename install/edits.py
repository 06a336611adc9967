"""The edits that Horovod 0.28.1 (2023) needs before it compiles against current PyTorch.

Each edit is an exact replacement in one file. A text that is not found is an error, because the
sources are then not the ones that the edits were made for.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from install.toolchain import BuildError


class Edit(NamedTuple):
    """One exact replacement in one file of the unpacked source distribution."""

    path: str
    """File, relative to the root of the sources."""
    old: str
    """Text to replace; must occur exactly once."""
    new: str
    """Text put in its place."""


# Horovod's torch extension is in <prefix>/lib/pythonX.Y/site-packages/horovod/torch.
RPATHS = ("$ORIGIN/../../../..", "$ORIGIN/../../torch/lib", "$ORIGIN/../../nvidia/nccl/lib")

COMMON_EDITS = (
    # torch 2.15's headers need C++20; CMakeLists.txt strips -std= from CXXFLAGS
    Edit("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 20)",
    ),
    # CMake writes the build environment's absolute path to libmpi into the extension; a cached
    # wheel must find the Open MPI and the NCCL of the environment that it is installed into
    Edit(
        "CMakeLists.txt",
        "project(horovod CXX)",
        "project(horovod CXX)\nset(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\nset(CMAKE_INSTALL_RPATH"
        f' "{";".join(RPATHS)}")',
    ),
)
# a CUDA build of torch beside any nvcc on PATH makes FindPytorch demand a whole CUDA toolkit
CPU_EDITS = (Edit("cmake/Modules/FindPytorch.cmake", "(torch.version.cuda is not None)", "False"),)
# nvcc 13 no longer knows C++11, and its headers need C++17
NCCL_EDITS = (
    Edit(
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        "set(CMAKE_CUDA_STANDARD 17)",
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
                f"{edit.path} holds {edit.old!r} {count} times, expected once: these are not the"
                " Horovod sources that the edits in install/edits.py were made for"
            )
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def edits_digest(edits: Sequence[Edit]) -> str:
    """Digest the edits for the key of a cached wheel: ten hexadecimal digits."""
    texts = "".join(f"{text}\0" for edit in edits for text in edit)
    return hashlib.sha256(texts.encode()).hexdigest()[:10]
