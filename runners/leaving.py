"""How processes end that have loaded torch: without the interpreter's own teardown.

In it Gloo may abort after correct results, libraries wait for peers that have gone, and some print what they leaked.
"""

import atexit
import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def leave_in_order(code: int) -> NoReturn:
    """End when everything has run that was registered for the exit, and MPI has been finalized where all went well.

    mpi4py has the interpreter finalize MPI, later than this goes; ``mpirun`` takes a rank that ends without for a failed one.
    """
    atexit._run_exitfuncs()
    if code == 0 and "mpi4py.MPI" in sys.modules:
        from backends.mpi_library import finalize

        finalize()
    leave(code)
