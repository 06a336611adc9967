"""Environments for commands: an image, or a copy of the user's environment that ``uv`` makes with
an arm's packages.

An arm without changes gets a copy, too, so that all arms' environments are made in the same way.
Copies are kept in the user's cache, by their packages and the arm's requirements. uv does not read
pip's settings (docs.astral.sh/uv/pip/compatibility), so they are read from pip and passed to uv.
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

from install.build_horovod import cache_root
from measurement.errors import PlanError, UnavailableError, cut, quoted
from measurement.files import LockedError, lock_folder, read_text, write_whole
from runners.flags import say
from runners.launchers.users_command import Image

FROM_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
}
"""Settings of pip, and uv's variables for them."""
AS_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PRERELEASE": "if-necessary-or-explicit"}
"""Has uv choose among versions as pip does: the best one of all indexes."""
MADE = "packages.json"
"""Packages of an environment, by name. It is written last."""


@cache
def with_packages(python: str, packages: str) -> str:
    """Return the Python of an environment with these requirements, and otherwise the packages of
    ``python``.

    Raises:
        PlanError: uv cannot make it, or another process is making it.
        UnavailableError: there is no uv.
    """
    requirements = shlex.split(packages)
    packages_before = installed(python)
    content = json.dumps(
        [
            os.path.realpath(python),
            packages_before,
            frozen(python),
            requirements,
            index_settings(),
        ]
    )
    root = (
        cache_root().with_name("environments") / hashlib.sha256(content.encode()).hexdigest()[:16]
    )
    made = root / "env" / "bin" / "python"
    if not (root / MADE).is_file():
        root.mkdir(parents=True, exist_ok=True)
        say(f"uv makes an environment with {packages or 'the same packages'}, in {root}")
        try:
            with lock_folder(root):
                _make(made, of=python, requirements=requirements)
                write_whole(root / MADE, json.dumps(installed(str(made))))
        except LockedError as error:
            raise PlanError(
                f"another process is making '{root}' ({error}); start again when it is done"
            ) from error
    _print_changes(
        packages,
        before=packages_before,
        after=json.loads(read_text(root / MADE)),
    )
    return str(made)


def _make(made: Path, *, of: str, requirements: Sequence[str]) -> None:
    """Install the user's packages, then the requirements; other packages change only if these
    conflict with them.

    All is compiled, as pip does: with PYTHONDONTWRITEBYTECODE every start would do that again.
    """
    shutil.rmtree(folder := made.parent.parent, ignore_errors=True)
    _uv("venv", "--python", of, str(folder))
    install = ("pip", "install", "--compile-bytecode", "--python", str(made))
    write_whole(listed := folder / "as-it-was.txt", "\n".join(frozen(of)))
    _uv(*install, "--no-deps", "-r", str(listed))
    if requirements:
        _uv(*install, *requirements, *installed(of))


@cache
def frozen(python: str) -> tuple[str, ...]:
    """Return a requirement for each package of an environment: its version, or its local source if
    that still exists.
    """
    requirements, versions = [], installed(python)
    for line in _uv("pip", "freeze", "--python", python).splitlines():
        name, _, place = line.partition(" @ ")
        is_gone = place.startswith("file:") and not Path(unquote(urlsplit(place).path)).exists()
        requirements.append(f"{name}=={versions[name]}" if is_gone else line)
    return tuple(requirements)


@cache
def installed(python: str) -> dict[str, str]:
    """Return the packages of the environment of a Python with their versions."""
    return {
        package["name"]: package["version"]
        for package in json.loads(_uv("pip", "list", "--format", "json", "--python", python))
    }


