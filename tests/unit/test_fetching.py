"""Data fetched through torchvision: from a server on loopback, in this process."""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from measurement.errors import PlanError
from runners.planning.workload import resolve_workload
from tests.kit.dataset_files import HELD_OUT_SAMPLES, write_mnist
from tests.kit.refusals import refusal

CPU = torch.device("cpu")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.asked.append(self.path)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """MNIST in gzip on a server, and torchvision told to fetch it there."""
    from torchvision import datasets

    write_mnist(tmp_path / "served", inside=".", suffix=".gz")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served"))
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    digests = [
        (path.name, hashlib.md5(path.read_bytes()).hexdigest())
        for path in (tmp_path / "served").iterdir()
    ]
    monkeypatch.setattr(datasets.MNIST, "resources", digests)
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def mnist(folder, **options):
    return resolve_workload("mnist", {"data_dir": str(folder), **options}).build(
        local_batch_size=4, seed=1
    )


def test_missing_data_is_fetched_once_and_only_where_asked_for(mirror, tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        mnist(tmp_path / "data").require_data()
    assert not mirror.asked
    mnist(tmp_path / "data", download=True).require_data()
    asked = len(mirror.asked)
    assert asked >= 4
    again = mnist(tmp_path / "data", download=True)
    labels = torch.cat(
        [labels for _, labels in again.evaluation_batches(rank=0, world_size=1, device=CPU)]
    )
    assert len(labels) == HELD_OUT_SAMPLES
    assert len(mirror.asked) == asked, "what is there is not fetched again"


def test_a_place_that_cannot_be_written_to_is_refused(mirror, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(
        PlanError,
        match=f"MNIST in '{tmp_path / 'data'}' cannot be read: .*File exists",
    ):
        mnist(tmp_path / "data", download=True).require_data()


def test_without_a_network_one_line_says_what_to_do(mirror, tmp_path, monkeypatch):
    from torchvision import datasets

    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{mirror.server_port}/gone/"])
    message = refusal(mnist(tmp_path / "data", download=True).require_data)
    assert f"MNIST in '{tmp_path / 'data'}' cannot be read: Error downloading" in message
    assert "where there is a network" in message
