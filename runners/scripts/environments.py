"""Environments for commands: an image; or one that ``uv`` makes, with the user's packages but for those that an arm is to have.

An arm without changes gets an equal copy, so that all arms have an environment that was made alike. A copy is kept in the user's
cache by what it holds and by what was asked for. uv does not read pip's settings (docs.astral.sh/uv/pip/compatibility), so pip
says them, and they are handed on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from install.cache import cache_root
from measurement.errors import PlanError, UnavailableError, cut, quoted
from measurement.files import LockedError, lock_folder, write_whole
from runners.launchers.users_command import Image

SUSPECTS = ("torch", "nccl", "triton", "mpi", "horovod")
"""What packages have in their names that are told first, where environments differ."""
MAX_TOLD = 6
FROM_PIP = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
"""Settings of pip, and the variables of uv that are for the same."""
AS_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PRERELEASE": "if-necessary-or-explicit"}
"""As pip chooses among versions: the best one of all indexes."""
MADE = "packages.json"
"""Packages of an environment, by name. It is written last."""


@cache
def with_packages(python: str, packages: str) -> str:
    """Return the Python of an environment with these requirements, and otherwise the packages that a Python has.

    Raises:
        PlanError: uv cannot make it, or another process is just making it.
        UnavailableError: there is no uv.
    """
    asked = shlex.split(packages)
    index = index_settings(python)
    known = installed(python)
    told = json.dumps([os.path.realpath(python), known, frozen(python), asked, sorted(index.items())])
    root = cache_root().with_name("environments") / hashlib.sha256(told.encode()).hexdigest()[:16]
    made = root / "env" / "bin" / "python"
    if not (root / MADE).is_file():
        root.mkdir(parents=True, exist_ok=True)
        print(f"ringside: uv makes an environment with {packages or 'the same packages'}, in {root}", file=sys.stderr, flush=True)
        try:
            with lock_folder(root):
                _make(made, of=python, asked=asked, index=index)
                write_whole(root / MADE, json.dumps(installed(str(made))))
        except LockedError as error:
            raise PlanError(f"'{root}' is just being made ({error}); start again when it is done") from error
    _tell(packages, before=known, after=json.loads((root / MADE).read_text(encoding="utf-8")))
    return str(made)


def _make(made: Path, *, of: str, asked: Sequence[str], index: Mapping[str, str]) -> None:
    """Install what the user has as it is, then what is asked for; of the rest only what cannot stay beside it changes."""
    shutil.rmtree(folder := made.parent.parent, ignore_errors=True)
    _uv("venv", "--python", of, str(folder), index=index)
    install = ("pip", "install", "--python", str(made))
    write_whole(listed := folder / "as-it-was.txt", "\n".join(frozen(of)))
    _uv(*install, "--no-deps", "-r", str(listed), index=index)
    if asked:
        _uv(*install, *asked, *installed(of), index=index)


@cache
def frozen(python: str) -> tuple[str, ...]:
    """Return a requirement for each package of an environment: its version, or where it came from, if that is still there."""
    found, versions = [], installed(python)
    for line in _uv("pip", "freeze", "--python", python).splitlines():
        name, _, place = line.partition(" @ ")
        is_gone = place.startswith("file:") and not Path(unquote(urlsplit(place).path)).exists()
        found.append(f"{name}=={versions[name]}" if is_gone else line)
    return tuple(found)


@cache
def installed(python: str) -> dict[str, str]:
    """Return the packages of the environment of a Python with their versions."""
    return {one["name"]: one["version"] for one in json.loads(_uv("pip", "list", "--format", "json", "--python", python))}


@cache
def index_settings(python: str) -> dict[str, str]:
    """Return variables by which uv looks where the user's pip does; those of uv's own that are set stay as they are."""
    asked = ([one, "-m", "pip", "config", "list"] for one in (python, sys.executable))
    said = (subprocess.run(argv, capture_output=True, encoding="utf-8", check=False).stdout for argv in asked)
    found: dict[str, str] = {}
    for line in next(filter(None, said), "").splitlines():
        place, _, value = line.partition("=")
        section, _, name = place.rpartition(".")
        if name in FROM_PIP and section in ("global", "install", ":env:"):
            words = value.strip("'\"").split()
            if section == ":env:" or FROM_PIP[name] not in found:
                found[FROM_PIP[name]] = (",".join if name == "find-links" else " ".join)(words)
    return {name: value for name, value in {**found, **(AS_PIP if found else {})}.items() if name not in os.environ}


def _uv(*words: str, index: Mapping[str, str] | None = None) -> str:
    """Run uv and return what it says on stdout."""
    program = shutil.which("uv")
    if program is None and importlib.util.find_spec("uv") is None:
        raise UnavailableError("environments are made by 'uv', which is not on PATH; install it: pip install uv", lack="no uv")
    argv = [*([program] if program else [sys.executable, "-m", "uv"]), *words, "--no-progress"]
    done = subprocess.run(
        argv, env={**os.environ, **(index or {})}, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        said = [cut(line) for line in done.stderr.strip().splitlines()[-3:]]
        raise PlanError(
            f"uv {' '.join(words[:2])} failed:\n  " + "\n  ".join(said) + f"\nsee {quoted(shlex.join(argv))}; change what is asked"
        )
    return done.stdout


def _tell(packages: str, *, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Say on stderr which packages are others than the user's, the likeliest reasons of another speed first."""
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    changed.sort(key=lambda name: next((number for number, word in enumerate(SUSPECTS) if word in name), len(SUSPECTS)))
    shown = [f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in changed[:MAX_TOLD]]
    more = [f"{len(changed) - MAX_TOLD} more"] if len(changed) > MAX_TOLD else []
    if packages:
        print(f"ringside: with {packages}: {', '.join([*shown, *more]) or 'nothing changes'}", file=sys.stderr)


