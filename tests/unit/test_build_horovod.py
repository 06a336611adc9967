"""Building Horovod: the key of a wheel, the edits, what is said when the build cannot start.

No network, no build."""

import os
import re
import sys
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import pytest

from install import build_horovod, cache, edits, toolchain, wheel

KEY = cache.BuildKey(
    horovod="0.28.1",
    torch="2.15.0+cu132",
    python="cpython-311",
    openmpi="4.1.8",
    platform="linux_x86_64-glibc2.36",
    cpu="avx-f16c-fma",
    operations="cpu",
    edits="0123456789",
)


@pytest.mark.parametrize("part", [field.name for field in fields(cache.BuildKey)])
def test_the_key_changes_with_each_thing_the_wheel_depends_on(part):
    assert replace(KEY, **{part: "other"}).name() != KEY.name()


def test_the_key_is_a_readable_file_name_and_stays_the_same():
    assert KEY.name() == replace(KEY).name()
    assert re.fullmatch(
        r"0\.28\.1-torch2\.15\.0\+cu132-cpython-311-openmpi4\.1\.8-cpu-[0-9a-f]{10}", KEY.name()
    )
    assert "-mpich5.0.2-cpu-" in replace(KEY, openmpi="", mpich="5.0.2").name()
    assert "/" not in replace(KEY, torch="../../etc").name()


@pytest.mark.parametrize(
    "text", ["set(CMAKE_CXX_STANDARD 17)\n", "", "set(CMAKE_CXX_STANDARD 14)\n" * 2]
)
def test_a_text_that_is_not_there_once_is_an_error_and_nothing_is_written(text, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(text, encoding="utf-8")
    with pytest.raises(toolchain.BuildError, match=r"C\+\+20 in the project.*CMakeLists\.txt"):
        edits.apply_edits(tmp_path, edits.COMMON_EDITS)
    assert (tmp_path / "CMakeLists.txt").read_text(encoding="utf-8") == text


def test_the_digest_follows_what_the_edits_do_and_not_their_wording():
    edit = edits.COMMON_EDITS[0]
    digest = edits.edits_digest([edit])
    assert edits.edits_digest([replace(edit, reason="other words")]) == digest
    assert edits.edits_digest([replace(edit, new="set(CMAKE_CXX_STANDARD 23)")]) != digest
    assert edits.edits_digest(edits.edits_for("cpu")) != edits.edits_digest(edits.edits_for("nccl"))


@pytest.mark.parametrize("lacking", [None, "has_toolkit", "has_gpu", "has_nccl"])
def test_auto_builds_for_gpus_only_where_everything_is_there(lacking):
    there = {name: name != lacking for name in ("has_toolkit", "has_gpu", "has_nccl")}
    assert toolchain.choose_operations("auto", **there) == ("cpu" if lacking else "nccl")


def test_asking_decides_as_far_as_the_machine_can():
    assert (
        toolchain.choose_operations("nccl", has_toolkit=True, has_gpu=False, has_nccl=True)
        == "nccl"
    )
    with pytest.raises(toolchain.PrerequisiteError, match="nvcc on PATH, or CUDA_HOME"):
        toolchain.choose_operations("nccl", has_toolkit=False, has_gpu=True, has_nccl=True)


def test_each_missing_prerequisite_is_named(tmp_path):
    problems = toolchain.missing_prerequisites(None, tmp_path, None)
    assert all(
        word in problem
        for word, problem in zip(("C++ compiler", "Python.h", "make"), problems, strict=True)
    )


def test_a_compiler_that_cannot_compile_cpp20_is_named(tmp_path):
    old = tmp_path / "c++"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "c++ 4.8" && exit 0\nexit 1\n', encoding="utf-8"
    )
    old.chmod(0o755)
    assert "does not compile C++20" in (toolchain.compiler_problem(str(old)) or "")
    assert "c++ 4.8" in (toolchain.compiler_problem(str(old)) or "")


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
    bare_machine, capsys
):
    assert build_horovod.main(["--operations", "cpu"]) == 2
    message = capsys.readouterr().err
    assert "no C++ compiler" in message
    assert "apt-get install g++ make python3-dev" in message
    assert "Going on without Horovod" in message
    assert cache.read_state().status == "missing"
    assert "no C++ compiler" in cache.read_state().reason


