"""Commands in images, by a Podman of the test's own store.

An image has this machine's libraries, and flags show it our Python."""

from __future__ import annotations

import io
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from runners.launchers.base import RUN_ID, LaunchRequest
from runners.processes.local import end_run
from runners.scripts.environments import with_image
from tests.conftest import no_process_stays, ringside_here, wait_until
from tests.kit.commands import started
from tests.kit.script_comparisons import compare_in

SCRIPT = """\
import torch
from torch.distributed import init_process_group
from torch.nn.parallel import DistributedDataParallel

init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with open("written", "a") as file:
    file.write("more")
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
COMMAND = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 train.py"
SHOWN = " ".join(f"-v {folder}:{folder}" for folder in dict.fromkeys((sys.base_prefix, sys.prefix)))
CONFIGURED = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "{runtime}"
"""
STORED = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'


def base():
    """A tar of what our Python and torch need of a system."""
    programs = [sys.executable, "/bin/sh", "/usr/bin/env"]
    compiled = [
        *Path(sys.base_prefix).glob("lib/python3*/lib-dynload/*.so"),
        *Path(torch.__file__).parent.glob("lib/*.so"),
    ]
    said = subprocess.run(
        ["ldd", *programs, *compiled], capture_output=True, text=True, check=False
    ).stdout
    libraries = {
        path
        for path in re.findall(r"(/\S+) \(0x", said)
        if not path.startswith((sys.base_prefix, sys.prefix))
    }
    with tarfile.open(fileobj=(made := io.BytesIO()), mode="w", dereference=True) as tar:
        for path in (*programs[1:], *sorted(libraries)):
            tar.add(path)
        for name in ("tmp", "etc", "proc", "dev", "sys"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(folder)
    return made.getvalue()


@pytest.fixture(scope="module")
def podman(tmp_path_factory):
    """What runs it; it has images ``one`` and ``two``, which sets OMP_NUM_THREADS."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    root = tmp_path_factory.mktemp("podman")
    (root / "containers.conf").write_text(
        CONFIGURED.format(runtime="runc" if shutil.which("runc") else "crun")
    )
    (root / "storage.conf").write_text(STORED.format(root))

    def run(*words, **more):
        return subprocess.run(
            ["podman", *words], capture_output=True, timeout=120, check=False, **more
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", str(root / "containers.conf"))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(root / "storage.conf"))
        made = base()
        for name, change in (("one", "USER 7"), ("two", "ENV OMP_NUM_THREADS=2")):
            run("import", "--change", change, "-", name, input=made)
        done = run("run", "--rm", "--network=host", "--pid=host", "--ipc=host", "one", "env")
        if done.returncode:
            pytest.skip(f"podman starts no container here: {done.stderr.decode()[-200:]}")
        yield run


def images(a, b):
    more = ("--set", "measurement.start_timeout_s=240")
    return ("--image-a", f"{SHOWN} {a}", "--image-b", f"{SHOWN} {b}", *more)


@pytest.fixture
def users(tmp_path):
    (folder := tmp_path / "users").mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "written").write_text("mine")
    return folder


@pytest.mark.costly
def test_one_command_in_two_images(podman, users, tmp_path):
    """What differs is told, the user's files stay, and no container is left."""
    ran = compare_in(users, "ab", COMMAND, *images("one", "two"), "--small", out=tmp_path / "out")
    shown = {name: ran.records[name].image for name in ("one", "two")}
    assert [image.rpartition(" ")[0] for image in shown.values()] == ["podman one", "podman two"]
    differences = {one["field"]: one for one in ran.report["differences"]}
    assert differences["image"]["values"] == shown
    assert differences["threads.torch"]["values"] == {"one": 1, "two": 2}
    files = {path.name: path.read_text() for path in users.iterdir()}
    assert files == {"train.py": SCRIPT, "written": "mine"}
    assert podman("ps", "--all", "--quiet").stdout == b""


@pytest.mark.costly
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_leaves_no_container(podman, users, tmp_path, ended_by):
    typed = ("ab", COMMAND, *images("one", "two"), "-o", tmp_path / "out")
    with no_process_stays():
        with started(*typed, cwd=users) as driver:
            wait_until(lambda: podman("ps", "--quiet").stdout, seconds=120, every_s=1)
            driver.send_signal(ended_by)
            driver.wait(timeout=120)
        wait_until(lambda: not podman("ps", "--all", "--quiet").stdout, seconds=30, every_s=1)


def test_a_container_that_was_created_and_never_started_is_removed(podman):
    """Whoever ends a run may end the program between the two."""
    run_id = f"{secrets.token_hex(6)}-1-one-0"
    request = LaunchRequest(world_size=1, hosts=(), module="", folder="/")
    argv = with_image("one").around(["env"], environment={RUN_ID: run_id}, request=request)
    assert [*argv[:2]] == ["podman", "run"]
    assert podman("create", *argv[2:]).returncode == 0
    assert podman("ps", "--all", "--quiet").stdout
    end_run(run_id)
    assert podman("ps", "--all", "--quiet").stdout == b""
    assert not list(Path("/tmp").glob(f"ringside-{run_id}.*"))


def test_an_image_that_is_not_here_is_named(podman, users):
    missing = ("--image-b", "registry.invalid/none:1", "-o", users / "out")
    refused = ringside_here("ab", f"{sys.executable} {users}/train.py", *missing)
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert "image 'registry.invalid/none:1' is not here: podman: " in refused.stderr
    assert not (users / "out").exists()
