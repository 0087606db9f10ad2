"""Files of named arrays and a header of plain values: they appear whole, and reading runs no code.

A file is a .npz whose first member, ``header``, is JSON. NumPy alone can read it.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ._version import __version__

__all__ = ["read_arrays", "whole_file", "write_arrays"]

_KIND = "gpflow_gpnet arrays"
_FORMAT = 1

_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    OSError,
)
"""What reading a file raises that is not an archive of arrays, or one whose bytes have changed."""


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write that takes its name once it is whole and on the disk, or not at all.

    What was there before stays until then. One writer at a time.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder for it", str(path))
    # Always the same name, so that what a killed process leaves is overwritten by the next one.
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name must be on the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_arrays(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write arrays of numbers and a header of what JSON has.

    :raises ValueError: naming an array that is none of numbers.
    :raises OSError: if the disk is full, say; what was at the path stays.
    """
    for name, array in arrays.items():
        if np.asanyarray(array).dtype.hasobject:
            raise ValueError(f"{name} must be a number or an array of numbers, got objects.")
    full = {"kind": _KIND, "format": _FORMAT, "gpflow_gpnet": __version__, **header}
    members = {"header": np.frombuffer(json.dumps(full).encode(), np.uint8), **arrays}
    # As np.savez does, which leaves its archive open where the disk is full.
    with whole_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file, each checked against its CRC-32.

    :raises ValueError: if the file is damaged, cut short, of another kind or of a later format.
    """
    # A file of our own, since np.load does not close that of a damaged archive.
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as members:
                header = json.loads(bytes(members["header"]))
                arrays = {name: members[name] for name in members.files if name != "header"}
        except _DAMAGE as error:
            raise ValueError(f"it is damaged or no file of arrays ({error})") from error
    ours = isinstance(header, dict) and header.get("kind") == _KIND
    if not ours or not isinstance(header.get("format"), int):
        raise ValueError("it was not written by gpflow_gpnet")
    if header["format"] > _FORMAT:
        raise ValueError(
            f"gpflow_gpnet {header.get('gpflow_gpnet')} wrote it in format {header['format']}, but "
            f"{__version__} knows formats up to {_FORMAT}"
        )
    return header, arrays