@cache
def index_settings() -> dict[str, str]:
    """Return variables with which uv uses the indexes of the user's pip.

    Variables of uv that are set are kept.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    settings: dict[str, str] = {}
    for line in reversed(done.stdout.splitlines()):  # its variables come first, and count
        place, _, value = line.partition("=")
        name = place.rpartition(".")[2]
        if name in FROM_PIP:
            separator = "," if name == "find-links" else " "
            settings[FROM_PIP[name]] = separator.join(value.strip("'\"").split())
    defaults = AS_PIP if settings else {}
    return {
        name: value for name, value in {**settings, **defaults}.items() if name not in os.environ
    }


def _uv(*words: str) -> str:
    """Run uv and return its output."""
    program = shutil.which("uv")
    if program is None and importlib.util.find_spec("uv") is None:
        raise UnavailableError(
            "environments are made by 'uv', which is not on PATH; install it: pip install uv",
            lack="no uv",
        )
    argv = [*([program] if program else [sys.executable, "-m", "uv"]), *words, "--no-progress"]
    done = subprocess.run(
        argv,
        env={**os.environ, **index_settings()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        output = "\n  ".join(cut(line) for line in done.stderr.strip().splitlines()[-3:])
        command = quoted(shlex.join(argv))
        raise PlanError(
            f"uv {' '.join(words[:2])} failed:\n  {output}\nsee {command}; change what is asked"
        )
    return done.stdout


def _print_changes(packages: str, *, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Print on stderr which packages differ from the user's."""
    changes = [
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    if packages:
        say(f"with {packages}: {', '.join(changes) or 'nothing changes'}")


def image_programs() -> dict[str, Image]:
    """Return the programs that run images, by name. The first that has the image runs it.

    Network, processes and shared memory are the host's: ranks connect there, and are stopped by
    their process ids. Podman comes before Docker, since ``docker`` may start it. Its users without
    root have other ids inside, unless they keep theirs.
    """
    host, is_root = ("run", "--rm", "--network=host", "--pid=host", "--ipc=host"), os.geteuid() == 0
    user, home = f"--user={os.geteuid()}:{os.getegid()}", () if is_root else ("--env=HOME=/tmp",)
    oci = partial(
        Image,
        shows=("image", "inspect", "--format={{{{.Id}}}}", "{}"),
        mount="--mount=type=bind,source={0},target={0}",
        writes_id="--cidfile={}",
    )
    apptainer = Image(shows=("inspect", "{}"), start=("exec",), mount="--bind={}", words=("--nv",))
    return {
        "podman": oci(
            start=(*host, user if is_root else "--userns=keep-id", *home),
            words=("--device=nvidia.com/gpu=all",),
        ),
        "docker": oci(start=(*host, user, *home), words=("--gpus=all",)),
        "apptainer": apptainer,
        "singularity": apptainer,
        "enroot": Image(
            shows=("start", "{}", "sh", "-c", ":"), start=("start",), mount="--mount={0}:{0}"
        ),
    }


@cache
def with_image(text: str) -> Image:
    """Return an image with the program here that has it.

    ``text``: flags for the program, and the image.

    Raises:
        UnavailableError: there is no such program, or none has the image.
    """
    *flags, name = shlex.split(text) or [""]
    errors, images = [], image_programs()
    for program in filter(shutil.which, images):
        image = images[program]
        argv = [program, *(word.format(name) for word in image.shows)]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False)
        if done.returncode == 0:
            full_name = " ".join([program, name, *re.findall(r"[0-9a-f]{12}", done.stdout)[:1]])
            gpus = image.words if Path("/proc/driver/nvidia").is_dir() else ()
            return replace(
                image, name=full_name, start=(program, *image.start), words=(*gpus, *flags, name)
            )
        errors.append(f"{program}: {cut(done.stderr.strip())}")
    why, programs = "; ".join(errors) or "no program for images is on PATH", ", ".join(images)
    raise UnavailableError(
        f"image {quoted(name)} is not here: {why}; pull it by one of {programs}", lack="no image"
    )


def versions_between(package: str, good: str, bad: str) -> list[str]:
    """Return the versions of a package from one to another, both included, as pip's indexes list
    them.

    Raises:
        PlanError: pip cannot list them, or one of the two is not among them.
    """
    argv = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    listed = re.search(r"Available versions: (.*)", done.stdout)
    versions = listed[1].split(", ")[::-1] if listed else []
    if missing := [version for version in (good, bad) if version not in versions]:
        available = ", ".join(versions) or cut(done.stderr)
        raise PlanError(
            f"{quoted(missing[0])} is no version of {package} that pip's indexes have; there are:"
            f" {available}"
        )
    return versions[versions.index(good) : versions.index(bad) + 1]
