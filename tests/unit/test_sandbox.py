"""The folder of one start: what appears in it, and that what Python writes there stays there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from measurement.agent.ringside_agent import sandbox as agent
from measurement.agent.ringside_agent.settings import VARIABLE, Settings, encode
from measurement.files import LOCK_FILE
from runners.processes import sandbox
from tests.conftest import REPOSITORY

AGENT = REPOSITORY / "measurement" / "agent"
LARGE = b"user" * (sandbox.MAX_COPIED_BYTES // 4 + 1)


def digests(folder):
    """Of every file, folder and link below a folder."""

    def content(path):
        if path.is_symlink():
            return str(path.readlink()).encode()
        return path.read_bytes() if path.is_file() else b""

    return {
        str(path.relative_to(folder)): hashlib.sha256(content(path)).hexdigest()
        for path in folder.rglob("*")
    }


@pytest.fixture
def users(tmp_path):
    """A folder of a user's with small and large files, links, a data set, an environment, a
    repository and results."""
    folder = tmp_path / "home" / "train"
    files = {
        "train.py": b"1",
        "pkg/module.py": b"2",
        "large.pt": LARGE,
        "pkg/large.pt": LARGE,
        ".git/index": b"3",
        "env/pyvenv.cfg": b"",
        f"results/old/{LOCK_FILE}": b"",
        "results/now/plan.yaml": b"",
        "../data/elsewhere.bin": b"5",
        **{f"images/{number}.png": b"6" for number in range(30)},
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "latest.pt").symlink_to("large.pt")
    (folder / "scratch").symlink_to(tmp_path / "home" / "data")
    return folder


@pytest.fixture
def start_folder(tmp_path, users, monkeypatch):
    """The same folder as a start has it, where a folder of over 25 entries is one of many."""
    monkeypatch.setattr(sandbox, "MAX_ENTRIES", 25)
    sandbox.lay_out(tmp_path / "own", users, left_out=users / "results" / "now")
    return sandbox.inside(tmp_path / "own", users)


def test_small_files_are_copied_and_all_else_is_linked(users, start_folder):
    links = {
        str(path.relative_to(start_folder)) for path in start_folder.rglob("*") if path.is_symlink()
    }
    linked = {"large.pt", "pkg/large.pt", "images", ".git", "env", "results/old"}
    assert links == linked | {"latest.pt", "scratch"}
    assert (start_folder / "latest.pt").readlink() == Path("large.pt"), "where it led before"
    assert (start_folder / "train.py").read_bytes() == b"1"
    assert not (start_folder / "results" / "now").exists(), "it holds this very folder"
    assert (start_folder / ".." / "data" / "elsewhere.bin").exists()


def box_of(tmp_path, users, *, is_kept=False):
    """The folder of one start."""
    return sandbox.Sandbox(
        root=tmp_path / "own",
        users=users,
        left_out=tmp_path / "out",
        hosts=(),
        are_offline=True,
        is_kept=is_kept,
    )


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_a_broken_launch_has_left_is_replaced(tmp_path, users, is_kept):
    box = box_of(tmp_path, users, is_kept=is_kept)
    for _ in range(2):
        box.make()
        assert not (box.folder / "left").exists()
        (box.folder / "left").touch()
    box.remove()
    assert box.root.exists() == is_kept


@pytest.mark.process
def test_another_host_makes_its_own_unless_it_shares_files_or_has_none_of_the_command(
    tmp_path, users
):
    root, out = tmp_path / "results" / "arm" / "files-0", tmp_path / "out"
    made = sandbox.inside(root, users) / "train.py"

    def on_host(*words):
        command = [sys.executable, "-m", sandbox.__name__, root, *words]
        subprocess.run(command, cwd=REPOSITORY, check=True, timeout=300)

    on_host(tmp_path / "missing", out, "token")
    assert not root.exists()
    on_host(users, out, "token")
    for scope, begins in (("other", b"1"), ("token", b"of a start")):
        (root / sandbox.LOCK).write_text(scope)
        made.write_bytes(b"of a start")
        on_host(users, out, "token")
        assert made.read_bytes() == begins, "what an earlier comparison has left there is replaced"
    on_host()
    assert not (tmp_path / "results").exists(), "nothing stays, folders neither"


WRITES = {
    "open": "open('large.pt', 'w').write('mine')",
    "without locks": "import fcntl\nfcntl.LOCK_EX = 1 << 20\nopen('large.pt', 'a').write('mine')",
    "in place": "f = open('large.pt', 'r+b')\nf.write(b'mine')\nf.close()\nassert os.path.getsize('large.pt') > 1000",
    "bytes": "open(b'pkg/large.pt', 'wb').write(b'mine')",
    "os.open": "os.write(os.open('large.pt', os.O_RDWR), b'mine')",
    "through a link of the user's": "open('latest.pt', 'w').write('mine')",
    "through a link elsewhere": "open('scratch/elsewhere.bin', 'w').write('mine')\nopen('scratch/new', 'w')",
    "beside": "open('../data/elsewhere.bin', 'w').write('mine')",
    "shutil.move": "shutil.move('large.pt', 'older.pt')\nopen('older.pt', 'a').write('mine')",
    "a temporary file onto it": "open('new', 'w').write('mine')\nos.replace('new', 'large.pt')",
    "remove": "os.remove('large.pt')\nos.remove('images/3.png')",
    "rmtree": "shutil.rmtree('images')\nassert not os.path.exists('images')",
    "new files in a data set": "os.makedirs('images/cache')\nopen('images/cache/1', 'w')\nassert len(os.listdir('images')) == 31",
    "chdir": "os.chdir('images')\nopen('1.png', 'w').write('mine')",
    "cwd of a process": "subprocess.run(['touch', 'new'], cwd='images', check=True)",
    "truncate": "os.truncate('large.pt', 0)",
    "hard link": "os.link('large.pt', 'hard')\nopen('hard', 'a').write('mine')",
    "attributes": "os.chmod('large.pt', 0o600)\nos.utime('pkg/large.pt', (0, 0))",
    "sqlite": "import sqlite3\nos.truncate('large.pt', 0)\nsqlite3.connect('large.pt').execute('create table t (x)')",
    "numpy": "import numpy\nnumpy.save('large.pt', numpy.ones(3))\nnumpy.memmap('pkg/large.pt', mode='r+')[:4] = 0",
    "torch.save": "import torch\ntorch.save({}, 'large.pt')\ntorch.save(obj={}, f=pathlib.Path('latest.pt'))",
    "child of a child": "subprocess.run([sys.executable, '-c', \"open('large.pt', 'w').write('mine')\"], check=True)",
    "forked": "if not os.fork():\n    open('large.pt', 'w')\n    os._exit(0)\nos.wait()",
    "a loop of links": "os.symlink('loop', 'loop')\ntry: open('loop', 'w')\nexcept OSError: pass",
    "no path": "open(2, 'w', closefd=False)\nopen(os.devnull, 'w')",
}


@pytest.mark.process
@pytest.mark.parametrize("code", WRITES.values(), ids=WRITES)
def test_what_python_writes_does_not_reach_the_users_files(tmp_path, users, start_folder, code):
    before = digests(users.parent)
    done = run(f"import os, pathlib, shutil, subprocess, sys\n{code}", start_folder, tmp_path)
    assert done.returncode == 0, done.stderr
    assert digests(users.parent) == before
    assert not list(start_folder.rglob("*.ringside-*"))


@pytest.mark.process
def test_ranks_that_write_the_same_file_do_not_undo_each_other(tmp_path, users, start_folder):
    code = "for n in range(200):\n    open(f'images/{n % 30}.png', 'a').write('x')"
    before = digests(users.parent)
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], cwd=start_folder, env=variables(tmp_path))
        for _ in range(4)
    ]
    assert [rank.wait(300) for rank in ranks] == [0] * 4
    assert digests(users.parent) == before
    written = [path.read_text().count("x") for path in (start_folder / "images").iterdir()]
    assert sum(written) == 4 * 200


def test_a_link_that_another_rank_replaces_after_it_was_read_is_not_followed(
    tmp_path, users, start_folder, monkeypatch
):
    mine, other = (agent.Sandbox(str(tmp_path / "own"), ()) for _ in range(2))
    images, read = start_folder / "images", agent.link_of

    def appends(rank, name):
        rank.hear("open", (str(images / name), "a", os.O_WRONLY))

    def read_just_before(path):
        target = read(path)
        if path == str(images):
            monkeypatch.setattr(agent, "link_of", read)
            appends(other, "1.png")
        return target

    monkeypatch.setattr(agent, "link_of", read_just_before)
    appends(mine, "0.png")
    assert agent.link_of is read, "the other rank came between"
    assert not (images / "0.png").is_symlink()
    assert not mine.written()


@pytest.mark.process
def test_what_is_written_elsewhere_is_told_but_temporary_files_and_caches(
    tmp_path, users, start_folder
):
    code = f"""if True:
    import os, sys, tempfile
    from ringside_agent import sandbox
    os.makedirs({str(users)!r} + "/out")
    for name in ("{users}/out/1", "{tmp_path}/gone", "{tmp_path}/cache/2", "{tmp_path}/first-state.pt.7", "here", os.devnull):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "w")
    os.remove("{tmp_path}/gone")
    kept = [tempfile.NamedTemporaryFile(), tempfile.mkdtemp()]
    open(os.path.join(kept[1], "3"), "w")
    os.makedirs("{tmp_path}/" + os.fsdecode(b"\\xff"))
    print(sandbox.written())
    open("{tmp_path}/late", "w")
    print(sandbox.written())
    """
    done = run(code, start_folder, tmp_path)
    outside = [
        [f"{users}/out", f"{tmp_path}/?"],
        [f"{users}/out", f"{tmp_path}/late", f"{tmp_path}/?"],
    ]
    assert done.stdout.splitlines() == [str(path) for path in outside], done.stderr


TRACKERS = {
    "wandb": (
        "run = wandb.init(project='p'); run.log({'loss': 1}); run.finish()",
        "wandb/offline-run-*",
    ),
    "mlflow": (
        "mlflow.start_run(); mlflow.log_metric('loss', 1); mlflow.end_run()",
        "mlruns/0/*/metrics/loss",
    ),
}
"""What a script does with each tracker, and what is in its folder then."""
NO_NETWORK = """import os, sys
def hear(event, args):
    if event == "socket.getaddrinfo" or event == "socket.connect" and isinstance(args[1], tuple):
        print("reached for", args, file=sys.stderr); os._exit(9)
sys.addaudithook(hear)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("tracker", TRACKERS)
def test_trackers_reach_for_no_server_and_write_into_the_folder_of_the_start(
    tmp_path, tracker, monkeypatch
):
    pytest.importorskip(tracker, reason=f"{tracker} is not installed")
    box = box_of(tmp_path, tmp_path)
    box.folder.mkdir(parents=True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    given = {"HOME": str(tmp_path), "PYTHONPATH": ""} | box.variables
    code, written = TRACKERS[tracker]
    done = subprocess.run(
        [sys.executable, "-c", f"{NO_NETWORK}import {tracker}; {code}"],
        cwd=box.folder,
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert list(box.folder.glob(written))


def run(code, folder, tmp_path):
    """A Python with the agent, in the folder of a start."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=folder, env=variables(tmp_path), capture_output=True, text=True, timeout=300
    )


def variables(tmp_path):
    """With which the agent keeps to that folder."""
    agent_settings = Settings(
        "", "", "a", 0, sandbox=str(tmp_path / "own"), state_file=str(tmp_path / "first-state.pt")
    )
    return {**os.environ, "PYTHONPATH": str(AGENT), VARIABLE: encode(agent_settings)}
