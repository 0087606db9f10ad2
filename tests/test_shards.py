"""Files of rows: the same data in every format, in an order of seed and step, and clear errors."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_gpnet as gpn
from gpflow_gpnet import shards as shards_module
from gpflow_gpnet.datasets import stream
from gpflow_gpnet.shards import ShardBatches

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

X = np.random.default_rng(0).normal(size=(53, 2)) * [1.0, 1e-3] + [5.0, 1e4]
Y = X[:, :1] + np.arange(53.0)[:, None]
SIZES = (20, 1, 0, 32)
FORMATS = ("npz", "compressed", "csv", "parquet")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(shards_module, "_CHUNK", 7)
    monkeypatch.setattr(shards_module, "_SAMPLE", 12)


def write(folder, kind):
    """X and Y in files of different sizes."""
    start = 0
    for index, size in enumerate(SIZES):
        x, y = X[start : start + size], Y[start : start + size]
        start += size
        if kind in ("npz", "compressed"):
            save = np.savez if kind == "npz" else np.savez_compressed
            save(folder / f"part-{index}.npz", X=x, Y=y)
            continue
        table = pa.table({"a": x[:, 0], "b": x[:, 1], "other": ["text"] * size, "y": y[:, 0]})
        if kind == "csv":
            pa.csv.write_csv(table, folder / f"part-{index}.csv")
        else:
            pa.parquet.write_table(table, folder / f"part-{index}.parquet", row_group_size=9)


def open_stream(folder, kind, **kwargs):
    write(folder, kind)
    suffix = "npz" if kind == "compressed" else kind
    names = {} if suffix == "npz" else {"inputs": ["a", "b"], "targets": "y"}
    return stream(folder / f"part-*.{suffix}", **names, **kwargs)


def rows(batches):
    return np.concatenate([np.hstack(batch) for batch in batches])


def in_any_order(values):
    return values[np.lexsort(values.T)]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_rows_moments_and_sample(tmp_path, kind):
    data = open_stream(tmp_path, kind)
    whole = np.hstack([X, Y])
    assert data.num_data == 53 and data.counts == list(SIZES)
    scaling, expected = data.scaling(), gpn.Scaling.from_data((X, Y))
    for name in ("input_center", "input_scale", "target_center", "target_scale"):
        np.testing.assert_allclose(getattr(scaling, name), getattr(expected, name), rtol=1e-9)
    assert not data.scaling(targets=False).scales_targets
    np.testing.assert_array_equal(np.hstack(data.sample), whole[data.sample_numbers])
    assert len(set(data.sample_numbers)) == 12
    np.testing.assert_array_equal(rows(ShardBatches(data, 8, 0).in_order()), whole)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("held", [0, 5])
def test_each_epoch_has_each_row_once_in_a_new_order_and_any_step_can_be_asked(
    tmp_path, kind, held
):
    data = open_stream(tmp_path, kind, buffer_rows=18)
    without = np.sort(data.sample_numbers[:held])
    rest = np.delete(np.hstack([X, Y]), without, axis=0)
    batches = ShardBatches(data, 8, 3, without)
    assert batches.num_rows == 53 - held and batches.batches_per_epoch == -(-(53 - held) // 8)
    steps = [batches(step) for step in range(2 * batches.batches_per_epoch)]
    epochs = [rows(steps[: len(steps) // 2]), rows(steps[len(steps) // 2 :])]
    for epoch in epochs:
        np.testing.assert_array_equal(in_any_order(epoch), in_any_order(rest))
    assert not np.array_equal(*epochs) and not np.array_equal(epochs[0], rest)
    assert [len(batch[0]) for batch in steps[: len(steps) // 2]][:-1] == [8] * (len(steps) // 2 - 1)
    for step in (9, 2, 0, 4, 3, 11):  # as a resumed run asks, each time a new one
        again = ShardBatches(data, 8, 3, without)
        np.testing.assert_array_equal(rows([again(step)]), rows([steps[step]]))
        np.testing.assert_array_equal(rows([batches(step)]), rows([steps[step]]))
    other = ShardBatches(data, 8, 4, without)
    assert not np.array_equal(rows([other(0)]), rows(steps[:1]))


def test_a_resumed_run_reads_on_where_it_stopped(tmp_path, monkeypatch):
    """Of later blocks nothing of the files before is read."""
    data = open_stream(tmp_path, "npz", buffer_rows=16)
    read = []
    original = data.read
    monkeypatch.setattr(
        data, "read", lambda path, start=0: (read.append((path, start)), original(path, start))[1]
    )
    batches = ShardBatches(data, 8, 0)
    order = np.random.default_rng([0, 0]).permutation(4)
    ends = np.cumsum(np.array(SIZES)[order])
    batches(6)  # rows 48 to 52 of the order
    file = int(np.searchsorted(ends, 48, side="right"))
    start = 48 - int(ends[file] - SIZES[order[file]])
    assert read[0] == (data.paths[order[file]], start)


def test_batches_for_loops_of_ones_own(tmp_path):
    data = open_stream(tmp_path, "npz", buffer_rows=16)
    batches = ShardBatches(data, 8, 5)
    dataset = data.dataset(8, seed=5, first=6)
    assert isinstance(dataset, tf.data.Dataset)
    for step, batch in zip(range(6, 9), dataset, strict=False):
        np.testing.assert_array_equal(rows([batch]), rows([batches(step)]))


def make_model(data, **kwargs):
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 2, 4)
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    return gpn.GPNet(
        kernel, likelihood, network, num_data=data.num_data, scaling=data.scaling(), **kwargs
    )


def test_fit_takes_files_holds_rows_out_polishes_and_resumes(tmp_path):
    data = open_stream(tmp_path, "npz", buffer_rows=16)

    def train(num_steps, folder):
        model = make_model(data)
        optimizer = gpn.FunctionalMirrorDescent(noise="held-out", prior_correction=False)
        settings = {"batch_size": 8, "seed": 1, "progress": False, "checkpoint_every": 2}
        history = gpn.fit(
            model,
            data,
            optimizer=optimizer,
            num_steps=num_steps,
            checkpoint_dir=tmp_path / folder,
            **settings,
        )
        assert np.isfinite(history["validation_nlpd"][-1])
        return model, optimizer

    whole, optimizer = train(9, "whole")
    train(3, "parts")
    resumed, _ = train(9, "parts")
    for moment, expected in zip(resumed.predict_f(X), whole.predict_f(X), strict=True):
        np.testing.assert_array_equal(moment, expected)
    # Polishing has seen every row, and once more changes nothing.
    optimizer.polish([(tf.constant(X), tf.constant(Y))])
    for moment, expected in zip(resumed.predict_f(X), whole.predict_f(X), strict=True):
        np.testing.assert_allclose(moment, expected, rtol=1e-6)


def test_number_of_data_is_that_of_the_files(tmp_path):
    data = open_stream(tmp_path, "npz")
    model = make_model(data)
    model.num_data = 54
    with pytest.raises(ValueError, match="num_data is 54, but the data have 53 rows"):
        gpn.fit(model, data, num_steps=1, batch_size=8)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "a,y\n1,2\n3\n", r"a\.csv cannot be read: .*Expected 2 columns, got 1"),
        ("a.csv", "a,y\n1,2\n3,x\n", r"a\.csv cannot be read: .*invalid value 'x'"),
        ("a.csv", "a,z\n1,2\n", r"a\.csv has no 'y'; it has 'a', 'z'"),
        ("a.csv", "", r"a\.csv cannot be read"),
        ("a.csv", "a,y\n1,2\n,2\n", r"a\.csv has NaN or infinite inputs, row 1"),
        ("a.csv", "a,y\n1,inf\n", r"a\.csv has infinite targets, row 0"),
        ("a.csv", "a,y\n1,\n", r"Column 0 of the targets has no value"),
        ("a.csv", "a,y\n", r"a\.csv and 0 more have no rows"),
        ("a.npz", "no archive", r"a\.npz is damaged"),
        ("a.parquet", "no table", r"a\.parquet cannot be read"),
        ("a.txt", "", r"files must all be .* got \.txt"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        stream(tmp_path / name, targets=None if name.endswith("npz") else "y").scaling()


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"X": X}, r"b\.npz has no 'Y'; it has 'X'"),
        ({"X": X, "Y": Y[:-1]}, r"b\.npz has X of shape .* as many rows|different numbers of rows"),
        ({"X": X[:, :1], "Y": Y}, r"b\.npz has 1 inputs and 1 targets, but .*a\.npz has 2 and 1"),
        ({"X": X, "Y": Y[:, 0]}, r"b\.npz: Y must be a matrix .* got shape \(53,\)"),
        ({"X": np.asfortranarray(X), "Y": Y}, r"b\.npz: X must be .* in Fortran order"),
        ({"X": X.astype(str), "Y": Y}, r"b\.npz: X must be a matrix of numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", X=X, Y=Y)
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        stream(tmp_path / "*.npz")


def test_columns_must_be_numbers_and_named_once(tmp_path):
    write(tmp_path, "parquet")
    files = tmp_path / "*.parquet"
    with pytest.raises(ValueError, match="column 'other' must be of numbers, got string"):
        stream(files, targets="y")
    with pytest.raises(ValueError, match="name a column twice"):
        stream(files, inputs=["a", "y"], targets="y")
    with pytest.raises(ValueError, match="targets must name the columns of Y"):
        stream(files)
    with pytest.raises(ValueError, match="buffer_rows must be at least 1, got 0"):
        stream(files, targets="y", buffer_rows=0)
    with pytest.raises(ValueError, match=r"inputs must be one column or more of .*'y'"):
        stream(files, inputs=[], targets="y")
    with pytest.raises(ValueError, match="targets must be one column or more"):
        stream(files, inputs="a", targets=[])
    with pytest.raises(FileNotFoundError, match="There is no file"):
        stream(tmp_path / "none-*.csv", targets="y")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*none\.csv"):
        stream([tmp_path / "none.csv"], targets="y")


def test_a_files_name_may_look_like_a_pattern(tmp_path):
    np.savez(tmp_path / "run[1].npz", X=X, Y=Y)
    assert stream(tmp_path / "run[1].npz").num_data == len(X)


@pytest.mark.parametrize("target, message", [(np.nan, "NaN"), (7.0, "Bernoulli needs targets 0")])
def test_polishing_refuses_targets_that_neither_sample_nor_steps_have_seen(
    tmp_path, target, message
):
    inputs = np.linspace(-1.0, 1.0, 3000)[:, None]
    targets = (inputs > 0.0).astype(float)
    np.savez(tmp_path / "a.npz", X=inputs, Y=targets)
    unseen = np.setdiff1d(np.arange(3000), stream(tmp_path / "a.npz").sample_numbers)
    targets[unseen[unseen >= 2990][0]] = target
    np.savez(tmp_path / "a.npz", X=inputs, Y=targets)
    data = stream(tmp_path / "a.npz", buffer_rows=100)
    kernel = gpflow.kernels.SquaredExponential()
    model = gpn.GPNet(
        kernel, gpflow.likelihoods.Bernoulli(), gpn.RFE(kernel, 1, 3), num_data=data.num_data
    )
    with pytest.raises(ValueError, match=message):
        gpn.fit(model, data, num_steps=1, batch_size=50, seed=0, progress=False)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_damage_inside_a_file_names_it(tmp_path, kind):
    """Every fifth byte changed: what is noticed is a ValueError that names the file."""
    path = tmp_path / f"a.{kind}"
    values = np.arange(40.0)[:, None]
    if kind == "npz":
        np.savez_compressed(path, X=values, Y=values)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        pyarrow = pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.table({"X": values[:, 0], "Y": values[:, 0]}), path)
    whole, noticed = path.read_bytes(), 0
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            stream(path, targets="Y")
        except ValueError as error:
            assert path.name in str(error)
            noticed += 1
    assert noticed > len(whole) // 40


def test_bytes_beyond_what_an_array_says_are_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=np.zeros([1000, 2]), Y=np.zeros([1000, 1]))  # more than zipfile reads ahead
    path.write_bytes(path.read_bytes().replace(b"(1000, 2)", b"(1000, 0)"))
    with pytest.raises(ValueError, match=r"a\.npz is damaged"):
        stream(path)


def test_files_that_shrink_while_they_are_read_are_named(tmp_path):
    data = open_stream(tmp_path, "npz", buffer_rows=8)
    batches = ShardBatches(data, 8, 0)
    for path in data.paths:
        np.savez(path, X=X[:1], Y=Y[:1])
    with pytest.raises(ValueError, match=r"part-\d\.npz has \d+ rows now, but had \d+"):
        batches(1)


def test_files_that_change_while_they_are_read_are_named(tmp_path):
    data = open_stream(tmp_path, "npz")
    np.savez(tmp_path / "part-0.npz", X=X, Y=Y)
    with pytest.raises(ValueError, match=r"part-0\.npz has 53 rows now, but had 20"):
        rows(ShardBatches(data, 8, 0).in_order())


def test_memory_is_that_of_the_buffer_not_of_the_files(tmp_path, monkeypatch):
    """Counted in the rows of all arrays that are alive at a time."""
    import tracemalloc

    monkeypatch.setattr(shards_module, "_CHUNK", 500)
    for index in range(8):
        values = np.random.default_rng(index).normal(size=(10_000, 10))
        np.savez(tmp_path / f"{index}.npz", X=values, Y=values[:, :1])
    tracemalloc.start()
    data = stream(tmp_path / "*.npz", buffer_rows=1000)
    batches = ShardBatches(data, 100, 0)
    for step in range(batches.batches_per_epoch):
        batches(step)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.num_data == 80_000
    assert peak < 1.5e6  # 7.0e6 bytes are in the files
