"""Pack what a machine without network lacks for `make gpu`: wheels, Horovod's sources and this
checkout, in one archive.

    python -m benchmarks.gpu_bundle --has PACKAGES.txt [--python 3.12] [--output
        build/gpu-bundle.tar] [--limit-mib 64]

PACKAGES.txt is what `python3 -m pip freeze` prints on that machine. It needs torch there, and a C++
compiler, make and nvcc. What it has is neither packed nor changed. The archive has a folder with
`install.sh`, which makes an environment that sees the packages of that machine's Python, and builds
Horovod in it. The checkout is the last commit.

Exit codes: 0 packed, 1 a download failed, 2 it cannot be packed.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from install.build_horovod import BUILD_REQUIREMENTS
from install.wheel import BuildError, PrerequisiteError, download_sdist, run_quietly

REPOSITORY = Path(__file__).parent.parent
GLIBC = 28
"""The newest minor release of glibc that packed wheels may ask for; that of RHEL 8, Debian 10 and
Ubuntu 20.04."""
PROOF_REQUIREMENTS = ("pytest>=9", "pytest-timeout")
"""What `make gpu` needs beside the build: its first check runs tests."""
OF_TORCH = re.compile(r"(?!nvidia-ml-py)(nvidia|cuda|triton)\b")
"""Packages that come with torch, whose wheels name them and whose other builds have them inside.
They are never packed."""
FOLDER = "ringside-gpu"
INSTALL = """\
#!/bin/sh
# Installs Ringside from this folder alone, in ringside/.venv, beside the packages of PYTHON
# (python3 if unset), which has torch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
venv=$here/ringside/.venv
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$here/wheels" PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m venv "$venv"
"$python" -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\\n")' \\
  > "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages-of-this-machine.pth"
"$venv/bin/python" -m pip install --quiet REQUIREMENTS
"$venv/bin/python" -m pip install --quiet --no-build-isolation --editable "$here/ringside[mpi]"
cd "$here/ringside"
.venv/bin/python -m install.build_horovod --operations "${HOROVOD_OPERATIONS:-auto}"
touch .venv/.set-up
echo "Ringside is set up. Now: cd $here/ringside && make gpu"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_bundle", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--has",
        type=Path,
        required=True,
        metavar="PACKAGES.txt",
        help="what `pip freeze` prints on that machine",
    )
    parser.add_argument(
        "--python",
        default=f"{sys.version_info.major}.{sys.version_info.minor}",
        help="its Python (default: this one)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("build/gpu-bundle.tar"),
        help="(default: build/gpu-bundle.tar)",
    )
    parser.add_argument(
        "--limit-mib", type=float, default=64.0, help="size that it may have, in MiB (default: 64)"
    )
    options = parser.parse_args(argv)
    try:
        if not re.fullmatch(r"3\.\d+", options.python):
            raise PrerequisiteError(f"--python {options.python}: give a release such as 3.12")
        pack(
            read_packages(options.has), options.python, options.output, limit_mib=options.limit_mib
        )
    except (BuildError, PrerequisiteError) as error:
        print(f"gpu-bundle: {error}", file=sys.stderr)
        return 2 if isinstance(error, PrerequisiteError) else 1
    size = options.output.stat().st_size / 2**20
    print(
        f"{options.output}: {size:.1f} MiB. There: tar xf {options.output.name} && {FOLDER}/install.sh"
    )
    return 0


