"""Keys made for one lab, and the files by which ssh between its hosts works by name, under nobody's
own configuration.

The hosts see the client configuration, /etc/hosts and /etc/shadow below by bind mounts; the
machine's files stay as they are. The user's ~/.ssh is hidden from them. Over ssh a command finds
the programs that ``up`` found, the running Python's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.kit.lab.programs import run
from tests.kit.lab.state import ETC, SSH, LabSettings

USER_KEY = SSH / "id_ed25519"
AUTHORIZED = SSH / "authorized_keys"
KNOWN_HOSTS = SSH / "known_hosts"
SERVER = SSH / "sshd_config"
MACHINES_CLIENT = Path("/etc/ssh/ssh_config")

SERVER_TEXT = f"""\
AuthorizedKeysFile {AUTHORIZED}
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers root
UsePAM no
UseDNS no
PrintMotd no
PidFile none
MaxStartups 1000
MaxSessions 1000
"""
"""MaxStartups: a launcher opens a connection for every rank, all at once; the default drops some
from the eleventh on."""

CLIENT_TEXT = """\
Host {names}
    User root
    IdentityFile {key}
    IdentitiesOnly yes
    UserKnownHostsFile {known}
    GlobalKnownHostsFile {known}
    StrictHostKeyChecking yes
    UpdateHostKeys no
    LogLevel ERROR
Match all
"""
SHADOW_TEXT = "root:*:19000:0:99999:7:::\n"
"""sshd without PAM takes no key for a locked root ("!"), as some distributions have it; "*" has no
password, but is not locked."""


def host_key(name: str) -> Path:
    """The private key by which a host is known."""
    return SSH / f"{name}_ed25519"


def write_files(settings: LabSettings, *, environment: Mapping[str, str]) -> None:
    """Make the keys and write all files.

    ``environment``: what every command run over ssh finds in its environment."""
    for folder in (SSH, ETC / "ssh"):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    known, hosts = [], ["127.0.0.1 localhost", "::1 localhost"]
    for name in settings.names:
        known.append(f"{name},{settings.address(name)} {make_key(host_key(name), name)}")
        hosts.append(f"{settings.address(name)} {name}")
    texts = {
        AUTHORIZED: make_key(USER_KEY, "ringside-lab"),
        KNOWN_HOSTS: "".join(known),
        SERVER: SERVER_TEXT + server_environment(environment),
        ETC / "hosts": "\n".join(hosts) + "\n",
        ETC / "shadow": SHADOW_TEXT,
        ETC / "ssh" / "ssh_config": client_text(settings),
    }
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
        # whatever the umask: sshd takes no keys from what others may write
        file.chmod(0o600 if file.name == "shadow" else 0o644)


def server_environment(environment: Mapping[str, str]) -> str:
    """The line of sshd's configuration that sets variables in every session; a value that cannot be
    quoted there is left out.

    SHLVL: bash reads ~/.bashrc in the outermost shell of an ssh connection only, and that may put
    another Python first on PATH.
    """
    variables = {**environment, "SHLVL": "1"}
    quotable = {key: value for key, value in variables.items() if not set(value) & set('"\\\n')}
    return "SetEnv " + " ".join(f'"{key}={value}"' for key, value in quotable.items()) + "\n"


def client_text(settings: LabSettings) -> str:
    """The machine's client configuration, with the lab's hosts before it."""
    names = " ".join([*settings.names, *map(settings.address, settings.names)])
    machines = (
        MACHINES_CLIENT.read_text(encoding="utf-8", errors="replace")
        if MACHINES_CLIENT.exists()
        else ""
    )
    return CLIENT_TEXT.format(names=names, key=USER_KEY, known=KNOWN_HOSTS) + machines


def make_key(file: Path, comment: str) -> str:
    """A new key pair without passphrase; returns the public half."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file))
    return Path(f"{file}.pub").read_text(encoding="utf-8")
