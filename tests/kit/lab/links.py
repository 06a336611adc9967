"""The lab's network: a switch in a namespace of its own, one link to each host, shaped both
ways."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.kit.lab.namespaces import make_network, run_in_network
from tests.kit.lab.state import (
    INTERFACE,
    NETWORKS,
    SUBNET,
    SWITCH,
    LabError,
    LabSettings,
    load_settings,
)

BURST_S = 0.002
"""Length of the burst a link lets through at once: some timer ticks, or it would be slower than its
rate."""
MIN_BURST_BYTES = 16 * 2**10
QUEUE_MS = 50
"""How long a packet may wait for its turn before it is dropped, which is how TCP learns the
rate."""


def make_switch() -> None:
    """The switch: a bridge without an address, in a network that nothing else is in."""
    make_network(SWITCH)
    run_in_network(
        SWITCH, "ip", "-batch", "-", stdin="link add switch type bridge\nlink set switch up\n"
    )


def connect(settings: LabSettings, name: str) -> None:
    """A host's network, with one link to the switch."""
    make_network(name)
    plug = (
        f"link add {name} type veth peer name {INTERFACE} netns {NETWORKS / name}\n"
        f"link set {name} master switch\nlink set {name} up\n"
    )
    commands = f"address add {settings.address(name)}/{SUBNET.prefixlen} dev {INTERFACE}\nlink set {INTERFACE} up\nlink set lo up\n"
    run_in_network(SWITCH, "ip", "-batch", "-", stdin=plug)
    run_in_network(name, "ip", "-batch", "-", stdin=commands)
    shape(settings, settings.rate_bits_per_s, name)


def shape(settings: LabSettings, bits_per_s: int | None, *names: str) -> None:
    """Limit what these hosts send and receive over their links; None: not at all."""
    for name in names or settings.names:
        for network, interface in ((name, INTERFACE), (SWITCH, name)):
            # a link that is not shaped has nothing to take away
            with contextlib.suppress(LabError):
                run_in_network(network, "tc", "qdisc", "del", "dev", interface, "root")
            if bits_per_s is not None:
                burst = max(MIN_BURST_BYTES, int(bits_per_s / 8 * BURST_S))
                queue = f"tbf rate {bits_per_s}bit burst {burst} latency {QUEUE_MS}ms".split()
                run_in_network(network, "tc", "qdisc", "add", "dev", interface, "root", *queue)


@contextlib.contextmanager
def links_at(bits_per_s: int | None) -> Iterator[None]:
    """The lab's links at this rate (None: not shaped), afterwards again at that which the lab was
    made with."""
    settings = load_settings()
    try:
        shape(settings, bits_per_s)
        yield
    finally:
        shape(settings, settings.rate_bits_per_s)
