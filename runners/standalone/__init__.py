"""The start of our ranks, by a driver or by a person.

A driver's ranks serve it; a person's measure by themselves.
"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

from measurement.agent.ringside_agent.settings import read


def serve(backend: str) -> None:
    """Run ``python -m runners.ddp`` or ``hvd`` under any launcher; ends this process.

    A driver sets the agent's variable.
    """
    gc.disable()  # until the engine is built: importing torch leaves no garbage to look for
    settings = read()
    if settings and settings.store:
        from runners.rank.worker import main

        main(settings)
    from runners.processes.process_exit import run_command

    run_command(partial(_serve, backend))


def _serve(backend: str) -> None:
    import typer

    from measurement.registry import search_beside
    from runners.standalone.run import command_line, epilog

    search_beside(Path.cwd())  # as ``python -m`` does
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(epilog=epilog(backend))(command_line(backend))
    app()
