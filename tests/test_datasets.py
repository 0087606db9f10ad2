"""Tests of gpflow_gpnet.datasets."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike

from gpflow_gpnet import datasets
from gpflow_gpnet.datasets import Dataset
from gpflow_gpnet.experiments import airline, uci


@pytest.fixture(autouse=True)
def no_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPNET_DATA", raising=False)


def save(path: Path, **arrays: ArrayLike) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def make_dataset(rng: np.random.Generator, num_rows: int = 50, num_inputs: int = 3) -> Dataset:
    X = rng.normal(5.0, 2.0, size=(num_rows, num_inputs))
    return Dataset("made", X, 1e4 * X.sum(axis=1, keepdims=True) + 3.0)


class TestLoad:
    def test_snelson_is_in_the_package(self) -> None:
        data = datasets.load("snelson")
        assert data.name == "snelson"
        assert data.X.shape == (200, 1) and data.Y.shape == (200, 1)
        assert data.X.dtype == data.Y.dtype == np.float64
        assert 0.0 < data.X.min() and data.X.max() < 6.0

    @pytest.mark.parametrize("place", [".", "uci"])
    def test_reads_from_either_place_in_float64(self, tmp_path: Path, place: str) -> None:
        X = np.arange(6, dtype=np.float32).reshape(3, 2)
        save(tmp_path / place / "tiny.npz", X=X, Y=[[1], [2], [3]], names=["a", "b"])
        data = datasets.load("tiny", tmp_path)
        np.testing.assert_array_equal(data.X, X)
        np.testing.assert_array_equal(data.Y, [[1.0], [2.0], [3.0]])
        assert data.X.dtype == data.Y.dtype == np.float64

    def test_the_folder_itself_comes_before_uci(self, tmp_path: Path) -> None:
        save(tmp_path / "tiny.npz", X=[[1.0]], Y=[[1.0]])
        save(tmp_path / "uci" / "tiny.npz", X=[[2.0]], Y=[[2.0]])
        assert datasets.load("tiny", str(tmp_path)).X.item() == 1.0

    def test_environment_variable_gives_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(tmp_path / "tiny.npz", X=[[1.0]], Y=[[1.0]])
        monkeypatch.setenv("GPNET_DATA", str(tmp_path))
        assert datasets.load("tiny").X.shape == (1, 1)
        with pytest.raises(FileNotFoundError):
            datasets.load("tiny", tmp_path / "other")

    def test_missing_file_names_both_places_and_the_variable(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError) as error:
            datasets.load("absent", tmp_path)
        for part in (tmp_path / "absent.npz", tmp_path / "uci" / "absent.npz", "GPNET_DATA"):
            assert str(part) in str(error.value)

    def test_without_a_folder_nothing_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(tmp_path / "tiny.npz", X=[[1.0]], Y=[[1.0]])
        monkeypatch.chdir(tmp_path)
        for value in (None, ""):
            if value is not None:
                monkeypatch.setenv("GPNET_DATA", value)
            with pytest.raises(FileNotFoundError, match="GPNET_DATA is not set"):
                datasets.load("tiny")

    def test_missing_arrays_are_named(self, tmp_path: Path) -> None:
        save(tmp_path / "images.npz", x_train=np.zeros((2, 4, 4)))
        with pytest.raises(KeyError, match="no array X and Y; it holds x_train"):
            datasets.load("images", tmp_path)

    def test_bike_loses_the_columns_that_leak(self, tmp_path: Path) -> None:
        save(tmp_path / "bike.npz", X=np.arange(34.0).reshape(2, 17), Y=np.zeros((2, 1)))
        np.testing.assert_array_equal(
            datasets.load("bike", tmp_path, verify=False).X,
            [np.arange(15.0), 17.0 + np.arange(15.0)],
        )

    def test_bike_of_another_shape_is_refused(self, tmp_path: Path) -> None:
        save(tmp_path / "bike.npz", X=np.zeros((2, 15)), Y=np.zeros((2, 1)))
        with pytest.raises(ValueError, match=r"\(2, 15\)"):
            datasets.load("bike", tmp_path, verify=False)

    def test_a_known_name_must_be_the_known_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "boston.npz"
        save(path, X=[[1.0]], Y=[[1.0]])
        with pytest.raises(ValueError, match=r"boston\.npz is damaged.*d5557c9e91b1.*verify=False"):
            datasets.load("boston", tmp_path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setattr(datasets, "_checksums", lambda: {"boston": digest})
        assert datasets.load("boston", tmp_path).X.item() == 1.0

    def test_checksums_are_of_every_set_of_the_experiments(self) -> None:
        known = datasets._checksums()
        assert {*uci.DATASETS, *airline.DATASETS} <= set(known)
        assert all(len(digest) == 64 for digest in known.values())
        assert known["boston"].startswith("d5557c9e91b124c7")

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"no archive"])
    def test_a_file_that_is_no_archive_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tiny.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"'tiny' is not a whole \.npz file"):
            datasets.load("tiny", tmp_path)

    def test_a_single_array_is_no_archive(self, tmp_path: Path) -> None:
        np.save(tmp_path / "tiny.npy", np.zeros((2, 1)))
        (tmp_path / "tiny.npy").rename(tmp_path / "tiny.npz")
        with pytest.raises(ValueError, match=r"'tiny' is not a \.npz file"):
            datasets.load("tiny", tmp_path)


class TestDataset:
    @pytest.mark.parametrize(
        "x_shape, y_shape",
        [((3,), (3, 1)), ((3, 2), (3,)), ((3, 2), (3, 2)), ((3, 2), (4, 1)), ((0, 2), (0, 1))],
    )
    def test_wrong_shapes_are_named(
        self, x_shape: tuple[int, ...], y_shape: tuple[int, ...]
    ) -> None:
        with pytest.raises(ValueError) as error:
            Dataset("odd", np.zeros(x_shape), np.zeros(y_shape))
        assert str(x_shape) in str(error.value) and str(y_shape) in str(error.value)

    @pytest.mark.parametrize("key", ["X", "Y"])
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite_are_found(self, key: str, value: float) -> None:
        arrays = {"X": np.zeros((4, 2)), "Y": np.zeros((4, 1))}
        arrays[key][2, 0] = value
        with pytest.raises(ValueError, match=rf"1 rows of {key}, the first of them row 2"):
            Dataset("odd", **arrays)

    def test_is_frozen(self) -> None:
        data = datasets.load("snelson")
        with pytest.raises(dataclasses.FrozenInstanceError):
            data.name = "other"  # type: ignore[misc]


class TestSplit:
    def test_rows_follow_the_recipe(self, rng: np.random.Generator) -> None:
        data = make_dataset(rng)
        parts = datasets.split(data, 3)
        order = np.arange(50)
        np.random.RandomState(3).shuffle(order)
        Y = parts.y_std * np.concatenate([parts.Y_train, parts.Y_test]) + parts.y_mean
        np.testing.assert_allclose(Y, data.Y[order], rtol=1e-12)
        assert parts.X_train.shape == (45, 3) and parts.Y_train.shape == (45, 1)
        assert parts.X_test.shape == (5, 3) and parts.Y_test.shape == (5, 1)

    def test_moments_are_those_of_the_training_rows(self, rng: np.random.Generator) -> None:
        data = make_dataset(rng)
        parts = datasets.split(data, 0, train_fraction=0.5)
        for values in parts.train:
            np.testing.assert_allclose(values.mean(axis=0), 0.0, atol=1e-12)
            np.testing.assert_allclose(values.std(axis=0), 1.0)
        order = np.arange(50)
        np.random.RandomState(0).shuffle(order)
        train, test = data.X[order[:25]], data.X[order[25:]]
        np.testing.assert_allclose(parts.X_test, (test - train.mean(axis=0)) / train.std(axis=0))
        assert parts.test[0] is parts.X_test and parts.test[1] is parts.Y_test

    def test_constant_columns_become_zero(self, rng: np.random.Generator) -> None:
        # 0.1 and 1e6 + 0.1 are not what their mean over 45 rows is, to the last digit.
        X = np.stack([np.full(50, 0.1), np.full(50, 1e6 + 0.1), rng.normal(size=50)], axis=1)
        parts = datasets.split(Dataset("flat", X, np.full((50, 1), 0.7)), 0)
        for values in (parts.X_train[:, :2], parts.X_test[:, :2], parts.Y_train, parts.Y_test):
            np.testing.assert_allclose(values, 0.0, atol=1e-8)
        assert parts.y_std == 1.0 and parts.y_mean == pytest.approx(0.7)

    def test_scale_of_the_targets_is_undone(self, rng: np.random.Generator) -> None:
        small = make_dataset(rng)
        large = Dataset("large", small.X, 2e4 * small.Y + 5e5)
        parts, scaled = datasets.split(small, 1), datasets.split(large, 1)
        np.testing.assert_allclose(scaled.Y_test, parts.Y_test, rtol=1e-9, atol=1e-9)
        assert scaled.y_std / parts.y_std == pytest.approx(2e4)

    def test_test_rows_can_be_counted(self, rng: np.random.Generator) -> None:
        data = make_dataset(rng)
        parts, fifth = datasets.split(data, 2, num_test=10), datasets.split(data, 2, 0.8)
        np.testing.assert_array_equal(parts.X_test, fifth.X_test)
        assert parts.X_train.shape == (40, 3)
        for num_test in (0, 50):
            with pytest.raises(ValueError, match=f"num_test = {num_test} leaves"):
                datasets.split(data, 0, num_test=num_test)

    @pytest.mark.parametrize("train_fraction", [-0.5, 0.0, 0.01, 1.0, 1.5])
    def test_neither_part_may_be_empty(
        self, rng: np.random.Generator, train_fraction: float
    ) -> None:
        with pytest.raises(ValueError, match="of the 50 rows of 'made'"):
            datasets.split(make_dataset(rng), 0, train_fraction)
