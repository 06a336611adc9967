"""The Dockerfile's own steps, taken in a root made by debootstrap: the image's user compares two ranks there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY, TINY
from tests.kit.image_root import build, steps_of

DOCKERFILE = REPOSITORY / "Dockerfile"
PLAN = {
    **TINY,
    "arms": {
        "ddp": {"backend": "ddp", "transport": "gloo"},
        "horovod": {"backend": "horovod", "transport": "mpi", "launcher": "mpirun"},
    },
}


def test_the_image_ends_as_a_user_who_is_not_root():
    steps = steps_of(DOCKERFILE.read_text())
    assert [rest for name, rest in steps if name == "USER"][-1] == "mpiuser"
    assert [name for name, _ in steps].count("FROM") == 2


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(os.geteuid() != 0, reason="making a root needs root")
@pytest.mark.skipif(shutil.which("debootstrap") is None, reason="no debootstrap here: apt-get install debootstrap")
@pytest.mark.skipif(os.environ.get("RINGSIDE_DRAW") == "commit", reason="takes many minutes: make test DRAW=all runs it")
def test_the_dockerfiles_steps_give_a_root_that_compares(no_processes_left):
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))  # its files can be linked from the same file system
    folder = Path(tempfile.mkdtemp(prefix="ringside-image-", dir=cache))
    try:
        root = build(DOCKERFILE.read_text(), folder)
        doctor = root.run("ringside doctor")
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        (root.path / "home" / "mpiuser" / "plan.yaml").write_text(yaml.safe_dump(PLAN))
        done = root.run("id --user && ringside compare plan.yaml -o /results/here", timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.startswith("1000\n")
        assert (root.path / "results" / "here" / "report.html").stat().st_uid == 1000
        keys = "mkdir -p .ssh && ssh-keygen -q -t rsa -N '' -f .ssh/id_rsa && cp .ssh/id_rsa.pub .ssh/authorized_keys"
        served = root.run(f"{keys} && /usr/sbin/sshd -f /home/mpiuser/.sshd_config && ssh localhost which mpirun")
        assert served.stdout == "/opt/venv/bin/mpirun\n", served.stderr
    finally:
        shutil.rmtree(folder)
