"""A small driver for scripts under the agent: a server, a supervisor server, and the command in the
environment it needs."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shlex
import subprocess
import sys
from datetime import timedelta

from measurement.addresses import free_port
from measurement.agent.ringside_agent.supervision.frames import command_key, reply_key
from runners.processes.supervisor_server import SupervisorServer
from runners.protocol import REPLIES, BlockCommand, FinishCommand, StartCommand
from tests.conftest import REPOSITORY
from tests.kit.commands import environment

SCRIPTS = REPOSITORY / "tests" / "outside" / "scripts"
AGENT = REPOSITORY / "measurement" / "agent"
TIMEOUT = timedelta(seconds=150)


def two_ranks(*words):
    """Start a script of PyTorch's as somebody does who exports the variables: ``torchrun`` would
    import it once more."""
    place = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()} WORLD_SIZE=2 LOCAL_WORLD_SIZE=2"
    rank = f"RANK=$rank LOCAL_RANK=$rank python {shlex.join(words)}"
    return ["sh", "-c", f"export {place}; for rank in 0 1; do {rank} & done; wait"]


class ScriptDriver:
    """One arm in launch 0.

    ``start`` runs a command; ``ask`` exchanges a message with all its ranks."""

    def __init__(self, folder, *, ranks=2, **settings):
        self.ranks, self.arm = ranks, "script"
        key = secrets.token_hex(32)
        key_file = folder / "key"
        key_file.write_text(key)
        self.supervisors = SupervisorServer(address="127.0.0.1", key=key)
        self._settings = {
            "driver": self.supervisors.address,
            "key_file": str(key_file),
            "arm": self.arm,
            "launch": 0,
            "python": sys.executable,
            **settings,
        }
        self._log, self._number = folder / "log", 0

    def start(self, *argv, **settings):
        """Run a command, and give its ranks the first one of ours."""
        self.send(StartCommand())
        agent = base64.urlsafe_b64encode(
            json.dumps({**self._settings, **settings}).encode()
        ).decode()
        variables = {"PYTHONPATH": str(AGENT), "RINGSIDE_AGENT": agent, "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                env=environment() | variables,
                cwd=SCRIPTS,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def send(self, command):
        self.supervisors.set(
            self.arm, 0, command_key(self.arm, 0, self._number), command.model_dump_json()
        )
        self._number += 1

    def receive(self):
        """Every rank's reply to the last command."""
        keys = [reply_key(self.arm, 0, self._number - 1, rank) for rank in range(self.ranks)]
        replies: dict[str, bytes] = {}
        while len(replies) < self.ranks:
            came = self.supervisors.take(
                self.arm, 0, [key for key in keys if key not in replies], TIMEOUT
            )
            assert came, self.log
            replies |= came
        return [REPLIES.validate_json(replies[key]) for key in keys]

    def ask(self, command):
        self.send(command)
        return self.receive()

    def block(self, steps=10, *, warmup=2, block=0):
        command = BlockCommand(
            turn=block, round=block, block=block, steps=steps, warmup_steps=warmup
        )
        return self.ask(command)

    def finish(self):
        replies = self.ask(FinishCommand())
        self.exit_code = self.process.wait(timeout=60)
        return replies

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def close(self):
        """End what still runs."""
        with contextlib.suppress(Exception):
            self.supervisors.tell(self.arm, 0, "kill")
        self.supervisors.close()
        self.process.terminate()
        self.process.wait(timeout=20)
