"""What all tests share: no test may leave a process or a rank variable behind."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from runners.cli import app
from runners.processes.process_exit import exit_code_of, leave_in_order
from tests.kit import warm_server  # noqa: F401 - Forked looks for it among the modules

REPOSITORY = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
HAS_HOROVOD = shutil.which("horovodrun", path=str(BIN)) is not None

STARTED_BY = "RINGSIDE_STARTED_BY_TEST"
FORKED = f"{REPOSITORY / 'tests' / 'kit' / 'plugins' / 'forked.py'}:Forked"
OVER_GLOO = ("ddp", "naive", "fsdp2", "horovod")
HOROVOD = {"backend": "horovod", "transport": "gloo"}
EXIT_STATUS = pytest.StashKey[int]()

needs_horovod = pytest.mark.skipif(
    not HAS_HOROVOD, reason="Horovod is not built here; 'ringside doctor' says how to get it"
)

TINY = {
    "name": "tiny",
    "workload": "digits",
    "local_batch_size": 16,
    "world_size": 2,
    "baseline": "ddp",
    "arms": {"ddp": {"backend": "ddp", "transport": "gloo"}},
    "measurement": {
        "rehearsal": "never",
        "launches": 1,
        "rounds": 3,
        "block_steps": 3,
        "local_every": 3,
        "floor": False,
    },
}
"""The smallest real comparison; tests change what they are about."""


def pytest_configure(config):
    """A shell's background job ignores SIGINT, what nohup starts SIGHUP, and comparisons would
    inherit that and not end by it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # as our commands do, of which some run in this process
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # tests side by side have more ranks than cores
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """What goes to one worker: a module, whose tests share launches; all that make the one lab; all
    that parse our code.

    As ``--dist loadgroup`` has it, which would put the group's name behind each test's, where
    nobody can copy that to run it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            module = nodeid.partition("::")[0]
            if module.startswith("tests/cluster/"):
                return "lab"
            # whose tests share files alone, and are a fifth of ``make quick``
            if module.endswith("/test_corpus.py"):
                return nodeid
            return "code" if Path(module).stem in READ_OUR_CODE else module

    return ByModule(config, log)


READ_OUR_CODE = ("test_documents", "test_encodings", "test_rooms")
"""Those that look through ``parsed`` files."""
FOLDERS = ("distributed", "launch", "cluster", "gpu")
"""Whose names are markers of their tests."""
START_PROCESSES = ("distributed", "cluster", "gpu")
"""Folders whose tests all do. Elsewhere: those that look for processes left behind, and those that
say so."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark each test by its folder, and as one that starts processes; leave out costly ones."""
    for item in items:
        folder = item.path.relative_to(REPOSITORY / "tests").parts[0]
        if folder in FOLDERS:
            item.add_marker(folder)
        if folder in START_PROCESSES or "no_processes_left" in item.fixturenames:
            item.add_marker("process")
    leave_out_costly(items)


