"""Image data sets in both of their files, and what is said of files that do not fit."""

import numpy as np
import pytest
import tensorflow as tf

from gpflow_gpnet.image_datasets import load_images


def arrays(*shape):
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, shape, np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(shape[0]) % 3 for part in ("train", "test")}
    return images | labels


def test_grey_images(tmp_path):
    values = arrays(5, 6, 7)
    np.savez(tmp_path / "grey.npz", **values)
    images = load_images("grey", tmp_path)
    assert images.image_shape == (6, 7, 1) and images.num_classes == 3
    np.testing.assert_array_equal(images.X_test[..., 0], values["x_test"])
    np.testing.assert_array_equal(images.Y_train[:, 0], [0, 1, 2, 0, 1])


def test_jpeg_files_end_to_end(tmp_path, monkeypatch):
    """Images of one colour, which the compression keeps."""
    colours = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250]], np.uint8)
    images = np.ones((3, 8, 8, 1), np.uint8) * colours[:, None, None, :]
    files = [tf.io.encode_jpeg(image, quality=100).numpy() for image in images]
    packed = {"y_train": np.arange(3), "y_test": np.arange(3)}
    for part in ("train", "test"):
        packed[f"{part}_bytes"] = np.frombuffer(b"".join(files), np.uint8)
        packed[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
    np.savez(tmp_path / "colour_jpeg.npz", **packed)
    monkeypatch.setenv("GPNET_DATA", str(tmp_path))
    loaded = load_images("colour")
    assert loaded.X_train.dtype == np.uint8
    np.testing.assert_allclose(loaded.X_train.astype(int), images, atol=3)


def test_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("GPNET_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"no images 'grey'.* GPNET_DATA is not set"):
        load_images("grey")
    values = arrays(5, 6, 7)
    np.savez(tmp_path / "grey.npz", **{k: v for k, v in values.items() if k != "y_test"})
    with pytest.raises(KeyError, match="no array y_test; the file holds x_train"):
        load_images("grey", tmp_path)
    np.savez(tmp_path / "grey.npz", **values | {"y_test": np.arange(4)})
    with pytest.raises(ValueError, match=r"but they are \(5, 6, 7, 1\) and \(4, 1\)"):
        load_images("grey", tmp_path)
    np.savez(tmp_path / "grey.npz", **values | {"x_test": values["x_test"] / 255.0})
    with pytest.raises(ValueError, match="'grey' needs images of uint8, got float64"):
        load_images("grey", tmp_path)
    path = tmp_path / "grey.npz"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"grey\.npz is not a whole file of images"):
        load_images("grey", tmp_path)
