"""The lab's network: a switch in a namespace of its own, one link to each host, shaped both ways; and what passed over them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from measurement.plans import settings
from tests.kit.lab.namespaces import make_network, networks, run_in_network
from tests.kit.lab.programs import program, run
from tests.kit.lab.state import INTERFACE, NETWORKS, NOT_UP, SUBNET, SWITCH, LabError, LabSettings, load_settings

DELAY_UNITS = {"us": 1, "ms": 10**3, "s": 10**6}
LONGEST_DELAY_US = 10 * 10**6
BURST_S = 0.002
"""Length of the burst a link lets through at once: some timer ticks, or it would be slower than its rate."""
LEAST_BURST_BYTES = 16 * 2**10
QUEUE_MS = 50
"""How long a packet may wait for its turn before it is dropped, which is how TCP learns the rate."""


class LinkBytes(NamedTuple):
    """Bytes that passed a host's link since the lab is up, with the headers of Ethernet, IP and TCP."""

    tx_bytes: int
    rx_bytes: int


def parse_rate(text: str) -> int:
    """``100mbit`` or ``2.5gbit`` in bits per second.

    Raises:
        LabError: it is not of that form, or too slow or fast to shape.
    """
    try:
        return settings.parse_rate(text)
    except ValueError as error:
        raise LabError(f"--rate {text!r} is not accepted; {error} (without --rate links are not shaped)") from None


def parse_delay(text: str) -> int:
    """``1ms`` or ``250us`` in microseconds.

    Raises:
        LabError: it is not of that form, or too long.
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(us|ms|s)", text.strip().lower())
    delay = round(float(found[1]) * DELAY_UNITS[found[2]]) if found else 0
    if not 1 <= delay <= LONGEST_DELAY_US:
        raise LabError(f"--delay {text!r} is not accepted; give 1us to 10s, or leave it out")
    return delay


def require_shaping(settings: LabSettings) -> None:
    """Try what the settings ask of the kernel on a network that is gone at once.

    Raises:
        LabError: this kernel cannot do it.
    """
    kinds = (("rate", settings.rate_bits_per_s, "tbf"), ("delay", settings.delay_us, "netem"))
    for option, wished, kind in kinds:
        if wished is not None:
            arguments = _rate(wished) if kind == "tbf" else _delay(wished)
            try:
                run("unshare", "--net", program("tc"), "qdisc", "add", "dev", "lo", "root", *arguments)
            except LabError as error:
                raise LabError(
                    f"this kernel cannot shape links by --{option}: it has no {kind} queue; leave --{option} out, or load it: "
                    f"modprobe sch_{kind} (Debian's linux-image, not its -cloud variant, has it) [{error}]"
                ) from None


def make_switch() -> None:
    """The switch: a bridge without an address, in a network that nothing else is in."""
    make_network(SWITCH)
    run_in_network(SWITCH, "ip", "-batch", "-", stdin="link add switch type bridge\nlink set switch up\n")


def connect(settings: LabSettings, name: str) -> None:
    """A host's network, with one link to the switch."""
    make_network(name)
    plug = (
        f"link add {name} type veth peer name {INTERFACE} netns {NETWORKS / name}\n"
        f"link set {name} master switch\nlink set {name} up\n"
    )
    own = f"address add {settings.address(name)}/{SUBNET.prefixlen} dev {INTERFACE}\nlink set {INTERFACE} up\nlink set lo up\n"
    run_in_network(SWITCH, "ip", "-batch", "-", stdin=plug)
    run_in_network(name, "ip", "-batch", "-", stdin=own)
    shape(settings, network=name, interface=INTERFACE, delay_us=settings.delay_us)
    shape(settings, network=SWITCH, interface=name, delay_us=None)


def shape(settings: LabSettings, *, network: str, interface: str, delay_us: int | None) -> None:
    """Limit what leaves by an interface; a delayed packet first waits, then takes its turn at the rate."""
    handles = {"netem": ("root", "handle", "1:"), "tbf": ("parent", "1:1") if delay_us else ("root",)}
    kinds = [_delay(delay_us)] if delay_us else []
    kinds += [_rate(settings.rate_bits_per_s)] if settings.rate_bits_per_s else []
    for kind, *arguments in kinds:
        run_in_network(network, "tc", "qdisc", "add", "dev", interface, *handles[kind], kind, *arguments)


def reshape(settings: LabSettings, rate_bits_per_s: int | None) -> None:
    """Give every link of the lab that is up another rate, each way, or none (None: not shaped); delays stay."""
    wished = replace(settings, rate_bits_per_s=rate_bits_per_s)
    for name in settings.names:
        for network, interface, delay_us in ((name, INTERFACE, settings.delay_us), (SWITCH, name, None)):
            with contextlib.suppress(LabError):  # a link that is not shaped has nothing to take away
                run_in_network(network, "tc", "qdisc", "del", "dev", interface, "root")
            shape(wished, network=network, interface=interface, delay_us=delay_us)


def link_bytes() -> dict[str, LinkBytes]:
    """What every host sent and received over its link, from the counters of its interface; also when asked inside a host.

    Raises:
        LabError: no lab is up.
    """
    names = [name for name in networks() if name != SWITCH]
    if not names:
        raise LabError(NOT_UP)
    return {name: _counters(run_in_network(name, "cat", "/proc/net/dev")) for name in names}


def _counters(text: str) -> LinkBytes:
    """From the kernel's table of interfaces: received bytes are the first column, sent bytes the ninth."""
    found = re.search(rf"^\s*{INTERFACE}:\s*(.*)$", text, re.MULTILINE)
    columns = found[1].split() if found else []
    if len(columns) < 9:
        raise LabError(f"a host of the lab has no {INTERFACE}; make the lab anew: python -m tests.kit.lab down")
    return LinkBytes(tx_bytes=int(columns[8]), rx_bytes=int(columns[0]))


def _rate(bits_per_s: int) -> list[str]:
    burst = max(LEAST_BURST_BYTES, int(bits_per_s / 8 * BURST_S))
    return ["tbf", "rate", f"{bits_per_s}bit", "burst", str(burst), "latency", f"{QUEUE_MS}ms"]


def _delay(microseconds: int) -> list[str]:
    return ["netem", "delay", f"{microseconds}us", "limit", "10000"]


@contextlib.contextmanager
def links_at(bits_per_s: int | None) -> Iterator[None]:
    """The lab's links at this rate (None: not shaped), afterwards again at that which the lab was made with."""
    settings = load_settings()
    try:
        reshape(settings, bits_per_s)
        yield
    finally:
        reshape(settings, settings.rate_bits_per_s)