def leave_out_costly(items):
    """Skip eleven of twelve costly tests where ``RINGSIDE_DRAW=commit`` is set.

    Those that share no launch are drawn one by one, so that one commit takes as long as another.
    """
    if os.environ.get("RINGSIDE_DRAW") != "commit":
        return
    groups = {}
    for item in items:
        if marker := item.get_closest_marker("costly"):
            groups.setdefault(next(iter(marker.args), item.nodeid), []).append(item)
    kept = drawn(list(groups), number=len(groups) // 12)
    for item in (item for name, group in groups.items() if name not in kept for item in group):
        item.add_marker(
            pytest.mark.skip(
                reason="costly, and not drawn for this commit: make test DRAW=all runs it"
            )
        )


def pytest_sessionfinish(session, exitstatus):
    session.config.stash[EXIT_STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """After the summary, which the leaks that a library of torch's reports at its end would
    otherwise bury.

    A worker has told all it has to tell by then, and the interpreter's own teardown of torch takes
    it three seconds.
    """
    if EXIT_STATUS in config.stash:
        leave_in_order(config.stash[EXIT_STATUS])


@pytest.fixture(autouse=True)
def no_leaked_environment():
    """A test that leaves rank variables behind would change what the next one measures."""
    before = dict(os.environ)
    yield
    names = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "HOROVOD_RANK",
        "OMPI_COMM_WORLD_RANK",
    ]
    assert [*map(os.environ.get, names)] == [*map(before.get, names)]


@pytest.fixture
def no_processes_left():
    """For each test of a module; a fixture that many tests share says ``with no_process_stays()``
    itself."""
    with no_process_stays():
        yield


@contextlib.contextmanager
def no_process_stays():
    """Afterwards nothing lives that was started within: ranks, supervisors, launchers.

    Known by a variable they inherit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STARTED_BY, secrets.token_hex(8))
        yield
        _, alive = psutil.wait_procs(started_processes(), timeout=10)
        assert not alive, [process.cmdline() for process in alive]


def started_processes() -> list[psutil.Process]:
    """Every live process that was started within ``no_process_stays``, directly or not."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = process.environ().get(STARTED_BY) == os.environ[STARTED_BY]
            if is_ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def cheap_launcher(arm):
    """For an arm over Gloo that names none, one whose ranks share the import of torch: it is most
    of what a comparison takes."""
    if arm.get("transport") == "mpi" or "command" in arm:
        return {}
    is_plug_in = ":" in arm.get("backend", "")
    return {"launcher": FORKED} if is_plug_in or arm.get("backend") in OVER_GLOO else {}


def drawn(cases, *, number):
    """So many of the cases, by the commit: other ones with each change, and the same ones again for
    who looks at a failure.

    All of them where ``RINGSIDE_DRAW=all`` is set, as ``make test DRAW=all`` does.
    """
    if os.environ.get("RINGSIDE_DRAW") == "all":
        return list(cases)
    return random.Random(commit()).sample(list(cases), k=number)


@functools.cache
def commit():
    """The name of the commit that is tested; empty outside of git."""
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of one of our files, which several tests look through."""
    return ast.parse(path.read_text())


def documented_files() -> dict[str, str]:
    """The files that README and docs show whole, by name: fenced blocks whose first line is a
    comment with it."""
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    block = re.compile(r"```(?:python|yaml)\n# ([a-z_]+\.(?:py|yaml))\n(.*?)```", re.DOTALL)
    return dict(found for page in pages for found in block.findall(page.read_text()))


def write_plan(folder: Path, **changes) -> Path:
    """A plan file made of ``TINY`` and changes; ``measurement`` is merged, and arms over Gloo are
    started as it costs least.

    Of an arm its backend is enough, of several with the names of their backends the names. Only an
    arm that is alone has a control. A key that is None is left out.
    """
    arms = arms_of(changes.pop("arms", TINY["arms"]))
    usual = {"baseline": "ddp" if "ddp" in arms else next(iter(arms))}
    measurement = TINY["measurement"] | {"control": len(arms) == 1}
    measurement |= changes.pop("measurement", {})
    content = {**TINY, **usual, **changes, "arms": arms, "measurement": measurement}
    given = {key: value for key, value in content.items() if value is not None}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    return path


def arms_of(given):
    """Arms as a plan has them."""
    named = given if isinstance(given, dict) else {name: name for name in given}
    arms = {name: {"backend": arm} if isinstance(arm, str) else arm for name, arm in named.items()}
    return {name: cheap_launcher(arm) | arm for name, arm in arms.items()}


def ringside(
    *arguments: object, timeout: float = 240, **options
) -> subprocess.CompletedProcess[str]:
    """The command line, as a user runs it."""
    command = [sys.executable, "-m", "runners.cli", *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=REPOSITORY,
        check=False,
        **options,
    )


def ringside_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has imported what another would first take seconds to
    import."""
    return run_here(lambda: app(list(map(str, arguments))))


def run_here(command) -> subprocess.CompletedProcess[str]:
    """What a process would print, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(REPOSITORY),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = exit_code_of(command)
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


def ended_well(done):
    """The process, whose exit code is 0; what it said otherwise is shown."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def wait_until(condition, *, seconds=20, every_s=0.1):
    """Fails where it does not become true in time.

    Looking oftener would take a core from what is waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(every_s)
