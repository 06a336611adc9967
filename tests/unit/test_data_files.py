"""Users' folders as they are: unpacked by other programs, spelt otherwise, with what systems and
downloads leave beside."""

from __future__ import annotations

import gzip

import pytest
import torch

from measurement.errors import PlanError
from tests.kit.dataset_files import (
    HELD_OUT_SAMPLES,
    WRITERS,
    write_data,
    write_imagenet,
    write_mnist,
    write_text,
)
from tests.unit.test_data_workloads import CPU, are_equal, held_out, refused_data, workload

pytestmark = pytest.mark.slow  # data sets are written and read


def in_a_folder(path, content):
    path.mkdir()
    (path / path.name).write_bytes(content)


CHANGES = {
    "7-zip": lambda path, content: path.with_name(path.name.replace("-idx", ".idx")).write_bytes(
        content
    ),
    "kaggle": in_a_folder,
    "kaggle, 7-zip": lambda path, content: in_a_folder(
        path.with_name(path.name.replace("-idx", ".idx")), content
    ),
    "packed without a suffix": lambda path, content: path.write_bytes(gzip.compress(content)),
    "a suffix and not packed": lambda path, content: path.with_name(f"{path.name}.gz").write_bytes(
        content
    ),
}


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("change", CHANGES)
def test_files_are_read_however_they_were_unpacked(tmp_path, name, change):
    write_data(name, tmp_path)
    wanted = held_out(workload(name, tmp_path))
    for path in sorted(
        (tmp_path / ("MNIST/raw" if name == "mnist" else "cifar-10-batches-py")).iterdir()
    ):
        content = path.read_bytes()
        path.unlink()
        CHANGES[change](path, content)
    assert are_equal(held_out(workload(name, tmp_path)), wanted)


def test_what_systems_leave_is_no_class_and_no_image(tmp_path):
    write_imagenet(tmp_path)
    wanted = held_out(workload("imagenet", tmp_path))
    for part in ("train", "val"):
        for name in (".ipynb_checkpoints", "__MACOSX", "@eaDir", "cat/.ipynb_checkpoints"):
            (tmp_path / part / name).mkdir()
        for name in (
            "cat/._0.jpg",
            "cat/.ipynb_checkpoints/0-checkpoint.jpg",
            "dog/Thumbs.db",
            ".DS_Store",
            "cat/7.jpg.part",
        ):
            (tmp_path / part / name).write_bytes(b"no image")
    made = workload("imagenet", tmp_path)
    made.require_data()
    assert made.build_model()(torch.zeros(2, 3, 64, 64)).shape == (2, 2)
    assert are_equal(held_out(made), wanted)
    assert len(made.training_set) == 19


def test_images_are_found_by_suffixes_of_any_spelling_and_below_folders(tmp_path):
    write_imagenet(tmp_path)
    for number, path in enumerate(sorted((tmp_path / "val" / "dog").iterdir())):
        place = path.parent / "images" / f"{path.stem}{('.JPEG', '.JPG', '.Jpeg')[number % 3]}"
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    (tmp_path / "val").rename(tmp_path / "Validation")
    assert held_out(workload("imagenet", tmp_path))[1].tolist() == [0] * 12 + [1] * 11
    (tmp_path / "valid").symlink_to(tmp_path / "Validation")
    assert (
        "holds several that may be val: Validation, valid; keep one, or call it val"
        in refused_data("imagenet", tmp_path)
    )


def test_a_class_whose_files_are_no_images_is_refused(tmp_path):
    write_imagenet(tmp_path)
    for path in (tmp_path / "val" / "dog").iterdir():
        path.rename(path.with_suffix(".gif"))
    message = refused_data("imagenet", tmp_path)
    assert (
        f"class folder without an image: {tmp_path / 'val' / 'dog'}; put images there (.jpg, .jpeg, .png"
        in message
    )


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens"),
        ("TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"),
        ("Train", "dev"),
    ],
)
def test_texts_are_found_by_the_names_that_corpora_have(tmp_path, names):
    write_text(tmp_path)
    wanted = held_out(workload("language_model", tmp_path))
    for old, new in zip(("train.txt", "val.txt"), names, strict=True):
        (tmp_path / old).rename(tmp_path / new)
    for name in (
        ".DS_Store",
        f"._{names[1]}",
        f"{names[1]}.part",
        f"{names[1]}~",
        "wiki.test.tokens",
        "constraints.txt",
    ):
        (tmp_path / name).write_bytes(b"\xff\xfe")
    assert are_equal(held_out(workload("language_model", tmp_path)), wanted)


def test_of_several_texts_the_one_of_the_usual_name_is_read(tmp_path):
    write_text(tmp_path)
    wanted = held_out(workload("language_model", tmp_path))
    (tmp_path / "wiki.valid.tokens").write_text("other")
    assert are_equal(held_out(workload("language_model", tmp_path)), wanted)
    (tmp_path / "val.txt").rename(tmp_path / "valid.txt")
    assert (
        "holds several that may be val.txt: valid.txt, wiki.valid.tokens; keep one, or call it val.txt"
        in refused_data("language_model", tmp_path)
    )


@pytest.mark.parametrize("encoding", ["utf-16", "gb18030", "utf-8-sig"])
def test_a_text_in_any_encoding_is_its_bytes(tmp_path, encoding):
    content = "零 is zero.\r\n".encode(encoding) * 100
    (tmp_path / "input.txt").write_bytes(content)
    tokens, _ = held_out(workload("language_model", tmp_path / "input.txt"))
    assert (
        bytes(tokens.flatten().tolist())
        == content[len(content) - len(content) // 10 :][: tokens.numel()]
    )


def test_a_compressed_text_is_refused(tmp_path):
    path = tmp_path / "input.txt.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 9))
    assert f"'{path}' is compressed, and tokens are the bytes of a text; unpack it" in refused_data(
        "language_model", path, sequence_length=16
    )


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_cannot_be_read_is_told_in_one_line(tmp_path, name):
    place = tmp_path / ("x" * 300)
    assert f"'{place}' cannot be read: File name too long" in refused_data(name, place).replace(
        "/MNIST/raw", ""
    ).replace("/cifar-10-batches-py", "")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert str(loop) in refused_data(name, loop)


def test_a_tilde_is_the_home_that_the_environment_names(tmp_path, monkeypatch):
    with pytest.raises(
        PlanError,
        match="data_dir = '~nosuchuser/data': the home directory is not known: no such user",
    ):
        workload("mnist", "~nosuchuser/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_mnist(tmp_path / "data", inside="raw")
    assert len(next(workload("mnist", "~/data").batches(rank=0, world_size=1, device=CPU))[1]) == 4
    assert len(held_out(workload("mnist", "~/data"))[1]) == HELD_OUT_SAMPLES
