"""Users' folders as they are: unpacked by other programs, spelt otherwise, with what systems and downloads leave beside."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import tarfile
import zipfile

import pytest
import torch

from measurement.errors import PlanError
from tests.kit.dataset_files import (
    HELD_OUT_SAMPLES,
    WRITERS,
    cifar_batch,
    write_cifar10,
    write_data,
    write_imagenet,
    write_mnist,
    write_text,
)
from tests.unit.test_data_workloads import CPU, IMAGES, are_equal, held_out, refusal, workload

pytestmark = pytest.mark.slow  # data sets are written and read

BATCHES = "cifar-10-batches-py"


def packed_as_zip(name, content):
    def pack(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"__MACOSX/._{name}", b"a fork")
            archive.writestr(name, content)

    return pack


def each(folder, change):
    """Change every file of a folder: ``change`` takes its path and content, and writes another in its place."""
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        path.unlink()
        change(path, content)


def in_a_folder(path, content):
    path.mkdir()
    (path / path.name).write_bytes(content)


def linked(path, content):
    other = path.parent.parent / f"stored-{path.name}"
    other.write_bytes(content)
    path.symlink_to(other)


def zipped(path, content):
    packed_as_zip(path.name, content)(path.with_name(f"{path.name}.zip"))


CHANGES = {
    "7-zip": lambda path, content: path.with_name(path.name.replace("-idx", ".idx")).write_bytes(content),
    "kaggle": in_a_folder,
    "kaggle, 7-zip": lambda path, content: in_a_folder(path.with_name(path.name.replace("-idx", ".idx")), content),
    "capitals": lambda path, content: path.with_name(path.name.upper()).write_bytes(content),
    "packed without a suffix": lambda path, content: path.write_bytes(gzip.compress(content)),
    "a suffix and not packed": lambda path, content: path.with_name(f"{path.name}.gz").write_bytes(content),
    "xz": lambda path, content: path.with_name(f"{path.name}.xz").write_bytes(lzma.compress(content)),
    "bzip2 as gz": lambda path, content: path.with_name(f"{path.name}.gz").write_bytes(bz2.compress(content)),
    "zip": zipped,
    "links": linked,
}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("change", CHANGES)
def test_files_are_read_however_they_were_unpacked(tmp_path, name, change):
    write_data(name, tmp_path)
    wanted = held_out(workload(name, tmp_path))
    each(tmp_path / ("MNIST/raw" if name == "mnist" else BATCHES), CHANGES[change])
    assert are_equal(held_out(workload(name, tmp_path)), wanted)


@pytest.mark.parametrize("inside", ["raw", "mnist/RAW", "Mnist/raw"])
def test_mnist_is_found_from_the_folder_above_in_any_spelling(tmp_path, inside):
    write_mnist(tmp_path, inside=inside)
    assert len(held_out(workload("mnist", tmp_path))[1]) == HELD_OUT_SAMPLES


@pytest.mark.parametrize("left", ["", "half of it"])
def test_a_whole_file_is_read_where_a_half_written_one_lies_beside(tmp_path, left):
    write_mnist(tmp_path, inside=".", suffix=".gz")
    (tmp_path / IMAGES).write_text(left)
    (tmp_path / f"{IMAGES}.gz.part").write_text(left)
    assert len(held_out(workload("mnist", tmp_path))[1]) == HELD_OUT_SAMPLES
    (tmp_path / f"{IMAGES}.gz").write_bytes(b"")
    assert f"'{tmp_path / IMAGES}' is no IDX file" in refusal(workload("mnist", tmp_path))


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_cifar10_is_read_in_both_versions_and_packed_as_it_is_published(tmp_path, version, is_packed):
    write_cifar10(tmp_path)
    folder, wanted = tmp_path / BATCHES, held_out(workload("cifar10", tmp_path))
    if version == "binary":

        def rewrite(path, content):
            batch = pickle.loads(content, encoding="latin1")
            rows = zip(batch["labels"], batch["data"], strict=True)
            path.with_name(f"{path.name}.bin").write_bytes(b"".join(bytes([label]) + data.tobytes() for label, data in rows))

        each(folder, rewrite)
        folder = folder.rename(tmp_path / "cifar-10-batches-bin")
    if is_packed:
        (folder / "._test_batch").write_bytes(b"a fork")
        with tarfile.open(tmp_path / f"cifar-10-{version}.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)
        each(folder, lambda path, content: None)
    assert are_equal(held_out(workload("cifar10", tmp_path)), wanted)


def test_an_archive_that_is_cut_off_or_holds_something_else(tmp_path):
    packed = tmp_path / "cifar-10-python.tar.gz"
    write_cifar10(tmp_path / "whole")
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(tmp_path / "whole" / BATCHES / "test_batch", "test_batch")
    assert f"'{packed}' holds no data_batch_1; fetch it again" in refusal(workload("cifar10", tmp_path))
    packed.write_bytes(packed.read_bytes()[:500])
    assert f"'{packed}' cannot be read: " in refusal(workload("cifar10", tmp_path))


def test_what_systems_leave_is_no_class_and_no_image(tmp_path):
    write_imagenet(tmp_path)
    wanted = held_out(workload("imagenet", tmp_path))
    for part in ("train", "val"):
        for name in (".ipynb_checkpoints", "__MACOSX", "@eaDir"):
            (tmp_path / part / name / "cat").mkdir(parents=True)
        (tmp_path / part / "cat" / ".ipynb_checkpoints").mkdir()
        for name in (
            "cat/._0.jpg",
            "cat/.ipynb_checkpoints/0-checkpoint.jpg",
            "dog/Thumbs.db",
            ".DS_Store",
            "__MACOSX/cat/._0.jpg",
        ):
            (tmp_path / part / name).write_bytes(b"no image")
        (tmp_path / part / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
        (tmp_path / part / "cat" / "7.jpg.part").write_bytes(b"half")
    made = workload("imagenet", tmp_path)
    made.require_data()
    assert made.build_model()(torch.zeros(2, 3, 64, 64)).shape == (2, 2)
    assert are_equal(held_out(made), wanted)
    assert len(made.training_set) == 19
    (note,) = made.data_notes()
    assert note.startswith(
        f"no classes, and left out: {tmp_path / 'train' / '.DS_Store'}, {tmp_path / 'train' / '.ipynb_checkpoints'}"
    )


def test_images_are_found_by_suffixes_of_any_spelling_and_below_folders(tmp_path):
    write_imagenet(tmp_path)
    for number, path in enumerate(sorted((tmp_path / "val" / "dog").iterdir())):
        place = path.parent / "images" / f"{path.stem}{('.JPEG', '.JPG', '.Jpeg')[number % 3]}"
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    assert held_out(workload("imagenet", tmp_path))[1].tolist() == [0] * 12 + [1] * 11
    (tmp_path / "val").rename(tmp_path / "Validation")
    made = workload("imagenet", tmp_path)
    assert held_out(made)[1].tolist() == [0] * 12 + [1] * 11
    assert list(made.data_notes()) == [f"'{tmp_path / 'Validation'}' is read as val"]
    (tmp_path / "valid").symlink_to(tmp_path / "Validation")
    assert "holds several that may be val: Validation, valid; keep one, or call it val" in refusal(workload("imagenet", tmp_path))


def test_a_class_whose_files_are_no_images(tmp_path):
    write_imagenet(tmp_path)
    for path in (tmp_path / "val" / "dog").iterdir():
        path.rename(path.with_suffix(".gif"))
    said = refusal(workload("imagenet", tmp_path))
    assert f"class folder without an image: {tmp_path / 'val' / 'dog'}; put images there (.jpg, .jpeg, .png" in said


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt"),
        ("Train.txt", "validation.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens"),
        ("wiki.train.raw", "wiki.valid.raw"),
        ("TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"),
        ("train", "dev"),
    ],
)
def test_texts_by_the_names_that_corpora_have(tmp_path, names):
    write_text(tmp_path)
    wanted = held_out(workload("language_model", tmp_path, sequence_length=16))
    for old, new in zip(("train.txt", "val.txt"), names, strict=True):
        (tmp_path / old).rename(tmp_path / new)
    for name in (".DS_Store", f"._{names[1]}", f"{names[1]}.part", f"{names[1]}~", "wiki.test.tokens", "constraints.txt"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
    made = workload("language_model", tmp_path, sequence_length=16)
    assert are_equal(held_out(made), wanted)
    assert f"'{tmp_path / names[1]}' is read as val.txt" in made.data_notes()


def test_of_several_texts_the_one_of_the_usual_name_is_read_and_told(tmp_path):
    write_text(tmp_path)
    (tmp_path / "wiki.valid.tokens").write_text("other")
    made = workload("language_model", tmp_path, sequence_length=16)
    made.require_data()
    (note,) = made.data_notes()
    assert note == f"'{tmp_path / 'val.txt'}' is read; beside it, wiki.valid.tokens may be meant and is not read"
    (tmp_path / "val.txt").rename(tmp_path / "valid.txt")
    assert "holds several that may be val.txt: valid.txt, wiki.valid.tokens; keep one, or call it val.txt" in refusal(
        workload("language_model", tmp_path, sequence_length=16)
    )


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "utf-8-sig"])
def test_a_text_in_any_encoding_is_its_bytes(tmp_path, encoding):
    content = "零 is zero.\r\n".encode(encoding) * 100
    (tmp_path / "input.txt").write_bytes(content)
    tokens, _ = held_out(workload("language_model", tmp_path / "input.txt", sequence_length=16))
    assert bytes(tokens.flatten().tolist()) == content[len(content) - len(content) // 10 :][: tokens.numel()]


def test_a_compressed_text_is_refused(tmp_path):
    path = tmp_path / "input.txt"
    path.write_bytes(gzip.compress(bytes(range(256)) * 9))
    assert f"'{path}' is compressed by gzip, and tokens are the bytes of a text; unpack it" in refusal(
        workload("language_model", path, sequence_length=16)
    )


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_cannot_be_read_is_told_in_one_line(tmp_path, name):
    place = tmp_path / ("x" * 300)
    assert f"'{place}' cannot be read: File name too long" in refusal(workload(name, place))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert str(loop) in refusal(workload(name, loop))


def test_one_who_prefers_another_home(tmp_path, monkeypatch):
    with pytest.raises(PlanError, match="data_dir = '~nosuchuser/data': the home directory is not known: no such user"):
        workload("mnist", "~nosuchuser/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_mnist(tmp_path / "data")
    assert len(next(workload("mnist", "~/data").batches(rank=0, world_size=1, device=CPU))[1]) == 4


def test_a_batch_with_a_suffix_of_pickles_is_found(tmp_path):
    write_cifar10(tmp_path)
    each(tmp_path / BATCHES, lambda path, content: path.with_name(f"{path.name}.pkl").write_bytes(content))
    assert held_out(workload("cifar10", tmp_path))[1].tolist() == cifar_batch(5, HELD_OUT_SAMPLES)["labels"]
