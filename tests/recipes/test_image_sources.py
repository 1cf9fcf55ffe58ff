"""Sources of images: each layout gives the same images, and a fault in one is told with its file and row."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from shoal.errors import DataError, UsageError
from shoal.recipes.cifar10.sources import ImageData, open_data

Pixels = npt.NDArray[np.uint8]
NUM_TRAIN, NUM_VAL = 30, 12


def load(data: Path | str, num_images: int | None = None) -> ImageData:
    return open_data(str(data), data_path="not-used", num_images=num_images)


@pytest.fixture(scope="module")
def digits() -> ImageData:
    return load("digits")


def encode(pixels: torch.Tensor, image_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(buffer, image_format)
    return buffer.getvalue()


def rows(digits: ImageData) -> tuple[list[bytes], list[int]]:
    count = NUM_TRAIN + NUM_VAL
    return [encode(digits.train.read(i)) for i in range(count)], digits.train.labels[:count].tolist()


def write_parquet(path: Path, images: list[bytes | None], labels: list[int | None], column: str = "img") -> None:
    struct = pa.array(
        [{"bytes": content, "path": None} for content in images],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    pq.write_table(pa.table({column: struct, "label": pa.array(labels, pa.int64())}), path, row_group_size=7)


def parquet_folder(folder: Path, digits: ImageData) -> None:
    images, labels = rows(digits)
    write_parquet(folder / "train-00000-of-00002.parquet", images[:20], labels[:20])
    write_parquet(folder / "train-00001-of-00002.parquet", images[20:NUM_TRAIN], labels[20:NUM_TRAIN])
    write_parquet(folder / "test-00000-of-00001.parquet", images[NUM_TRAIN:], labels[NUM_TRAIN:])


def class_folders(folder: Path, digits: ImageData) -> None:
    images, labels = rows(digits)
    for number, (content, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / ("train" if number < NUM_TRAIN else "val") / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_batch(path: Path, pixels: Pixels, labels: list[int]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps({"data": pixels.reshape(len(pixels), -1), "labels": labels}, protocol=2))


def official_batches(folder: Path, digits: ImageData) -> None:
    _, labels = rows(digits)
    pixels = np.stack([digits.train.read(i).numpy() for i in range(len(labels))])
    for number in range(5):
        part = slice(number * 6, number * 6 + 6)
        write_batch(folder / "cifar-10-batches-py" / f"data_batch_{number + 1}", pixels[part], labels[part])
    write_batch(folder / "cifar-10-batches-py" / "test_batch", pixels[NUM_TRAIN:], labels[NUM_TRAIN:])


def test_digits_are_split_evenly_by_class_and_always_the_same(digits: ImageData) -> None:
    assert (len(digits.train), len(digits.val)) == (1442, 355)
    for label in range(10):
        share = (digits.val.labels == label).sum() / (digits.train.labels == label).sum()
        assert 0.23 < share < 0.26
    again = load("digits")
    assert torch.equal(again.val.read(17), digits.val.read(17))
    assert not digits.mirrored
    image = digits.train.read(0)
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 32, 32))


@pytest.mark.parametrize("make", [parquet_folder, class_folders, official_batches])
def test_each_layout_of_a_folder_is_recognised_and_gives_the_same_images(
    make: Callable[[Path, ImageData], None], digits: ImageData, tmp_path: Path
) -> None:
    make(tmp_path, digits)
    data = load(tmp_path)
    assert (len(data.train), len(data.val)) == (NUM_TRAIN, NUM_VAL)
    # Class folders are read class by class; the others keep the order.
    order = np.argsort(digits.train.labels[:NUM_TRAIN], kind="stable") if make is class_folders else range(NUM_TRAIN)
    for position, original in enumerate(order):
        assert data.train.labels[position] == digits.train.labels[original]
        assert torch.equal(data.train.read(position), digits.train.read(int(original)))


def test_images_of_any_size_and_mode_become_32x32_rgb(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label, (mode, size) in enumerate([("L", (50, 20)), ("RGBA", (32, 32)), ("P", (16, 16)), ("1", (40, 40))]):
            path = tmp_path / split / f"class{label}" / f"{mode}.png"
            path.parent.mkdir(parents=True)
            Image.new(mode, size, 1).save(path)
    (tmp_path / "train" / "class0" / "b.bmp").write_bytes(encode(torch.zeros(3, 8, 8, dtype=torch.uint8), "BMP"))
    data = load(tmp_path)
    assert len(data.train) == 5
    for position in range(5):
        image = data.train.read(position)
        assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 32, 32))


def test_a_subset_takes_all_classes_evenly_and_the_same_part_of_both_splits(digits: ImageData) -> None:
    data = load("digits", num_images=100)
    assert np.bincount(data.train.labels).tolist() == [10] * 10
    assert len(data.val) == round(100 * 355 / 1442)
    with pytest.raises(UsageError, match=r"--subset 1443 .* 1,442 training images"):
        load("digits", num_images=1443)


def test_a_folder_without_images_is_told_what_was_looked_for_and_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError) as caught:
        load(tmp_path)
    for part in ("data_batch_1", "train*.parquet", "train/CLASS/IMAGE", "notes.txt"):
        assert part in str(caught.value)


def test_cifar10_without_a_network_says_what_to_do_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: refused at once
    with pytest.raises(DataError, match=r"cannot be downloaded .* --data PATH, or use --data digits"):
        open_data("cifar10", data_path=str(tmp_path / "c"))


def test_cifar10_that_is_there_is_not_downloaded(digits: ImageData, tmp_path: Path) -> None:
    official_batches(tmp_path, digits)
    assert len(open_data("cifar10", data_path=str(tmp_path)).train) == NUM_TRAIN


@pytest.mark.parametrize(
    "damage", [lambda content: content[:60], lambda content: b"", lambda content: b"no image" * 9, lambda content: None]
)
def test_a_corrupt_image_is_told_with_its_file_and_row(
    damage: Callable[[bytes], bytes | None], digits: ImageData, tmp_path: Path
) -> None:
    images, labels = rows(digits)
    parquet_folder(tmp_path, digits)
    shard: list[bytes | None] = [*images[20:NUM_TRAIN]]
    shard[3] = damage(images[23])
    path = tmp_path / "train-00001-of-00002.parquet"
    write_parquet(path, shard, [*labels[20:NUM_TRAIN]])
    data = load(tmp_path)
    data.train.read(22)
    with pytest.raises(DataError, match=rf"^{path}, row 3: the image "):
        data.train.read(23)


def test_a_corrupt_image_file_is_told_by_its_path(digits: ImageData, tmp_path: Path) -> None:
    class_folders(tmp_path, digits)
    path = min((tmp_path / "train").glob("*/*.png"))
    path.write_bytes(path.read_bytes()[:80])
    with pytest.raises(DataError, match=rf"^{path}: the image cannot be decoded \(80 bytes"):
        load(tmp_path).train.read(0)


@pytest.mark.parametrize("wrong", [10, -1, None])
def test_a_wrong_label_is_told_with_its_file_and_row(wrong: int | None, digits: ImageData, tmp_path: Path) -> None:
    images, labels = rows(digits)
    parquet_folder(tmp_path, digits)
    path = tmp_path / "test-00000-of-00001.parquet"
    write_parquet(path, [*images[:3]], [labels[0], labels[1], wrong])
    with pytest.raises(DataError, match=rf"^{path}, row 2: the label is {wrong}; it must be an integer from 0 to 9"):
        load(tmp_path)


def test_a_wrong_label_in_an_official_batch_is_told_with_its_file_and_row(digits: ImageData, tmp_path: Path) -> None:
    official_batches(tmp_path, digits)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    write_batch(path, np.zeros((2, 3, 32, 32), np.uint8), [4, 11])
    with pytest.raises(DataError, match=rf"^{path}, row 1: the label is 11"):
        load(tmp_path)


def test_a_pickle_that_asks_for_other_code_is_refused(digits: ImageData, tmp_path: Path) -> None:
    official_batches(tmp_path, digits)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps({"data": print, "labels": []}))
    with pytest.raises(DataError, match=r"asks for builtins\.print"):
        load(tmp_path)


def test_a_class_that_is_only_in_the_validation_folder_is_an_error(digits: ImageData, tmp_path: Path) -> None:
    class_folders(tmp_path, digits)
    (tmp_path / "val" / "10").mkdir()
    with pytest.raises(DataError, match="the class '10' has no folder in train/"):
        load(tmp_path)


def test_parquet_files_with_other_columns_are_told_which_are_needed(tmp_path: Path) -> None:
    for split in ("train", "test"):
        pq.write_table(pa.table({"picture": [b""], "label": [1]}), tmp_path / f"{split}.parquet")
    with pytest.raises(DataError, match=r"has the columns picture, label; it needs img or image"):
        load(tmp_path)


def test_the_hubs_class_names_set_the_number_of_classes(digits: ImageData, tmp_path: Path) -> None:
    images, _ = rows(digits)
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", [*images[:3]], [0, 1, 2], column="image")
        table = pq.read_table(tmp_path / f"{split}.parquet")
        features = b'{"info": {"features": {"label": {"names": ["ant", "bee", "cow"], "_type": "ClassLabel"}}}}'
        pq.write_table(table.replace_schema_metadata({b"huggingface": features}), tmp_path / f"{split}.parquet")
    assert load(tmp_path).classes == ("ant", "bee", "cow")


@pytest.mark.parametrize("empty", ["train", "test"])
def test_a_split_without_images_is_refused(empty: str, digits: ImageData, tmp_path: Path) -> None:
    parquet_folder(tmp_path, digits)
    for path in tmp_path.glob(f"{empty}*.parquet"):
        write_parquet(path, [], [])
    with pytest.raises(DataError, match=r"no rows|not one"):
        load(tmp_path)


@pytest.mark.parametrize("labels", [[0, 1, 2, 2**70], 7])
def test_labels_of_a_damaged_batch_are_told(labels: object, digits: ImageData, tmp_path: Path) -> None:
    official_batches(tmp_path, digits)
    pixels = np.zeros((4, 3 * 32 * 32), dtype=np.uint8)
    write_batch(tmp_path / "cifar-10-batches-py" / "test_batch", pixels, labels)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="test_batch"):
        load(tmp_path)
