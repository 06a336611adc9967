"""Which NCCL a library calls. Two releases may differ in speed, so a comparison has to know."""

from __future__ import annotations

import ctypes
from pathlib import Path

PACKAGES = "site-packages"


class _Symbol(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = (("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p))


def nccl_of(library: str | Path) -> str | None:
    """The NCCL that a library calls, by the linker, such as ``2.30.7 (nvidia/nccl/lib/libnccl.so.2)``; None: it calls none.

    The library is loaded if it is not. NCCL that is linked into it, and hidden, is not seen.
    """
    try:
        function = ctypes.CDLL(str(library)).ncclGetVersion
    except (OSError, AttributeError):
        return None
    number, symbol = ctypes.c_int(), _Symbol()
    if function(ctypes.byref(number)) or not ctypes.CDLL(None).dladdr(function, ctypes.byref(symbol)):
        return None
    return f"{version_of(number.value)} ({_shortened(Path(symbol.file.decode()).resolve())})"


def version_of(code: int) -> str:
    """NCCL's code as people write it: 21805 is 2.18.5 (``NCCL_VERSION`` in nccl.h)."""
    return f"{code // 10_000}.{code % 10_000 // 100}.{code % 100}"


def _shortened(path: Path) -> str:
    """Below an environment's packages, from there."""
    parts = path.parts
    return str(Path(*parts[parts.index(PACKAGES) + 1 :])) if PACKAGES in parts else str(path)
