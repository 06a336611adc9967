"""Data fetched through torchvision: from a server on loopback, in this process."""

from __future__ import annotations

import hashlib
import shutil
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


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder with MNIST in gzip, served on loopback, and torchvision told to fetch it there."""
    from torchvision import datasets

    folder = tmp_path / "served"
    write_mnist(folder, inside=".", suffix=".gz")
    digests = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in folder.iterdir()]
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(datasets.MNIST, "resources", digests)
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        yield folder
        server.shutdown()
        thread.join()


def mnist(folder, **options):
    return resolve_workload("mnist", {"data_dir": str(folder), **options}).build(
        local_batch_size=4, seed=1
    )


def test_missing_data_is_fetched_once_and_only_where_asked_for(mirror, tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        mnist(tmp_path / "data").require_data()
    assert not (tmp_path / "data").exists()
    mnist(tmp_path / "data", download=True).require_data()
    shutil.rmtree(mirror)
    again = mnist(tmp_path / "data", download=True)
    batches = again.evaluation_batches(rank=0, world_size=1, device=CPU)
    assert sum(len(labels) for _, labels in batches) == HELD_OUT_SAMPLES


def test_without_a_network_one_line_says_what_to_do(mirror, tmp_path):
    shutil.rmtree(mirror)
    message = refusal(mnist(tmp_path / "data", download=True).require_data)
    assert f"MNIST in '{tmp_path / 'data'}' cannot be read: Error downloading" in message
    assert "where there is a network" in message
