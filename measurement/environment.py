"""Environment variables: which are passed on, which are recorded, and which disturb a measurement.

They are passed on and recorded by lists, so that private ones are not. A table says which change
what is measured, how, and in which libraries (docs/variables.md). One that makes a library measure
something else, or fail, is refused; the progress and the headline report the others. Variables in
the plan's ``environment`` are the user's choice: refused as well, but not reported.
"""

from __future__ import annotations

import os
import pwd
import re
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from measurement.agent.ringside_agent.machine import select
from measurement.errors import PlanError, cut
from measurement.files import read_text

STEERING = (
    "OMP_",
    "MKL_",
    "KMP_",
    "MALLOC_",
    "GLIBC_",
    "TORCH_",
    "CUDA_",
    "HOROVOD_",
    "NCCL_",
    "GLOO_",
    "OMPI_MCA_",
    "UCX_",
    "FI_",
    "LOADEDMODULES",
)
"""Variables that begin so change the speed of a rank: they go to every host, and into records."""
LOCAL_ONLY = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_",
    "TMPDIR",
    "TEMP",
    "TMP",
    "XDG_",
    "HOSTNAME",
    "PWD",
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHON",
    "VIRTUAL_ENV",
    "CONDA_",
    "UV_",
    "SSH_AUTH_SOCK",
    "KRB5CCNAME",
    "OMPI_",
    "PRTE_",
    "PMIX_",
    "OPAL_",
    "MPI",
    "PSM",
    "IBV_",
    "SHARP_",
    "SLURM_",
    "NVIDIA_",
    "ROCR_",
    "HIP_",
    "HSA_",
    "GPU_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "TRITON_",
    "GOMP_",
    "OPENBLAS_",
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "RINGSIDE_",
    "LD_BIND_NOW",
    "TCMALLOC_",
    "MIMALLOC_",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "MODULEPATH",
    "LMOD_",
    "EB",
)
"""What else a process on this host needs: identity, folders, libraries, MPI and devices."""
PER_RANK = (
    "HOROVOD_RANK",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_GLOO_RENDEZVOUS",
    "HOROVOD_HOSTNAME",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte",
    "OMPI_MCA_pmix",
    "OMPI_MCA_initial",
    "OMPI_MCA_shmem",
)
"""How those of ``STEERING`` begin that differ from rank to rank anyway."""
SECRET = re.compile(r"SECRET|PASSWORD|PASSWD|CREDENTIAL|TOKEN(?!IZ)|KEY", re.IGNORECASE)


NO_HOME = "/nonexistent"
"""Not a shared folder: Open MPI loads components that settings in a home directory name."""


def own_identity(environment: Mapping[str, str]) -> dict[str, str]:
    """HOME, USER and LOGNAME where they are not set, as in many containers, whose user may have no
    name either.

    Without a user's name, Open MPI 4.1 ends by a signal and ``torch.compile`` by a ``KeyError``.
    """
    try:
        entry = pwd.getpwuid(os.getuid())
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = str(os.getuid()), NO_HOME
    identity = {"HOME": home, "USER": name, "LOGNAME": name}
    return {key: value for key, value in identity.items() if not environment.get(key)}


MAX_TMPDIR = 70
"""Bytes. A socket's path has at most 107 on Linux, and loader processes hang where theirs is
longer."""


def temporary_folder(environment: Mapping[str, str]) -> dict[str, str]:
    """TMPDIR for ranks and launchers, where it must be changed: a writable folder with a short
    path.

    Raises:
        PlanError: there is none.
    """
    try:
        usual = tempfile.gettempdir()  # tries the usual folders by writing to them
    except FileNotFoundError as error:
        raise PlanError(
            f"{error.strerror}; set TMPDIR to a folder that you can write to"
        ) from error
    folder = environment.get("TMPDIR", usual)
    short = usual if len(os.fsencode(usual)) <= MAX_TMPDIR else "/tmp"
    return {} if folder == short else {"TMPDIR": short}


def looks_secret(name: str) -> bool:
    """Whether a variable's name suggests that its value is a secret."""
    return SECRET.search(name) is not None


