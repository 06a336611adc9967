"""Workloads on users' files: read rightly, and what is missing or damaged told in one line with the
file's name."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from measurement.errors import PlanError
from runners.planning.workload import resolve_workload
from tests.kit.dataset_files import (
    HELD_OUT_SAMPLES,
    OPTIONS,
    cifar_batch,
    digits_28,
    idx,
    write_cifar10,
    write_imagenet,
    write_mnist,
    write_python2_pickle,
)
from tests.kit.refusals import refusal
from workloads.language_model import SIZES, Decoder

pytestmark = pytest.mark.slow  # data sets are written and read

CPU = torch.device("cpu")
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def workload(name, folder, **options):
    given = {"data_dir": str(folder), **OPTIONS.get(name, {}), **options}
    return resolve_workload(name, given).build(local_batch_size=4, seed=3)


def refused_data(name, folder, **options):
    """The one line with which a workload's data is refused before anything starts."""
    return refusal(workload(name, folder, **options).require_data)


def are_equal(tensors, wanted):
    return all(torch.equal(tensor, other) for tensor, other in zip(tensors, wanted, strict=True))


def held_out(made):
    batches = list(made.evaluation_batches(rank=0, world_size=1, device=CPU))
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


@pytest.mark.parametrize(
    ("suffix", "inside"), [("", "MNIST/raw"), (".gz", "MNIST/raw"), ("", "."), (".gz", ".")]
)
def test_mnist_is_read_as_torchvision_reads_it(tmp_path, suffix, inside):
    from torchvision import datasets
    from torchvision.transforms import v2

    write_mnist(tmp_path / "theirs")
    write_mnist(tmp_path / "mine", suffix=suffix, inside=inside)
    transform = v2.Compose(
        [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1307], [0.3081])]
    )
    theirs = datasets.MNIST(tmp_path / "theirs", train=False, transform=transform)
    images, labels = held_out(workload("mnist", tmp_path / "mine"))
    assert (
        labels.tolist()
        == [label for _, label in theirs]
        == digits_28()[1][61 : 61 + HELD_OUT_SAMPLES].tolist()
    )
    assert torch.allclose(images, torch.stack([image for image, _ in theirs]), atol=1e-6)


def test_cifar10_is_read_and_resized(tmp_path):
    write_cifar10(tmp_path)
    images, labels = held_out(workload("cifar10", tmp_path))
    wanted = cifar_batch(5, HELD_OUT_SAMPLES)
    assert labels.tolist() == wanted["labels"]
    pixels = (
        images * torch.tensor([0.2470, 0.2435, 0.2616])[:, None, None]
        + torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
    )
    assert np.array_equal((pixels * 255).round().numpy(), wanted["data"].reshape(-1, 3, 32, 32))
    large = workload("cifar10", tmp_path / "cifar-10-batches-py", image_size=224)
    assert next(large.batches(rank=0, world_size=1, device=CPU))[0].shape == (4, 3, 224, 224)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_cifar10_is_read_whatever_wrote_it(tmp_path, protocol):
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(
        pickle.dumps(cifar_batch(5, 6), protocol=protocol)
    )
    assert held_out(workload("cifar10", tmp_path))[1].tolist() == cifar_batch(5, 6)["labels"]


def test_a_flat_validation_folder_gets_its_remedy(tmp_path):
    write_imagenet(tmp_path)
    (tmp_path / "val").rename(tmp_path / "sorted")
    (tmp_path / "val").mkdir()
    for number, image in enumerate(sorted((tmp_path / "sorted").rglob("*.jpg"))):
        image.rename(tmp_path / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
    message = refused_data("imagenet", tmp_path)
    assert (
        "files and no class folders, as ImageNet's validation archive is unpacked; move each image into a folder"
        in message
    )


def test_imagenets_classes_and_the_models_outputs_are_the_folders(tmp_path):
    write_imagenet(tmp_path)
    made = workload("imagenet", tmp_path)
    images, labels = held_out(made)
    assert images.shape == (HELD_OUT_SAMPLES, 3, 64, 64)
    assert labels.tolist() == [0] * 12 + [1] * 11
    assert made.build_model()(images[:2]).shape == (2, 2)


def test_a_text_is_cut_into_sequences_that_follow_one_another(tmp_path):
    text = bytes(np.random.default_rng(1).integers(256, size=1000, dtype=np.uint8))
    (tmp_path / "input.txt").write_bytes(text)
    made = workload("language_model", tmp_path / "input.txt")
    tokens, targets = held_out(made)
    last_tenth = torch.tensor(list(text[900:]))
    assert tokens.shape == targets.shape == (6, 16)
    assert torch.equal(tokens.flatten(), last_tenth[:96])
    assert torch.equal(targets.flatten(), last_tenth[1:97])
    assert len(made.training_set) == 899 // 16


def test_a_decoder_does_not_look_ahead():
    torch.manual_seed(1)
    model = Decoder(SIZES["nano"], vocabulary=256, sequence_length=16)
    tokens = torch.randint(256, (2, 16))
    other = tokens.clone()
    other[:, 9] = (other[:, 9] + 1) % 256
    before, after = model(tokens), model(other)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", "t10k-labels-idx1-ubyte (or .gz) in '{0}/MNIST/raw' or '{0}/raw' or '{0}'"),
        ("cifar10", "data_batch_5, test_batch (or .gz) in '{0}/cifar-10-batches-py' or"),
        ("imagenet", "'{0}/train/CLASS/*.jpg' and '{0}/val/CLASS/*.jpg'"),
        ("language_model", "a text file '{0}', or train.txt and val.txt in a folder of that name"),
    ],
)
def test_without_data_one_line_says_what_is_expected_where_and_what_is_there(
    tmp_path, name, expected
):
    place = tmp_path / "data"
    message = refused_data(name, place)
    assert message.startswith(f"workload '{name}' finds no data: expected ")
    assert expected.format(place) in message
    assert f"'{place}' does not exist" in message
    assert "set data_dir to" in message
    assert ("download: true" in message) == (name in ("mnist", "cifar10"))
    place.mkdir()
    assert "holds nothing" in refused_data(name, place)
    for number in range(6):
        (place / f"{number}.dat").touch()
    assert f"'{place}' holds 0.dat, 1.dat, 2.dat, 3.dat and 2 more" in refused_data(name, place)
    with pytest.raises(PlanError, match="finds no data"):
        workload(name, place).batches(rank=0, world_size=2, device=CPU)


