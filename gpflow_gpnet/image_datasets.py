"""Image classification data sets: load one by name.

``<name>.npz`` holds either ``x_train`` uint8 [N, H, W] or [N, H, W, C], ``y_train`` [N], ``x_test``
and ``y_test``, as Keras's ``mnist.npz`` does; or, as ``<name>_jpeg.npz``, JPEG files end to end:
``train_bytes`` uint8, ``train_offsets`` [N + 1], and the same for ``test``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import tensorflow as tf
from gpflow.base import AnyNDArray

from .datasets import FOLDER_VARIABLE

__all__ = ["ImageDataset", "load_images"]


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images and their labels, in the order of the file.

    :raises ValueError: if images and labels differ in number, images in shape, or are not uint8.
    """

    name: str
    X_train: AnyNDArray
    """Brightness 0 to 255, uint8 [N, H, W, C]."""
    Y_train: AnyNDArray
    """Labels from 0, int [N, 1]."""
    X_test: AnyNDArray
    Y_test: AnyNDArray

    def __post_init__(self) -> None:
        for X, Y in ((self.X_train, self.Y_train), (self.X_test, self.Y_test)):
            if X.dtype != np.uint8:
                raise ValueError(f"Data set '{self.name}' needs images of uint8, got {X.dtype}.")
            if X.ndim != 4 or X.shape[1:] != self.image_shape or Y.shape != (len(X), 1):
                raise ValueError(
                    f"Data set '{self.name}' needs images [N, H, W, C] of one shape and labels "
                    f"[N, 1], but they are {X.shape} and {Y.shape}."
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C)."""
        height, width, colours = self.X_train.shape[1:]
        return height, width, colours

    @property
    def num_classes(self) -> int:
        """One more than the largest label of the training images."""
        return int(self.Y_train.max()) + 1


def load_images(name: str, folder: str | os.PathLike[str] | None = None) -> ImageDataset:
    """Load an image data set by its name, such as ``"mnist"`` or ``"cifar10"``.

    :param folder: where the files are; by default the environment variable ``GPNET_DATA`` says it.
    :raises FileNotFoundError: if there is no such file, or no folder is known.
    :raises KeyError: if a file lacks an array.
    :raises ValueError: if a file is damaged, or does not hold images and labels.
    """
    where = folder if folder is not None else os.environ.get(FOLDER_VARIABLE)
    paths = [Path(where or "<folder>") / f"{name}{end}.npz" for end in ("", "_jpeg")]
    for path in paths:
        if path.is_file():
            try:
                with path.open("rb") as file, np.load(file) as arrays:
                    return _read(name, arrays)
            except (BadZipFile, EOFError, tf.errors.InvalidArgumentError) as error:
                raise ValueError(f"{path} is not a whole file of images: {error}.") from error
    reason = "" if where else f" No folder was given and {FOLDER_VARIABLE} is not set."
    raise FileNotFoundError(
        f"There are no images '{name}': neither {paths[0]} nor {paths[1]} is a file.{reason} Pass "
        f"folder=... or set the environment variable {FOLDER_VARIABLE} to the folder that holds "
        "them."
    )


def _read(name: str, arrays: Any) -> ImageDataset:
    parts = []
    for part in ("train", "test"):
        needed = [f"y_{part}"]
        packed = f"{part}_bytes" in arrays.files
        needed += [f"{part}_bytes", f"{part}_offsets"] if packed else [f"x_{part}"]
        missing = sorted(set(needed) - set(arrays.files))
        if missing:
            raise KeyError(
                f"Images '{name}' have no array {' and '.join(missing)}; the file holds "
                f"{', '.join(arrays.files) or 'nothing'}."
            )
        if packed:
            images = _decode(arrays[f"{part}_bytes"], arrays[f"{part}_offsets"])
        else:
            images = arrays[f"x_{part}"]
            images = images[..., None] if images.ndim == 3 else images
        parts += [images, arrays[f"y_{part}"].reshape(-1, 1).astype(int)]
    return ImageDataset(name, *parts)


def _decode(data: AnyNDArray, offsets: AnyNDArray) -> AnyNDArray:
    """Images [N, H, W, C] of JPEG files laid end to end."""
    files = [data[start:end].tobytes() for start, end in pairwise(offsets)]
    images = tf.data.Dataset.from_tensor_slices(files).map(
        tf.io.decode_jpeg, num_parallel_calls=tf.data.AUTOTUNE
    )
    return np.concatenate(list(images.batch(1000).as_numpy_iterator()))