def steering_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer the frameworks, without secrets and without those that differ from
    rank to rank.
    """
    return select(environment, STEERING, left_out=PER_RANK, secret=SECRET.pattern)


def recorded_names() -> tuple[str, ...]:
    """How variables begin that go into records: those that steer, and others that may disturb."""
    return (*STEERING, *(variable.name.rstrip("*") for variable in disturbing_variables()))


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a rank reports of its environment: ``steering_environment``, and variables that may
    disturb.
    """
    return select(environment, recorded_names(), left_out=PER_RANK, secret=SECRET.pattern)


def local_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The driver's environment for processes on this host: no secrets, since some launchers show
    all of it in ``ps``.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(STEERING + LOCAL_ONLY) and not looks_secret(name)
    }


def forwarded_by_name(environment: Mapping[str, str], patterns: Sequence[str]) -> dict[str, str]:
    """The set variables that a plan names (``forward_environment``), ``MYLAB_*`` for all that begin
    so; no secrets.
    """
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns) and not looks_secret(name)
    }


Library = Literal["horovod", "torch.distributed", "cuda", "any"]
"""Which ranks a variable affects: those of a library, those that compute on GPUs, or all."""


class DisturbingVariable(BaseModel):
    """One variable, or all with the same beginning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """With ``*`` at its end: all that begin so."""
    does: str
    """What follows the variable in a sentence."""
    library: Library = "any"
    is_refused: bool = False
    only: tuple[str, ...] = ()
    """The values that have this effect, in capitals; empty: all but ``unless``."""
    unless: tuple[str, ...] = ("", "0")

    def acts(self, name: str, value: str) -> bool:
        """Whether a variable is this one, with a value that has an effect."""
        setting = value.strip().upper()
        has_effect = setting in self.only if self.only else setting not in self.unless
        return has_effect and fnmatchcase(name, self.name)


class Disturbance(NamedTuple):
    """A variable of the table that an environment contains."""

    name: str
    value: str
    variable: DisturbingVariable

    def __str__(self) -> str:
        return f"{self.name}={cut(self.value)} {self.variable.does}"


KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Makes glibc keep freed memory (mallopt(3)), in processes started with these: no allocation is a
separate mapping, and the heap is trimmed only above 1 TiB. ``freed_memory: keep`` sets them."""


@cache
def disturbing_variables() -> Sequence[DisturbingVariable]:
    """The whole table (``disturbing_variables.toml``)."""
    content = tomllib.loads(read_text(Path(__file__).with_name("disturbing_variables.toml")))
    return [DisturbingVariable(**entry) for entry in content["variables"]]


def disturbances(
    environment: Mapping[str, str], libraries: Collection[Library]
) -> list[Disturbance]:
    """The variables of the table that an environment contains and that affect ranks of these
    libraries.
    """
    return [
        Disturbance(name=name, value=value, variable=variable)
        for variable in disturbing_variables()
        if variable.library in ("any", *libraries)
        for name, value in sorted(environment.items())
        if variable.acts(name, value)
    ]


def refusal(environment: Mapping[str, str], libraries: Collection[Library]) -> str | None:
    """Why ranks of these libraries cannot be measured correctly in this environment, and what to
    do; None: they can.
    """
    refused = (
        str(disturbance)
        for disturbance in disturbances(environment, libraries)
        if disturbance.variable.is_refused
    )
    return next(refused, None)


def describe_variables(by_arm: Mapping[str, Iterable[Disturbance]]) -> list[str]:
    """A sentence for each variable, with its arms where it does not affect all.

    ``by_arm``: the variables of each.
    """
    by_text: dict[str, list[str]] = {}
    for arm, of_arm in by_arm.items():
        for disturbance in of_arm:
            by_text.setdefault(str(disturbance), []).append(arm)
    return [
        (
            text
            if len(arms) == len(by_arm)
            else f"{text}; it reaches {', '.join(arms)} alone, which makes the comparison uneven"
        )
        for text, arms in by_text.items()
    ]
