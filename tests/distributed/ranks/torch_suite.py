"""PyTorch's own tests of process groups, run over ours: ``mpirun -np N python torch_suite.py FILE``.

The tests choose themselves by the backend's name. We answer with the one that has most of them run
on tensors in host memory, ``gloo``, ``mpi`` (all_to_all) or our own (where the name is compared),
and always give them a group over MPI, a new one each.
"""

import fnmatch
import importlib
import json
import os
import shutil
import sys
import tempfile
import types
import unittest
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import backends.mpi.process_group  # noqa: F401 - registers the backend
from backends.mpi.library import load_mpi
from backends.mpi.works import poll

NAMES = {
    "mpi": ("test_all_to_all*",),
    "mpi4py": ("test_get_backend", "test_Backend_enum_class", "test_backend_*group"),
}
"""Under which name tests run; the others as gloo's."""
MODULE = "torch.testing._internal.distributed.distributed_test"
WORLD = load_mpi().COMM_WORLD


def name_for(test):
    for name, patterns in NAMES.items():
        if any(fnmatch.fnmatch(test, pattern) for pattern in patterns):
            return name
    return "gloo"


def prepare():
    folder = WORLD.bcast(tempfile.mkdtemp() if WORLD.rank == 0 else None)
    for part in ("barrier", "test_dir", "init_dir"):
        Path(folder, part).mkdir(exist_ok=True)
    os.environ |= {"WORLD_SIZE": str(WORLD.size), "RANK": str(WORLD.rank), "TEMP_DIR": folder}
    # The base of torch's test class; what it adds, expected text, no test here uses, so the package
    # is not needed.
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))


def load_suite(name):
    """The tests as they are for a backend of this name."""
    os.environ["BACKEND"] = name
    sys.modules.pop(MODULE, None)
    from torch.testing._internal import common_utils

    distributed_test = importlib.import_module(MODULE)

    # Read when a test of subgroups starts: with another name than this it wants 8 ranks, though 3
    # are enough.
    os.environ["BACKEND"] = "mpi" if WORLD.size > 2 else name

    def barrier(self, *_, **__):
        """As theirs, between processes and apart from the group under test, but quick."""
        assert poll(WORLD.Ibarrier(), timeout_s=30, polls=10)

    class Suite(distributed_test.DistributedTest._DistTestBase, common_utils.TestCase):
        of_module, rank, world_size, _barrier = distributed_test, WORLD.rank, WORLD.size, barrier

    return Suite


def outcome(suite, name):
    """("passed" | "skipped" | "failed", why)."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    result = unittest.TestResult()
    suite(name).run(result)
    wrong = [text for _, text in result.failures + result.errors]
    if not wrong:
        return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")
    for skip in TEST_SKIPS.values():  # torch's multi-process decorators skip by an exit code
        if wrong[0].rstrip().endswith(f"SystemExit: {skip.exit_code}"):
            return "skipped", skip.message
    return "failed", wrong[0]


def run_one(suite, name, store):
    # where pickle looks for the classes of this copy of the module
    sys.modules[MODULE] = suite.of_module
    timeout = timedelta(seconds=20)
    where = {"store": dist.PrefixStore(name, store), "rank": WORLD.rank, "world_size": WORLD.size}
    dist.init_process_group("mpi4py", timeout=timeout, **where)
    try:
        return outcome(suite, name)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main():
    (output,) = sys.argv[1:]
    torch.set_num_threads(1)
    prepare()
    suites = {name: load_suite(name) for name in ("gloo", *NAMES)}
    store, *_ = next(dist.rendezvous("mpi4py://"))
    found = {}
    for test in unittest.TestLoader().getTestCaseNames(suites["gloo"]):
        everyone = WORLD.allgather(run_one(suites[name_for(test)], test, store))
        worst = ("failed", "passed", "skipped")
        found[test] = min(everyone, key=lambda one: worst.index(one[0]))
    if WORLD.rank == 0:
        Path(output).write_text(json.dumps(found))
        shutil.rmtree(os.environ["TEMP_DIR"])


if __name__ == "__main__":
    main()
