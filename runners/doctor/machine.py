"""What the doctor finds on this machine: launchers, cores and memory, compiler, the programs that tests need."""

import os
import pwd
import shutil
import socket
from pathlib import Path

from install import cache, toolchain
from measurement.probes.fingerprint import core_count, usable_cores
from measurement.probes.installed_mpi import OPEN_MPI, installed_mpi
from measurement.world import ALLOW_ROOT
from runners.doctor.software import SETUP, Finding, finding, installed_version, program_finding
from runners.processes.busy_machine import BUSY_REMEDY, busy_warning
from runners.processes.local import find_program

MIN_SHM_BYTES = 512 * 2**20


def launcher_findings() -> list[Finding]:
    """The programs that start ranks."""
    mpirun = find_program("mpirun")
    mpi = installed_mpi(mpirun) if mpirun else None
    remedies = {"torchrun": SETUP, "horovodrun": f"comes with Horovod: {SETUP}", "mpirun": SETUP}
    versions = {"torchrun": installed_version("torch"), "horovodrun": installed_version("horovod"), "mpirun": str(mpi or "")}
    found = [program_finding("launchers", name, remedies[name], version=versions[name] or "") for name in remedies]
    return [*found, *([as_root_finding()] if mpi and mpi.name == OPEN_MPI and os.geteuid() == 0 else [])]


def as_root_finding() -> Finding:
    """Whether Open MPI lets root start ranks; ``ringside compare`` allows it by itself."""
    missing = [name for name in ALLOW_ROOT if os.environ.get(name) != "1"]
    remedy = f"for commands of your own: export {' '.join(f'{name}=1' for name in missing)}" if missing else ""
    detail = "refused by Open MPI, but under ringside compare" if missing else "allowed"
    return finding("launchers", "mpirun as root", detail, remedy)


def host_findings() -> list[Finding]:
    """Cores, memory and shared memory that ranks on this host may use, and ssh for other hosts."""
    total = os.cpu_count() or 1
    usable = core_count()
    cores = f"{usable} usable of {total}: up to {usable} rank{'' if usable == 1 else 's'} with a core each"
    busy = busy_warning(usable_cores())
    shared = Path("/dev/shm")
    shared_bytes = shutil.disk_usage(shared).total if shared.is_dir() else 0
    more = "" if shared_bytes >= MIN_SHM_BYTES else "give the container more: docker run --shm-size=8g, or --ipc=host"
    return [
        finding("host", "name", socket.gethostname()),
        user_finding(),
        finding("host", "cores", cores),
        finding("host", "load", busy or "others use little of the cores", BUSY_REMEDY if busy else ""),
        finding("host", "memory", f"{memory_limit_bytes() / 2**30:.1f} GiB"),
        finding("host", "/dev/shm", f"{shared_bytes / 2**20:.0f} MiB", more),
        program_finding("host", "ssh", "needed for several hosts: apt-get install openssh-client", status="warning"),
    ]


def user_finding() -> Finding:
    """Whether the system knows who runs this; in a container it often does not."""
    number = os.getuid()
    try:
        return finding("host", "user", pwd.getpwuid(number).pw_name)
    except KeyError:
        remedy = f"Open MPI and torch.compile need to know; for commands of your own: export HOME=A_FOLDER_OF_YOURS USER={number}"
        return finding("host", "user", f"user id {number} has no name here", remedy)


def memory_limit_bytes() -> int:
    """Memory of the host, or what the control group allows where that is less; bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    allowed = [int(text) for file in limits if file.is_file() and (text := file.read_text(encoding="utf-8").strip()).isdigit()]
    return min(total, *allowed) if allowed else total


def build_findings() -> list[Finding]:
    """What compiles Horovod, and where its wheel and build log are kept."""
    compiler = toolchain.find_compiler()
    problem = toolchain.compiler_problem(compiler)
    state, root = cache.read_state(), cache.cache_root()
    directory = root / state.key if state and state.key else root
    kept = sorted(file.name for file in directory.glob("*") if file.is_file()) if directory != root else []
    found = problem or f"{compiler}: {toolchain.compiler_version(compiler)}"
    return [
        finding("build", "C++ compiler", found, f"only for building Horovod. {toolchain.INSTALL_HINT}" if problem else ""),
        finding("build", "wheel and log", f"{directory} ({', '.join(kept) or 'empty'})"),
    ]


def test_findings() -> list[Finding]:
    """What only ringside's own tests need: hosts in network namespaces, a browser, Slurm."""
    note = "only for ringside's own tests: apt-get install"
    slurm = "slurmctld slurmd slurm-client munge libpmix-dev"
    packages = {"sshd": "openssh-server", "ip": "iproute2", "chromium": "chromium", "slurmctld": slurm}
    return [program_finding("tests", name, f"{note} {package}", status="warning") for name, package in packages.items()]