def image_programs() -> dict[str, Image]:
    """Return the programs that run images, by name: the first that has one runs it.

    Network, processes and shared memory are the host's: ranks meet there, and are stopped by their numbers. Podman stands before
    Docker, since it may be what ``docker`` starts. Its users without root have other numbers inside, unless they keep theirs.
    """
    host, is_root = ("run", "--rm", "--network=host", "--pid=host", "--ipc=host"), os.geteuid() == 0
    own, home = f"--user={os.geteuid()}:{os.getegid()}", () if is_root else ("--env=HOME=/tmp",)
    oci = partial(Image, shows=("image", "inspect", "--format={{{{.Id}}}}", "{}"), mount="--mount=type=bind,source={0},target={0}")
    apptainer = Image(shows=("inspect", "{}"), start=("exec",), mount="--bind={}", words=("--nv",))
    return {
        "podman": oci(start=(*host, own if is_root else "--userns=keep-id", *home), words=("--device=nvidia.com/gpu=all",)),
        "docker": oci(start=(*host, own, *home), words=("--gpus=all",)),
        "apptainer": apptainer,
        "singularity": apptainer,
        "enroot": Image(shows=("start", "{}", "sh", "-c", ":"), start=("start",), mount="--mount={0}:{0}"),
    }


@cache
def with_image(text: str) -> Image:
    """Return an image with the program here that has it. ``text``: flags for the program, and the image.

    Raises:
        UnavailableError: there is no such program, or none has it.
    """
    *flags, name = shlex.split(text) or [""]
    said, known = [], image_programs()
    for program in filter(shutil.which, known):
        one = known[program]
        argv = [program, *(word.format(name) for word in one.shows)]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False)
        if done.returncode == 0:
            told = " ".join([program, name, *re.findall(r"[0-9a-f]{12}", done.stdout)[:1]])
            gpus = one.words if Path("/proc/driver/nvidia").is_dir() else ()
            return replace(one, name=told, start=(program, *one.start), words=(*gpus, *flags, name))
        said.append(f"{program}: {cut(done.stderr.strip())}")
    why, programs = "; ".join(said) or "no program for images is on PATH", ", ".join(known)
    raise UnavailableError(f"image {quoted(name)} is not here: {why}; pull it by one of {programs}", lack="no image")


def versions_between(package: str, good: str, bad: str) -> list[str]:
    """Return the versions of a package from one to another, both included, as pip's indexes list them.

    Raises:
        PlanError: pip cannot say them, or one of the two is not among them.
    """
    argv = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False)
    listed = re.search(r"Available versions: (.*)", done.stdout)
    versions = listed[1].split(", ")[::-1] if listed else []
    if missing := [one for one in (good, bad) if one not in versions]:
        known = ", ".join(versions) or cut(done.stderr)
        raise PlanError(f"{quoted(missing[0])} is no version of {package} that pip's indexes have; there are: {known}")
    return versions[versions.index(good) : versions.index(bad) + 1]
