"""Workloads on users' files: read rightly, fetched where that is asked for, and what is missing or
damaged told in one line with the file's name."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from measurement.errors import PlanError
from runners.planning.workload import resolve_workload
from tests.kit.dataset_files import (
    HELD_OUT_SAMPLES,
    OPTIONS,
    cifar_batch,
    write_cifar10,
    write_data,
    write_imagenet,
    write_mnist,
)
from tests.kit.refusals import refusal
from workloads.language_model import SIZES, Decoder

pytestmark = pytest.mark.slow  # data sets are written and read

CPU = torch.device("cpu")


def workload(name, folder, **options):
    given = {"data_dir": str(folder), **OPTIONS.get(name, {}), **options}
    return resolve_workload(name, given).build(local_batch_size=4, seed=3)


def first_batch(made):
    return next(made.batches(rank=0, world_size=1, device=CPU))


def refused_data(name, folder, **options):
    """The one line with which a workload's data is refused before anything starts."""
    return refusal(workload(name, folder, **options).require_data)


def are_equal(tensors, wanted):
    """One by one."""
    return all(torch.equal(tensor, other) for tensor, other in zip(tensors, wanted, strict=True))


def held_out(made):
    batches = list(made.evaluation_batches(rank=0, world_size=1, device=CPU))
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def test_mnist_is_read_as_torchvision_reads_it(tmp_path):
    from torchvision import datasets
    from torchvision.transforms import v2

    write_mnist(tmp_path)
    transform = v2.Compose(
        [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1307], [0.3081])]
    )
    theirs = datasets.MNIST(tmp_path, train=False, transform=transform)
    images, labels = held_out(workload("mnist", tmp_path))
    assert labels.tolist() == [label for _, label in theirs]
    assert torch.allclose(images, torch.stack([image for image, _ in theirs]), atol=1e-6)


def in_a_folder(path, content):
    path.mkdir()
    (path / path.name).write_bytes(content)


CHANGES = {
    "above": lambda path, content: (path.parents[1] / path.name).write_bytes(content),
    "packed": lambda path, content: path.with_name(f"{path.name}.gz").write_bytes(
        gzip.compress(content)
    ),
    "kaggle": in_a_folder,
}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("change", CHANGES)
def test_files_are_read_however_they_were_unpacked(tmp_path, name, change):
    write_data(name, tmp_path)
    wanted = held_out(workload(name, tmp_path))
    for path in sorted(file for file in tmp_path.rglob("*") if file.is_file()):
        content = path.read_bytes()
        path.unlink()
        CHANGES[change](path, content)
    assert are_equal(held_out(workload(name, tmp_path)), wanted)


def test_cifar10_is_read_and_resized(tmp_path):
    write_cifar10(tmp_path)
    images, labels = held_out(workload("cifar10", tmp_path))
    wanted = cifar_batch(5, HELD_OUT_SAMPLES)
    assert labels.tolist() == wanted["labels"]
    mean, deviation = (
        torch.tensor(values)[:, None, None]
        for values in ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    )
    pixels = ((images * deviation + mean) * 255).round()
    assert np.array_equal(pixels.numpy().reshape(-1, 3072), wanted["data"])
    large = workload("cifar10", tmp_path, image_size=224)
    assert first_batch(large)[0].shape == (4, 3, 224, 224)


def test_imagenets_classes_and_the_models_outputs_are_the_folders(tmp_path):
    write_imagenet(tmp_path)
    made = workload("imagenet", tmp_path)
    images, labels = held_out(made)
    assert images.shape == (HELD_OUT_SAMPLES, 3, 64, 64)
    assert labels.tolist() == [0] * 12 + [1] * 11
    assert made.build_model()(images[:2]).shape == (2, 2)
    (tmp_path / "val").rename(tmp_path / "valid")
    assert are_equal(held_out(workload("imagenet", tmp_path))[1:], [labels])


