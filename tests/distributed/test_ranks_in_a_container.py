"""Ranks in a container: a mount namespace, in which there are files that the host does not have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import needs_horovod, no_process_stays
from tests.kit.comparisons import compare
from tests.kit.dataset_files import write_data

MOUNTS = (
    os.geteuid() == 0
    and subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode
    == 0
)
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


@pytest.fixture
def box(tmp_path):
    """A container with a folder of data, by its program; and the plan that needs them."""
    image, inside = tmp_path / "image", tmp_path / "inside"
    inside.mkdir()
    image.mkdir()
    options = write_data("mnist", image)
    program = tmp_path / "box"
    program.write_text(IN_IT.format(image=image, inside=inside))
    program.chmod(0o755)
    return program, {
        "workload": "mnist",
        "workload_options": {**options, "data_dir": str(inside)},
        "local_batch_size": 4,
    }


@needs_horovod
@pytest.mark.costly
def test_every_launcher_starts_its_ranks_in_the_container(tmp_path, box):
    program, work = box
    with no_process_stays():
        ran = compare(tmp_path, **work, arms=ARMS, container=f"{program} {sys.executable}")
    assert ran.statuses == dict.fromkeys(ARMS, "ok")


def test_what_the_host_has_not_is_missed_without_the_container(tmp_path, box):
    _, work = box
    assert (
        str(work["workload_options"]["data_dir"]) in compare(tmp_path, **work, code=2).done.stderr
    )


def test_a_container_without_its_program_is_told_before_anything_starts(tmp_path):
    refused = compare(tmp_path, container="apptainr exec image.sif python3", code=2).done.stderr
    assert "container: 'apptainr' is not on PATH; load the module that has it" in refused
