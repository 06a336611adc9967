"""The driver's side of the supervisors' connections: messages to and from ranks, and commands that
stop, continue and kill them.

Each host of an arm has one connection, from its first supervisor (``host_relay`` is the other
side). Each begins with a greeting, which proves that it belongs to the comparison; see
``rank_supervisor.greet``.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import select
import socket
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from pydantic import ValidationError

from measurement.addresses import listen, with_port
from measurement.agent.ringside_agent.supervision.frames import pack, say, seal, unseal
from measurement.agent.ringside_agent.supervision.host_relay import FOLLOWER_S, LATEST
from measurement.agent.ringside_agent.supervision.rank_supervisor import (
    COUNTERS,
    FAILED,
    keep_alive,
    prove,
    receive_line,
)
from measurement.errors import LaunchError
from measurement.records.host_use import HostCounters
from runners.processes.supervised_arm import HostConnection, SupervisedArm, SupervisedRank

ACKNOWLEDGE_TIMEOUT_S = FOLLOWER_S + 5
GREETING_TIMEOUT_S = 5.0
MAX_GREETINGS = 128
"""Connections without a greeting yet. At the limit others are closed and retry."""
REFUSED_S = 5.0
"""How long a refused connection counts among them."""
FULL_S = 0.05
"""How long the driver accepts no connection at the limit. Both keep a flood of connections from
using a measured core."""


class SupervisorServer:
    """Serves the supervisors of all ranks of a comparison.

    A thread accepts connections; the driver's thread talks to them.
    """

    def __init__(self, *, address: str, key: str) -> None:
        """``key``: of the comparison; unauthenticated connections are closed."""
        self._key = key
        self._arms: dict[tuple[str, int], SupervisedArm] = {}
        self._starts: dict[tuple[str, int], int] = {}
        """How often an arm was restarted in a launch; missing: never."""
        self._lock = threading.Lock()
        """Held while an arm gets a host or a message to send, so that no host misses one."""
        self._address = address
        self._greetings = threading.BoundedSemaphore(MAX_GREETINGS)
        self._server = listen(address)
        threading.Thread(target=self._accept, name="ringside-supervisors", daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` for the supervisors to connect to."""
        return with_port(self._address, self._server.getsockname()[1])

    def heard(self, arm: str, launch: int) -> SupervisedArm:
        """Return what the supervisors of an arm have reported so far. Does not wait."""
        supervised_arm = self._arm(arm, launch)
        supervised_arm.hear_all(timeout_s=0)
        ranks = dict(supervised_arm.ranks)  # others may connect meanwhile
        return replace(supervised_arm, ranks=ranks, refused=list(supervised_arm.refused))

    def set(self, arm: str, launch: int, place: str, text: str) -> None:
        """Send a message to every rank of an arm, also to those that connect later."""
        with self._lock:
            supervised_arm = self._arms.setdefault((arm, launch), SupervisedArm())
            supervised_arm.latest[place] = sealed = seal(self._key, place, text)
            while len(supervised_arm.latest) > LATEST:
                del supervised_arm.latest[next(iter(supervised_arm.latest))]
            for host in supervised_arm.open_hosts:
                host.send(say(place, sealed))

    def take(
        self, arm: str, launch: int, places: Collection[str], timeout: timedelta
    ) -> dict[str, bytes]:
        """Wait for a message from ranks in any of these places; return all there are, by place, and
        forget them.

        What other arms send is read, too, to be taken later. Call it every few seconds: the kernel
        ends a connection that is full and not read for ``LOST_AFTER_S``.

        Raises:
            LaunchError: a message is not from a rank of the comparison.
        """
        supervised_arm, deadline = (
            self._arm(arm, launch),
            time.monotonic() + timeout.total_seconds(),
        )
        with self._lock:
            others = [other for other in self._arms.values() if other is not supervised_arm]
        for other in others:
            other.hear_all(timeout_s=0)
        while not (
            sealed_texts := {
                place: supervised_arm.messages.pop(place)
                for place in list(supervised_arm.messages)
                if place in places
            }
        ):
            left_s = deadline - time.monotonic()
            # with no timeout, too, what has arrived is read
            if not supervised_arm.hear_all(timeout_s=left_s) and left_s <= 0:
                break
        try:
            return {
                place: unseal(self._key, place, sealed) for place, sealed in sealed_texts.items()
            }
        except ConnectionError as error:
            raise LaunchError(
                f"{error}: another process on the network writes to its connections; "
                "close the driver's ports to others (docs/security.md)"
            ) from error

    def tell(self, arm: str, launch: int, *words: str) -> dict[str, HostCounters]:
        """Send commands to every supervisor of an arm and wait until each has carried them out, in
        order.

        Returns:
            The counters of every host, if ``counters`` is among them, without those that cannot be
            read.

        Raises:
            LaunchError: a supervisor does not answer in time, or reports a failure.
        """
        counters: dict[str, HostCounters] = {}
        for host, answer in self._ask(arm, launch, words):
            if answer.startswith(COUNTERS):
                with contextlib.suppress(ValidationError):
                    counters.setdefault(
                        host, HostCounters.model_validate_json(answer.removeprefix(COUNTERS))
                    )
            elif answer.startswith(FAILED) and not answer.startswith(f"{FAILED} {COUNTERS}"):
                rank, _, why = answer.removeprefix(f"{FAILED} ").partition(" ")[2].partition(" ")
                raise LaunchError(f"rank {rank} on {host}: {why}")
        return counters

    def driver_time(self, arm: str, launch: int, rank: int, at_s: float) -> float:
        """Convert a time of a rank's host, seconds since the epoch, to the driver's clock, by the
        host's fastest report.
        """
        ranks = self.heard(arm, launch).ranks
        if rank not in ranks:
            return at_s
        return at_s + min(
            supervised.clock_behind_s
            for supervised in ranks.values()
            if supervised.host == ranks[rank].host
        )

    def release(self, arm: str, launch: int) -> None:
        """Close an arm's connections and forget its messages.

        Supervisors then kill ranks that still run.
        """
        with self._lock:
            supervised_arm = self._arms.pop((arm, launch), None)
        for host in supervised_arm.hosts.values() if supervised_arm else ():
            host.connection.close()

    def restart(self, arm: str, launch: int, start: int) -> None:
        """Forget an arm that is restarted for the ``start``-th time: connections of other starts
        are closed.
        """
        with self._lock:
            self._starts[arm, launch] = start
        self.release(arm, launch)

    def close(self) -> None:
        """Close everything."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for arm, launch in list(self._arms):
            self.release(arm, launch)

    def _arm(self, arm: str, launch: int) -> SupervisedArm:
        """The state of an arm; empty before it starts and after it was released."""
        with self._lock:
            return self._arms.get((arm, launch)) or SupervisedArm()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            if self._greetings.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            else:
                connection.close()
                time.sleep(FULL_S)

    def _greet(self, connection: socket.socket) -> None:
        """Read the greeting; close connections without the key, of another start, or that are too
        slow.
        """
        closing = threading.Timer(GREETING_TIMEOUT_S, _shut, [connection])
        closing.start()
        try:
            challenge = secrets.token_hex(16)
            connection.sendall(f"{challenge}\n".encode())
            *who, proof = receive_line(connection, max_bytes=1024).split()
            if not hmac.compare_digest(proof.encode(), prove(self._key, challenge, *who).encode()):
                raise ConnectionError("it does not have the key")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection)
            self._welcome(connection, who)
        except (OSError, ValueError):
            connection.close()
            time.sleep(REFUSED_S)
        finally:
            closing.cancel()
            self._greetings.release()

    def _welcome(self, connection: socket.socket, who: Sequence[str]) -> None:
        """Accept a host's first supervisor and send it its ranks' latest messages; refuse a second
        one of a rank.
        """
        arm, launch, start, rank, world_size, host, pid, at_s = who
        supervised_rank = SupervisedRank.reported(host, rank, world_size, pid, at_s)
        with self._lock:
            if int(start) != self._starts.get((arm, int(launch)), 0):
                raise ConnectionError("it is of another start")
            supervised_arm = self._arms.setdefault((arm, int(launch)), SupervisedArm())
            if not supervised_arm.take_in(supervised_rank):
                raise ConnectionError("its rank has a supervisor")
            for place, sealed in supervised_arm.latest.items():
                connection.sendall(say(place, sealed))
            supervised_arm.hosts[connection.fileno()] = HostConnection(
                host=host, connection=connection, ranks=[supervised_rank]
            )
            supervised_arm.listening.register(connection, select.EPOLLIN)

    def _ask(self, arm: str, launch: int, words: Sequence[str]) -> list[tuple[str, str]]:
        """Send commands to all hosts of an arm; returns pairs of host and answer, without hosts
        that disconnect meanwhile.

        Raises:
            LaunchError: a host does not answer in time.
        """
        supervised_arm, deadline = self._arm(arm, launch), time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        hosts, packed = supervised_arm.open_hosts, b"".join(map(pack, words))
        for host in hosts:
            host.send(packed, socket.MSG_DONTWAIT)
        answers: list[tuple[str, str]] = []
        spoke, missing = hosts, {host: list(words) for host in hosts}
        while missing:
            for host in spoke:
                left = missing.get(host, [])
                while left and (text := host.take_answer(left[0])) is not None:
                    answers.append((host.host, text))
                    del left[0]
                if host in missing and (not left or host.is_closed):
                    del missing[host]
            left_s = deadline - time.monotonic()
            if missing and left_s < 0:
                rank, name, word = min(
                    (host.ranks[0].rank, host.host, left[0]) for host, left in missing.items()
                )
                raise LaunchError(
                    f"rank {rank} on {name} did not acknowledge '{word}': its supervisor does not"
                    " answer"
                )
            spoke = supervised_arm.hear_all(timeout_s=left_s) if missing else []
        return answers


def _shut(connection: socket.socket) -> None:
    """End all waiting for data from this connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
