"""Where ``python -m runners.ddp``, ``hvd``, ``single`` and ``dp`` begin, under whatever launcher started them."""

from __future__ import annotations

import gc
from functools import partial


def serve(backend: str) -> None:
    """Be ``python -m runners.<backend>``; ends this process."""
    gc.disable()  # until the engine stands: importing torch leaves no garbage, and looking for it takes long
    from runners.processes.process_exit import run_command

    run_command(partial(_serve, backend))


def _serve(backend: str) -> None:
    import typer

    from runners.standalone.command import command_line, epilog

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=epilog(backend))(command_line(backend))
    app()
