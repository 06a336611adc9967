r"""Passes a rank's output on as UTF-8, whatever bytes libraries write into it: others are written
as ``\xff``.

``horovodrun`` 0.28.1 stops reading a rank at the first byte that is no UTF-8 (``prefix_connection``
in ``horovod/runner/common/util/safe_shell_exec.py``), under Gloo and MPI. The rank then blocks in a
write. A separate process passes the output on, and ends after the rank when all is written.
Standard library only; run by its path.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys

CHUNK_BYTES = 65536


def make_output_readable() -> None:
    """Pass on all later output of this process and its children as UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        reading, writing = os.pipe()
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=reading,
            stdout=descriptor,
            start_new_session=True,
        )
        os.dup2(writing, descriptor)
        os.close(reading)
        os.close(writing)


def main() -> None:
    """Pass standard input on until all who write into it have ended."""
    # launchers send them to all of a rank's children, before its last output
    for name in (
        signal.SIGINT,
        signal.SIGTERM,
    ):
        signal.signal(name, signal.SIG_IGN)
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    while chunk := os.read(0, CHUNK_BYTES):
        _write(decoder.decode(chunk))
    _write(decoder.decode(b"", final=True))


def _write(text: str) -> None:
    left = text.encode()
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    main()