@pytest.mark.parametrize("stored", ["", "[]", '{"status": "missing"}', '{"unknown": 1}'])
def test_a_state_that_cannot_be_read_is_none(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / cache.STATE_FILE).write_text(stored, encoding="utf-8")
    assert cache.read_state() is None


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("x.cc:3:10: fatal error: mpi.h: No such file or directory", "the header mpi.h is missing"),
        (
            "CMake Error: Could NOT find MPI_CXX (missing: MPI_CXX_WORKS)",
            "CMake did not find MPI_CXX",
        ),
        (
            "c++: fatal error: Killed signal terminated program cc1plus",
            "the compiler cc1plus ran out of memory",
        ),
        ("/bin/sh: 1: c++: not found", "the program c++ is missing"),
        (
            "a.cc:1:2: error: 'concept' does not name a type",
            "the compiler said: 'concept' does not name a type",
        ),
        ("nothing that we know", "the build failed"),
    ],
)
def test_the_cause_of_a_failed_build_is_named(log, cause):
    assert wheel.explain(f"before\n{log}\nafter") == cause


def test_the_tail_of_a_log_is_short_and_its_last_lines():
    tail = wheel.log_tail(
        "\n".join(["early", *(f"{n} " + "word " * 400 for n in range(50))])
    ).splitlines()
    assert len(tail) == wheel.LOG_TAIL_LINES
    assert max(len(line) for line in tail) <= 160
    assert tail[-1].startswith("49 ")


def test_a_wheel_without_the_extension_does_not_reach_the_cache(tmp_path):
    built, kept = tmp_path / "dist", tmp_path / "kept"
    built.mkdir()
    kept.mkdir()
    name = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(built / name, "w") as archive:
        archive.writestr("elsewhere/horovod/torch/mpi_lib_v2.so", b"")
    with pytest.raises(toolchain.BuildError, match="no wheel with the torch extension"):
        wheel.keep_wheel(built, kept)
    assert list(kept.iterdir()) == []
    with zipfile.ZipFile(built / name, "w") as archive:
        archive.writestr("horovod/torch/mpi_lib_v2.so", b"")
    assert wheel.keep_wheel(built, kept) == kept / name == cache.cached_wheel(kept)


def test_a_wheel_that_cannot_be_imported_leaves_the_cache(monkeypatch, tmp_path):
    python, built = tmp_path / "python", tmp_path / "a.whl"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    built.touch()
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(toolchain.BuildError, match="import of the installed Horovod failed"):
        build_horovod.check_import(built)
    assert not built.exists()


def test_the_build_ignores_the_callers_horovod_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_WITHOUT_GLOO", "1")
    environment = wheel.build_environment(
        "cpu", tmp_path, targets=(), progress=wheel.BuildProgress("Horovod")
    )
    assert "HOROVOD_WITHOUT_GLOO" not in environment
    assert environment["HOROVOD_WITH_MPI"] == "1"
    # GCC 13 and later refuse the sources without
    assert environment["CXXFLAGS"].endswith("-include cstdint -include string")
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert "HOROVOD_GPU_OPERATIONS" not in environment


def test_nccl_is_laid_out_as_the_linker_looks_for_it(tmp_path):
    nccl = tmp_path / "nvidia" / "nccl"
    (nccl / "lib").mkdir(parents=True)
    (nccl / "include").mkdir()
    (nccl / "lib" / "libnccl.so.2").write_bytes(b"library")
    (nccl / "include" / "nccl.h").write_text("header", encoding="utf-8")
    home = wheel.linkable_nccl(nccl, tmp_path)
    assert (home / "lib" / "libnccl.so").read_bytes() == b"library"
    assert (home / "include" / "nccl.h").read_text(encoding="utf-8") == "header"
