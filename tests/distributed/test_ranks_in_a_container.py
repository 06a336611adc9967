"""Ranks in a container: a mount namespace, in which there are files that the host does not have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import needs_horovod, no_process_stays
from tests.kit.comparisons import compare
from tests.kit.dataset_files import write_data

MAKES_MOUNTS = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
MOUNTS = os.geteuid() == 0 and MAKES_MOUNTS.returncode == 0
pytestmark = pytest.mark.skipif(
    not MOUNTS, reason="needs root, and a kernel that makes mount namespaces"
)
ARMS = {
    "torchrun": {"backend": "ddp", "launcher": "torchrun"},
    "spawn": {"backend": "ddp", "launcher": "spawn"},
    "mpirun": {"backend": "ddp", "transport": "mpi", "launcher": "mpirun"},
    "horovodrun": {"backend": "horovod", "transport": "gloo", "launcher": "horovodrun"},
}
IN_IT = """#!/bin/sh
exec unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' {image} {inside} "$@"
"""


@needs_horovod
@pytest.mark.costly
def test_every_launcher_starts_its_ranks_in_the_container(tmp_path):
    """It has a folder of data that the host has not."""
    image, inside, program = (tmp_path / name for name in ("image", "inside", "box"))
    inside.mkdir()
    image.mkdir()
    options = {**write_data("mnist", image), "data_dir": str(inside)}
    work = {"workload": "mnist", "workload_options": options, "local_batch_size": 4}
    assert str(inside) in compare(tmp_path, **work, code=2).done.stderr
    program.write_text(IN_IT.format(image=image, inside=inside))
    program.chmod(0o755)
    with no_process_stays():
        ran = compare(tmp_path, **work, arms=ARMS, container=f"{program} {sys.executable}")
    assert ran.statuses == dict.fromkeys(ARMS, "ok")


def test_a_container_without_its_program_is_told_before_anything_starts(tmp_path):
    refused = compare(tmp_path, container="apptainr exec image.sif python3", code=2).done.stderr
    assert "container: 'apptainr' is not on PATH; load the module that has it" in refused
