"""Files of arrays: whole or not there, read without running anything."""

import os
import pickle
import resource

import numpy as np
import pytest

from gpflow_gpnet import array_files
from gpflow_gpnet.array_files import read_arrays, whole_file, write_arrays


def test_arrays_and_header_come_back_to_the_bit(rng, tmp_path):
    arrays = {
        "a/b": rng.normal(size=(3, 2)),
        "n": np.array(np.nan),
        "i": np.arange(4, dtype=np.int32),
        "empty": np.zeros([0, 3], np.float32),
    }
    header = {"rows": [{"loss": 0.1 + 0.2, "step": 1.0}], "nan": float("nan")}
    write_arrays(tmp_path / "file", header, arrays)
    read, again = read_arrays(tmp_path / "file")
    assert read["rows"] == header["rows"] and np.isnan(read["nan"])
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype and again[name].shape == array.shape
        assert again[name].tobytes() == array.tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_truncation_and_flipped_bit_of_a_file_is_noticed(rng, tmp_path):
    path = tmp_path / "file"
    write_arrays(path, {}, {"values": rng.normal(size=20)})
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="damaged"):
            read_arrays(path)
    at = whole.index(b"NUMPY", whole.index(b"values.npy")) + 130
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(ValueError, match=r"damaged.*CRC"):
        read_arrays(path)
    # In the archive's directory zipfile has other errors: one flag says that members are encrypted,
    # and an offset can lie before the file.
    directory, end = whole.index(b"PK\x01\x02"), whole.index(b"PK\x05\x06")
    for at, bit in ((directory + 8, 1), (end + 16, 128), (end + 17, 128)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            read_arrays(path)


def test_what_is_no_number_is_named_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"callbacks/0 Mine/seen must be .* got objects"):
        write_arrays(tmp_path / "file", {}, {"callbacks/0 Mine/seen": np.asarray({1: 2})})
    assert not list(tmp_path.iterdir())


def test_files_of_others_and_of_the_future_are_refused(rng, tmp_path, monkeypatch):
    np.savez(tmp_path / "other.npz", X=np.zeros(3))
    with pytest.raises(ValueError, match="no file of arrays"):
        read_arrays(tmp_path / "other.npz")
    np.savez(tmp_path / "json.npz", header=np.frombuffer(b'{"kind": "x"}', np.uint8))
    with pytest.raises(ValueError, match="not written by gpflow_gpnet"):
        read_arrays(tmp_path / "json.npz")
    header = b'{"kind": "gpflow_gpnet arrays", "format": "9"}'
    np.savez(tmp_path / "text.npz", header=np.frombuffer(header, np.uint8))
    with pytest.raises(ValueError, match="not written by gpflow_gpnet"):
        read_arrays(tmp_path / "text.npz")
    with monkeypatch.context() as patch:
        patch.setattr(array_files, "_FORMAT", 9)
        write_arrays(tmp_path / "future", {}, {})
    with pytest.raises(ValueError, match=r"in format 9, but .* knows formats up to 1"):
        read_arrays(tmp_path / "future")


def test_reading_runs_no_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.savez(tmp_path / "trap.npz", header=np.array([Trap()], object), values=np.zeros(1))
    (tmp_path / "pickle").write_bytes(pickle.dumps(Trap()))
    np.save(tmp_path / "trap.npy", np.array([Trap()], object), allow_pickle=True)
    for name in ("trap.npz", "pickle", "trap.npy"):
        with pytest.raises(ValueError, match="damaged or no file of arrays"):
            read_arrays(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_what_was_there_stays_until_the_new_file_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"half")
        assert path.read_bytes() == b"old"
        raise KeyError
    assert path.read_bytes() == b"old"
    (tmp_path / ".file.partial").write_bytes(b"left by a killed process, and longer")
    with whole_file(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_what_was_there(rng, tmp_path):
    """A limit on the size of files, which the operating system enforces as it does a full disk."""
    path = tmp_path / "file"
    write_arrays(path, {}, {"values": np.zeros(3)})
    whole, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_arrays(path, {}, {"values": rng.normal(size=10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_a_missing_folder_is_named_by_the_path_asked_for(tmp_path):
    path = tmp_path / "missing" / "model.gpn"
    with pytest.raises(FileNotFoundError, match=f"no such folder for it: '{path}'"):
        with whole_file(path):
            pass
