"""The search for an arm's largest local batch (``fit: memory``), before anything is timed.

It starts the arm alone for each size and has it take some steps. A rank that runs out of memory
ends its arm only, and the next try starts new processes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

from measurement.errors import LaunchError
from measurement.records.record import LaunchRecord
from runners.driver.rehearsal import SHORT, UncountedLaunches, reason_of
from runners.planning.arms import resolve_arm
from runners.planning.workload import WorkloadSetup

FIT_BLOCKS, FIT_STEPS = 4, 3
"""Those of a try. An optimizer has all its state after its first step, and allocators keep the
memory of earlier blocks."""
RESOLUTION = 16
"""The search ends when the interval is at most 1 / RESOLUTION of the largest size that fits."""
MARGIN = 0.05
"""Share of the largest size that is left free: libraries allocate memory at other times, too."""
MAX_DOUBLINGS = 7
OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|(can't|cannot|could not) allocate"
    r" memory|alloc_failed|bad_alloc|memoryerror"
    r"|could not create a (primitive|memory object)|sigkill|signal 9|code:? (-9|137)\b|oom.kill|:"
    r" ?killed$",
    re.IGNORECASE | re.MULTILINE,
)
"""torch on GPUs, on CPUs and in cuBLAS; C, C++ and Python; oneDNN; and launchers' messages about
ranks that the kernel killed."""


def find_batch(launches: UncountedLaunches, name: str, workload: WorkloadSetup) -> int:
    """The largest local batch of an arm, less ``MARGIN``.

    Raises:
        LaunchError: the plan's batch does not fit, or a try failed for another reason.
    """
    plan, progress, folder = launches.plan, launches.progress, launches.folder / "fit"
    short = {**SHORT, "rounds": FIT_BLOCKS, "block_steps": FIT_STEPS, "local_every": 0}
    tried = plan.model_copy(update={"measurement": plan.measurement.model_copy(update=short)})

    def fits(size: int) -> bool:
        setup = resolve_arm(
            name, plan.arms[name].model_copy(update={"local_batch_size": size}), plan
        )
        failed = launches.run("fit", tried, [setup], workload=workload).failed.get(name)
        if failed and not is_out_of_memory(failed):
            raise LaunchError(
                f"no largest local_batch_size was found for arm '{name}': {size} failed, and not"
                f" for lack of memory: {reason_of(failed)} (logs: {folder}); fix it, or give the"
                " arm a local_batch_size instead of fit"
            )
        progress.say(f"local_batch_size {size} {'does not fit' if failed else 'fits'}")
        return failed is None

    fitting = largest(fits, start=plan.local_batch_size)
    if fitting is None:
        raise LaunchError(
            f"arm '{name}' has no room for the plan's local_batch_size {plan.local_batch_size},"
            " with which the search for the largest begins; set a smaller one in the plan"
        )
    shutil.rmtree(folder, ignore_errors=True)
    chosen = max(1, fitting - max(1, int(fitting * MARGIN)))
    progress.say(f"{name} is timed with local_batch_size {chosen}: {fitting} fits")
    return chosen


def largest(fits: Callable[[int], bool], *, start: int) -> int | None:
    """The largest size that fits, by doubling and then halving the interval; None if ``start`` does
    not fit.

    At most ``start`` × 2 ** ``MAX_DOUBLINGS``.
    """
    if not fits(start):
        return None
    most = start << MAX_DOUBLINGS
    low = start
    while low < most and fits(2 * low):
        low *= 2
    if low == most:
        return low
    high = 2 * low
    while high - low > max(1, low // RESOLUTION):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def is_out_of_memory(record: LaunchRecord) -> bool:
    """Whether an arm failed for lack of memory, by the messages and logs of its ranks and its
    launcher.
    """
    error = record.error
    texts = [error.message, *error.excerpt, *error.log_tail.values()] if error else []
    return record.status == "failed" and any(OUT_OF_MEMORY.search(text) for text in texts)