def read_packages(path: Path) -> dict[str, str]:
    """Versions by name in what ``pip freeze`` printed; a local part such as ``+cu130`` is left out.

    Raises:
        PrerequisiteError: The file cannot be read, or names no torch.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PrerequisiteError(
            f"{path} cannot be read ({error}); there: python3 -m pip freeze > {path.name}"
        ) from error
    found = [re.match(r"([\w.-]+)(?:==([^+\s;]+)| @ )", line) for line in lines]
    packages: dict[str, str] = {canonicalize_name(one[1]): one[2] or "" for one in found if one}
    # a new environment has one of its own, often older: it is always packed
    packages.pop("setuptools", None)
    if "torch" not in packages:
        raise PrerequisiteError(
            f"{path} names no torch, which is too large to pack; install torch there first"
        )
    return packages


def pack(has: Mapping[str, str], python: str, output: Path, *, limit_mib: float) -> None:
    """Download what is missing beside ``has`` and write the archive.

    Raises:
        PrerequisiteError: No versions fit those that are there, or the archive would be larger than
            its limit.
        BuildError: A download failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringside-bundle-") as scratch:
        work = Path(scratch)
        wheels = work / FOLDER / "wheels"
        wheels.mkdir(parents=True)
        download_wheels(missing(has, python, work), python, wheels)
        download_sdist(wheels)
        script = work / FOLDER / "install.sh"
        script.write_text(
            INSTALL.replace("REQUIREMENTS", " ".join(f"'{one}'" for one in requirements())),
            encoding="utf-8",
        )
        script.chmod(0o755)
        checkout = work / "checkout.tar"
        run_quietly(
            [
                "git",
                "-C",
                str(REPOSITORY),
                "archive",
                f"--prefix={FOLDER}/ringside/",
                "--output",
                str(checkout),
                "HEAD",
            ],
            "packing of the checkout",
        )
        with tarfile.open(checkout, "a") as archive:
            archive.add(work / FOLDER, arcname=FOLDER)
        refuse_large(checkout, wheels.iterdir(), limit_mib)
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(checkout, output)


def requirements() -> list[str]:
    """What is installed there beside Ringside and its extra ``mpi``."""
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))[
        "build-system"
    ]["requires"]
    return [*build, *BUILD_REQUIREMENTS, *PROOF_REQUIREMENTS]


def missing(has: Mapping[str, str], python: str, work: Path) -> list[str]:
    """What Ringside needs beside the packages that are there, each with its version.

    Raises:
        PrerequisiteError: No versions fit those that are there.
    """
    (work / "has.txt").write_text(
        "".join(f"{name}=={version}\n" for name, version in has.items() if version),
        encoding="utf-8",
    )
    (work / "besides.txt").write_text("\n".join(requirements()), encoding="utf-8")
    argv = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--extra",
        "mpi",
    ]
    argv += [
        "--python-version",
        python,
        "--python-platform",
        f"x86_64-manylinux_2_{GLIBC}",
        "--constraint",
        str(work / "has.txt"),
    ]
    argv += ["--no-config", str(REPOSITORY / "pyproject.toml"), str(work / "besides.txt")]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise PrerequisiteError(
            f"no versions fit what that machine has: {' '.join(done.stderr.split())}"
        )
    needed = [line.split(" ;")[0].strip() for line in done.stdout.splitlines() if "==" in line]
    names = [canonicalize_name(Requirement(one).name) for one in needed]
    return [
        one
        for one, name in zip(needed, names, strict=True)
        if name not in has and not OF_TORCH.match(name)
    ]


def download_wheels(packages: Sequence[str], python: str, target: Path) -> None:
    """Download these packages for that Python.

    Raises:
        BuildError: One of them cannot be had.
    """
    if not packages:
        return
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(target),
    ]
    argv += ["--python-version", python, "--implementation", "cp"]
    # pip takes each name literally: a wheel for an older glibc has another one.
    names = [
        *(f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)),
        "manylinux2014_x86_64",
        "manylinux1_x86_64",
    ]
    run_quietly(
        [*argv, *(part for name in names for part in ("--platform", name)), *packages],
        "download of wheels",
    )


def refuse_large(archive: Path, wheels: Iterable[Path], limit_mib: float) -> None:
    """Name the largest wheels of an archive that is too large.

    Raises:
        PrerequisiteError: It is larger than its limit.
    """
    size = archive.stat().st_size / 2**20
    if size <= limit_mib:
        return
    largest = sorted(wheels, key=lambda path: path.stat().st_size, reverse=True)[:5]
    named = ", ".join(
        f"{path.name.split('-')[0]} {path.stat().st_size / 2**20:.0f}" for path in largest
    )
    raise PrerequisiteError(
        f"{size:.0f} MiB, of which {named}; {limit_mib:g} are accepted. Install some there first, or raise --limit-mib"
    )


if __name__ == "__main__":
    sys.exit(main())