def damaged_images(folder, damage):
    write_mnist(folder, inside=".")
    path = folder / IMAGES
    path.write_bytes(damage(path.read_bytes()))
    return refused_data("mnist", folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "is not an IDX file of images, or is cut off; fetch it again"),
        (lambda data: b"", "is not an IDX file of images"),
        (lambda data: idx(np.zeros((0, 28, 28))), "is not an IDX file of images"),
        (
            lambda data: idx(np.zeros((61, 32, 32))),
            "holds images of 32 x 32; workload 'mnist' takes 28 x 28",
        ),
        (lambda data: idx(np.zeros((60, 28, 28))), "holds 60 images and"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, damage, message):
    error = damaged_images(tmp_path, damage)
    assert message in error
    assert f"'{tmp_path / IMAGES}'" in error


def test_damaged_labels_and_archives_are_named(tmp_path):
    write_mnist(tmp_path, inside=".")
    labels = digits_28()[1][:61].copy()
    labels[[7, 9]] = 10, 200
    (tmp_path / LABELS).write_bytes(idx(labels))
    assert (
        f"'{tmp_path / LABELS}' holds label 10 at place 7 (2 of 61 are out of range); labels are 0 to 9"
        in refused_data("mnist", tmp_path)
    )
    write_mnist(tmp_path / "packed", inside=".", suffix=".gz")
    path = tmp_path / "packed" / f"{LABELS}.gz"
    for content in (path.read_bytes()[:-12], path.read_bytes()[:12] + b"\xff" * 20):
        path.write_bytes(content)
        assert f"'{path}' cannot be read: " in refused_data("mnist", tmp_path / "packed")


class Malicious:
    def __reduce__(self):
        return open, ("was-run", "w")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: {**whole, "more": Malicious()}, "it asks for "),
        (lambda whole: [1], "TypeError: "),
        (
            lambda whole: {**whole, "data": whole["data"][:, :1024]},
            "are not uint8 [n, 3072] and n whole numbers",
        ),
        (lambda whole: {**whole, "labels": whole["labels"][1:]}, "are not uint8 [n, 3072]"),
        (
            lambda whole: {**whole, "labels": [0, 1, 2, 3, -4, 5, 6]},
            "holds label -4 at place 4 (1 of 7",
        ),
    ],
)
def test_a_pickle_that_is_no_cifar_batch_is_refused_and_not_run(
    tmp_path, monkeypatch, content, message
):
    monkeypatch.chdir(tmp_path)
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    write_python2_pickle(path, content(cifar_batch(2, 7)))
    error = refused_data("cifar10", tmp_path)
    assert f"'{path}' " in error
    assert message in error
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"no image", lambda data: b""]
)
def test_a_damaged_jpeg_is_named_when_it_is_loaded(tmp_path, damage):
    write_imagenet(tmp_path)
    path = tmp_path / "val" / "dog" / "3.jpg"
    path.write_bytes(damage(path.read_bytes()))
    message = refusal(held_out, workload("imagenet", tmp_path))
    assert message.startswith(f"image '{path}' cannot be read: ")


def test_class_folders_that_do_not_fit_are_named(tmp_path):
    write_imagenet(tmp_path)
    (tmp_path / "train" / "fox").mkdir()
    assert "other classes in val/ than in train/: only in train/: fox" in refused_data(
        "imagenet", tmp_path
    )
    (tmp_path / "val" / "fox").mkdir()
    assert f"class folder without an image: {tmp_path / 'train' / 'fox'};" in refused_data(
        "imagenet", tmp_path
    )
    (tmp_path / "train" / "fox").rmdir()
    assert "only in val/: fox" in refused_data("imagenet", tmp_path)


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "0 bytes to make"), (16, "15 bytes to make"), (100, "10 bytes (of its last tenth)")],
)
def test_a_text_that_is_too_short_is_refused(tmp_path, size, message):
    (tmp_path / "input.txt").write_bytes(b"a" * size)
    error = refused_data("language_model", tmp_path / "input.txt")
    assert error.startswith(f"'{tmp_path / 'input.txt'}' is too short: ")
    assert message in error