def test_a_text_is_cut_into_sequences_that_follow_one_another(tmp_path):
    """Of its bytes, in whatever encoding."""
    text = np.random.default_rng(1).integers(256, size=1000, dtype=np.uint8)
    (tmp_path / "input.txt").write_bytes(text.tobytes())
    made = workload("language_model", tmp_path / "input.txt")
    tokens, targets = held_out(made)
    assert tokens.shape == targets.shape == (6, 16)
    assert tokens.flatten().tolist() == text[900:996].tolist(), "the last tenth"
    assert targets.flatten().tolist() == text[901:997].tolist()
    assert len(made.training_set) == 899 // 16


def test_a_decoder_does_not_look_ahead():
    torch.manual_seed(1)
    model = Decoder(SIZES["nano"], sequence_length=16)
    tokens = torch.randint(256, (2, 16))
    before = model(tokens)
    tokens[:, 9] = (tokens[:, 9] + 1) % 256
    apart = (model(tokens) - before).abs().amax(dim=(0, 2))
    assert apart[:9].max() < 1e-6 and apart[9:].max() > 1e-3


@pytest.mark.parametrize("name", ["mnist", "cifar10", *OPTIONS])
def test_missing_data_is_refused_with_its_place_and_a_remedy(tmp_path, name):
    place = tmp_path / "data"
    message = refused_data(name, place)
    assert f"'{place}' cannot be read: " in message
    assert "set data_dir to" in message
    assert ("download: true" in message) == (name in ("mnist", "cifar10"))
    with pytest.raises(PlanError, match="cannot be read"):
        first_batch(workload(name, place))


def test_a_damaged_idx_file_is_refused(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"MNIST in '{tmp_path}' cannot be read: " in refused_data("mnist", tmp_path)


class Malicious:
    def __reduce__(self):
        return open, ("was-run", "w")


def test_a_pickle_that_is_not_the_published_one_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(pickle.dumps({**cifar_batch(2, 7), "more": Malicious()}))
    assert "Dataset not found or corrupted" in refused_data("cifar10", tmp_path)
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("part", [0, 0.5])
def test_a_damaged_jpeg_is_named_when_it_is_loaded(tmp_path, part):
    write_imagenet(tmp_path)
    path = tmp_path / "val" / "dog" / "3.jpg"
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    message = refusal(held_out, workload("imagenet", tmp_path))
    assert message.startswith(f"image '{path}' cannot be read: ")


def test_class_folders_that_do_not_fit_are_named(tmp_path):
    write_imagenet(tmp_path)
    (tmp_path / "train" / "fox").mkdir()
    assert "other classes in val/ than in train/: 'fox' only in one of them" in refused_data(
        "imagenet", tmp_path
    )
    (tmp_path / "val" / "fox").mkdir()
    assert "no valid file for the classes fox" in refused_data("imagenet", tmp_path)


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "0 bytes to make"), (16, "15 bytes to make"), (100, "10 bytes (of its last tenth)")],
)
def test_a_text_that_is_too_short_is_refused(tmp_path, size, message):
    (tmp_path / "input.txt").write_bytes(b"a" * size)
    error = refused_data("language_model", tmp_path / "input.txt")
    assert error.startswith(f"'{tmp_path / 'input.txt'}' is too short: ")
    assert message in error


def test_a_tilde_is_the_home_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_mnist(tmp_path / "data")
    assert len(first_batch(workload("mnist", "~/data"))[1]) == 4


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


def test_missing_data_is_fetched_once_and_only_where_asked_for(mirror, tmp_path):
    assert "cannot be read" in refused_data("mnist", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    workload("mnist", tmp_path / "data", download=True).require_data()
    shutil.rmtree(mirror)
    _, labels = held_out(workload("mnist", tmp_path / "data", download=True))
    assert len(labels) == HELD_OUT_SAMPLES


def test_without_a_network_one_line_says_what_to_do(mirror, tmp_path):
    shutil.rmtree(mirror)
    message = refused_data("mnist", tmp_path / "data", download=True)
    assert f"MNIST in '{tmp_path / 'data'}' cannot be read: Error downloading" in message
    assert "where there is a network" in message
