"""The compiler of a GPU build where the machine has none: which wheels, how they become a toolkit,
and one real build with them."""

import argparse
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from install import build_horovod, toolchain
from tests.conftest import REPOSITORY
from tests.kit import commands

HIDE_TOOLKIT = """
set -e
for folder in /usr/local/cuda*/; do [ ! -d "$folder" ] || mount --bind "$EMPTY/folder" "$(readlink -f "$folder")"; done
for program in $(which -a nvcc); do mount --bind "$EMPTY/file" "$program"; done
! command -v nvcc >/dev/null
exec "$@"
"""
BUILD = """
import sys
from pathlib import Path
from install import toolchain, wheel
assert toolchain.find_cuda_toolkit() is None
print(wheel.build_wheel(Path(sys.argv[1]), "nccl", targets=("90",)))
"""
IMPORT = """
import json, pathlib, torch, horovod, horovod.torch as hvd
from horovod.torch import mpi_lib_v2
from measurement.host import nccl_of
built = {"nccl": hvd.nccl_built(), "cuda": hvd.cuda_built(), "gloo": hvd.gloo_built(), "mpi": hvd.mpi_built()}
calls = [nccl_of(mpi_lib_v2.__file__), nccl_of(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")]
print(json.dumps({"file": horovod.__file__, "calls": calls, **built}))
"""


@pytest.fixture
def torch_files(monkeypatch, tmp_path):
    """torch's own CUDA wheels as they are laid out, in few files."""
    ours = tmp_path / "site" / "nvidia" / "cu13"
    for file in ("include/cuda_runtime.h", "lib/libcudart.so.13"):
        (ours / file).parent.mkdir(parents=True, exist_ok=True)
        (ours / file).write_text("torch's", encoding="utf-8")
    (ours.parent / "nccl" / "include").mkdir(parents=True)
    monkeypatch.setattr(toolchain, "nccl_home", lambda: ours.parent / "nccl")
    return ours


def test_the_wheels_are_of_the_release_that_torch_brings_and_pinned_where_the_pins_are_of_it():
    pinned = toolchain.compiler_requirements("13.2")
    assert [line.split("==")[0] for line in pinned] == list(toolchain.COMPILER_WHEELS)
    assert all(line.split("==")[1].startswith("13.2.") and "*" not in line for line in pinned)
    assert toolchain.compiler_requirements("13.0") == [
        f"{name}==13.0.*" for name in toolchain.COMPILER_WHEELS
    ]


def test_compiler_and_torchs_files_make_a_toolkit_and_torchs_files_stay(torch_files, tmp_path):
    nvcc = tmp_path / "cuda" / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    before = sorted(torch_files.rglob("*"))
    toolkit = toolchain.complete_toolkit(tmp_path / "cuda", "13.2")
    assert toolkit == (nvcc.parent.parent, "13.2")
    for file in (
        "include/cuda_runtime.h",
        "lib/libcudart.so",
        "lib64/libcudart.so",
        "lib64/libcudart.so.13",
    ):
        assert (toolkit.home / file).read_text(encoding="utf-8") == "torch's"
    assert sorted(torch_files.rglob("*")) == before


def test_wheels_without_nvcc_are_refused_with_the_remedy(torch_files, tmp_path):
    with pytest.raises(
        toolchain.PrerequisiteError, match=r"have no nvcc at .*install a CUDA toolkit"
    ):
        toolchain.complete_toolkit(tmp_path / "cuda", "13.2")


def test_a_torch_without_wheels_of_cuda_13_offers_no_compiler(monkeypatch):
    monkeypatch.setattr(toolchain, "nccl_home", lambda: None)
    assert toolchain.torch_cuda_release() == ""


def test_compute_capabilities_are_read_in_both_spellings():
    assert build_horovod.parse_capabilities("9.0, 80,80,100") == ("80", "90", "100")
    assert build_horovod.parse_capabilities("") == ()
    with pytest.raises(
        argparse.ArgumentTypeError,
        match="'hopper' is not a list of compute capabilities, such as 80,90",
    ):
        build_horovod.parse_capabilities("hopper")


def test_the_capabilities_asked_for_are_in_the_key_of_the_wheel(monkeypatch):
    monkeypatch.setattr(toolchain, "find_cuda_toolkit", lambda: None)
    monkeypatch.setattr(toolchain, "torch_cuda_release", lambda: "13.2")
    assert build_horovod.operations_tag("nccl", targets=("80", "90")).endswith("-cuda13.2-cc80.90")
    assert build_horovod.operations_tag("cpu", targets=("80",)) == "cpu"


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(
    os.environ.get("RINGSIDE_DRAW") == "commit",
    reason="takes many minutes: make test DRAW=all runs it",
)
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"),
    reason="hiding the machine's toolkit needs root and unshare",
)
@pytest.mark.skipif(
    not toolchain.torch_cuda_release(), reason="this torch has no wheels of CUDA 13"
)
def test_a_machine_without_nvcc_builds_horovod_with_nccl(tmp_path):
    """Five minutes of a core, and 215 MB where the packages are not cached."""
    empty = tmp_path / "empty"
    (empty / "folder").mkdir(parents=True)
    (empty / "file").touch()
    hidden = ["unshare", "--mount", "sh", "-c", HIDE_TOOLKIT, "sh"]
    built = run(
        *hidden, sys.executable, "-c", BUILD, tmp_path / "kept", EMPTY=str(empty), CUDA_HOME=""
    )
    wheel = built.splitlines()[-1]
    target = tmp_path / "installed"
    run(
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        target,
        wheel,
    )
    site = Path(sysconfig.get_path("purelib"))
    libraries = os.pathsep.join(
        str(folder)
        for folder in (site.parents[1], site / "torch" / "lib", site / "nvidia" / "nccl" / "lib")
    )
    paths = {"PYTHONPATH": f"{target}{os.pathsep}{REPOSITORY}", "LD_LIBRARY_PATH": libraries}
    build = json.loads(run(sys.executable, "-c", IMPORT, **paths).splitlines()[-1])
    assert build["file"].startswith(str(target))
    assert build["nccl"] and build["cuda"] and build["gloo"] and build["mpi"]
    assert build["calls"][0] == build["calls"][1], "Horovod calls torch's own NCCL"


def run(*argv, **variables):
    done = commands.run(*argv, timeout=1500, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
