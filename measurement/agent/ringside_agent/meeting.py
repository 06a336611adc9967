"""Where the processes of a script meet: each start of an arm gets ports and files of its own for
those that the script names.

All Python processes of a start take part: launchers, ranks, and what these start. Each notes what
it asks for in a file beside the key, one for each start and host. Ranks and the driver read it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Any, Callable, Iterable

from .settings import Settings

PORT, UNMAPPED, TAKEN, FILE, SYSTEMS = "port", "unmapped", "taken", "file", "system"
"""What is noted: a port that was asked for; one that is not replaced; one in use; a file; one that
the system chose."""
IN_USE = "already in use"
"""How Python's sockets and torch's stores report a port in use."""
HOROVOD_RUNNER = "horovod.runner"
"""Its servers choose free ports by chance, and pass them to libraries that are not written in
Python."""
MAX_FRAMES = 12


class Meeting:
    """The meeting places of one start of an arm."""

    def __init__(self, settings: Settings) -> None:
        folder = os.path.dirname(settings.key_file)
        start = f"{settings.launch}-{settings.arm}-{settings.start}"
        self._mapped_ports = {
            int(script_port): port for script_port, port in settings.ports.items()
        }
        self._spare, self._hosts = settings.spare_ports, settings.hosts
        self._is_local = settings.cpu and not settings.hosts
        """Whether stores meet on this machine, also where the script names its cluster's
        address."""
        self.notes = os.path.join(folder, f"asked-{start}")
        self.suffix = f".{folder[-8:]}-{start}"
        """What the names of its files end with."""

    def note(self, what: str, value: object) -> None:
        """Note what this process asks for."""
        with contextlib.suppress(OSError), open(self.notes, "a", encoding="utf-8") as file:
            file.write(f"{what} {value}\n")

    def _noted(self) -> dict[str, set[str]]:
        """What all processes of this start on this host have noted."""
        with contextlib.suppress(OSError), open(self.notes, encoding="utf-8") as file:
            return read_notes(file.read())
        return read_notes("")

    def asked(self) -> dict[str, list[Any]]:
        """The ports and files that processes of this start on this host have asked for, as the
        script names them.

        ``ports`` and ``store_files``.
        """
        noted = self._noted()
        ports = noted[PORT] | (noted[UNMAPPED] - noted[SYSTEMS])
        return {"ports": sorted(map(int, ports)), "store_files": sorted(noted[FILE])}

    def remove_files(self, named: Iterable[str]) -> None:
        """Remove this start's copies of the files that are ``named``, and of those that processes
        here have asked for.
        """
        for file in {*named, *self.asked()["store_files"]}:
            with contextlib.suppress(OSError):
                os.unlink(file + self.suffix)

    def watch_sockets(self) -> None:
        """Have Python's own sockets listen and connect at the given ports."""
        module: Any = sys.modules["socket"]
        kind = module.socket
        bind = kind.bind

        def port_of(sock: Any, address: Any) -> Any:
            is_tcp = sock.type == module.SOCK_STREAM and sock.family in (
                module.AF_INET,
                module.AF_INET6,
            )
            return (
                address[1] if is_tcp and isinstance(address, tuple) and len(address) > 1 else None
            )

        @functools.wraps(bind)
        def bound(sock: Any, address: Any) -> None:
            script_port = port_of(sock, address)
            if script_port and not is_horovods_runner(sys._getframe(1)):
                self.note(PORT if script_port in self._mapped_ports else UNMAPPED, script_port)
                address = (
                    address[0],
                    self._mapped_ports.get(script_port, script_port),
                    *address[2:],
                )
            self._serving(script_port, bind, sock, address)
            if script_port == 0:
                self.note(SYSTEMS, sock.getsockname()[1])

        def connecting(connect: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(connect)
            def connected(sock: Any, address: Any) -> Any:
                script_port = port_of(sock, address)
                if script_port in self._mapped_ports and self._is_served(
                    module, sock.family, address[0], script_port
                ):
                    address = (address[0], self._mapped_ports[script_port], *address[2:])
                return connect(sock, address)

            return connected

        kind.bind, kind.connect, kind.connect_ex = (
            bound,
            connecting(kind.connect),
            connecting(kind.connect_ex),
        )

    def _serving(
        self, script_port: Any, begin: Callable[..., None], *args: Any, **kwargs: Any
    ) -> None:
        """Call what listens at a port, and note a port in use."""
        try:
            begin(*args, **kwargs)
        except (OSError, RuntimeError) as error:
            if IN_USE in str(error):
                self.note(TAKEN, script_port)
            raise

    def _is_served(self, socket: Any, family: int, host: str, port: int) -> bool:
        """Whether a process of this start listens at a port of this machine, or the host is another
        one of the arm.
        """
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return str(port) in self._noted()[PORT]
        with contextlib.suppress(OSError):
            return any(
                socket.gethostbyname(host) == socket.gethostbyname(other) for other in self._hosts
            )
        return False

    def watch_stores(self) -> None:
        """Have torch's stores meet at the given ports, and at files of this start."""
        stores: Any = sys.modules.get("torch._C._distributed_c10d")
        if stores is not None:
            stores.TCPStore.__init__ = self._at_port(stores.TCPStore.__init__)
            stores.FileStore.__init__ = self._at_file(stores.FileStore.__init__)

    def _store_port(self, script_port: int) -> int:
        """The port of a store; a spare one where the driver did not know it.

        Ports that the system or the driver chose stay.
        """
        if script_port in self._mapped_ports or not self._spare:
            return self._mapped_ports.get(script_port, script_port)
        is_own = (
            script_port in (*self._spare, *self._mapped_ports.values())
            or str(script_port) in self._noted()[SYSTEMS]
        )
        return script_port if is_own else self._spare[script_port % len(self._spare)]

    def _at_port(self, begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def at_port(store: Any, *args: Any, **kwargs: Any) -> None:
            script_port = kwargs.get("port", args[1] if len(args) > 1 else 0)
            if self._is_local:
                args, kwargs = replaced(args, kwargs, 0, "host_name", "127.0.0.1")
            serves = kwargs.get("is_master", args[3] if len(args) > 3 else False)
            if script_port:
                port = self._store_port(script_port)
                args, kwargs = replaced(args, kwargs, 1, "port", port)
                if serves:
                    self.note(UNMAPPED if port == script_port else PORT, script_port)
            self._serving(script_port, begin, store, *args, **kwargs)
            if serves and not script_port:
                self.note(SYSTEMS, store.port)

        return at_port

    def _at_file(self, begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def at_file(store: Any, *args: Any, **kwargs: Any) -> None:
            named = kwargs.get("file_name", args[0] if args else None)
            if isinstance(named, str):
                path = os.path.realpath(named)
                self.note(FILE, path)
                args, kwargs = replaced(args, kwargs, 0, "file_name", path + self.suffix)
            begin(store, *args, **kwargs)

        return at_file


def replaced(args: Any, kwargs: Any, place: int, name: str, value: object) -> tuple[Any, Any]:
    """The arguments of a call, one of them replaced, by its name or its place."""
    if name in kwargs:
        return args, {**kwargs, name: value}
    return (*args[:place], value, *args[place + 1 :]), kwargs


def read_notes(text: str) -> dict[str, set[str]]:
    """The values that the lines of a file of notes have, by what they are."""
    notes: dict[str, set[str]] = {what: set() for what in (PORT, UNMAPPED, TAKEN, FILE, SYSTEMS)}
    for what, _, value in (line.partition(" ") for line in text.split("\n")):
        notes.setdefault(what, set()).add(value)
    return notes


def is_horovods_runner(frame: Any) -> bool:
    """Whether one of Horovod's own servers is being started."""
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__", "")).startswith(HOROVOD_RUNNER):
            return True
        frame = frame.f_back
    return False
