"""Batches of arrays and streams."""

import numpy as np
import pytest
import tensorflow as tf

from gpflow_gpnet.batches import ArrayBatches, StreamBatches


def rows(num):
    X = np.arange(num, dtype=float)[:, None]
    return X, 10.0 * X


def test_each_epoch_holds_each_row_once_in_a_new_order():
    batches = ArrayBatches(rows(10), batch_size=4, seed=0)
    assert batches.batches_per_epoch == 3
    orders = []
    for epoch in range(2):
        epoch_batches = [batches(3 * epoch + step) for step in range(3)]
        assert [len(X) for X, _ in epoch_batches] == [4, 4, 2]
        for X, Y in epoch_batches:
            np.testing.assert_array_equal(Y, 10.0 * X)
        orders.append(np.concatenate([X for X, _ in epoch_batches]).ravel().tolist())
        assert sorted(orders[-1]) == list(range(10))
        assert orders[-1] != sorted(orders[-1])
    assert orders[0] != orders[1]


def test_order_depends_on_seed_and_step_alone():
    one, other, third = (ArrayBatches(rows(10), 4, seed) for seed in (5, 5, 6))
    forwards = [one(step)[0].numpy() for step in range(7)]
    for step in reversed(range(7)):
        np.testing.assert_array_equal(other(step)[0], forwards[step])
    assert any((third(step)[0].numpy() != forwards[step]).any() for step in (0, 1))


@pytest.mark.parametrize("batch_size", [10, 11])
def test_a_batch_of_all_data_keeps_their_order(batch_size):
    batches = ArrayBatches(rows(10), batch_size, seed=0)
    assert batches.batches_per_epoch == 1
    for step in (0, 1):
        np.testing.assert_array_equal(batches(step)[0], rows(10)[0])


def test_in_order_gives_each_row_once():
    pieces = list(ArrayBatches(rows(10), 4, seed=0).in_order())
    assert [len(X) for X, _ in pieces] == [4, 4, 2]
    for position, whole in enumerate(rows(10)):
        np.testing.assert_array_equal(np.concatenate([p[position] for p in pieces]), whole)


def test_batch_size_must_be_positive():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        ArrayBatches(rows(10), 0, seed=0)


def test_streams_begin_again_where_they_end():
    stream = StreamBatches([1, 2, 3])
    assert [stream(step) for step in range(7)] == [1, 2, 3, 1, 2, 3, 1]
    dataset = StreamBatches(tf.data.Dataset.from_tensor_slices(rows(3)).batch(2))
    assert [len(dataset(step)[0]) for step in range(5)] == [2, 1, 2, 1, 2]


def test_an_iterator_that_ends_says_so():
    stream = StreamBatches(iter([1, 2]))
    assert [stream(0), stream(1)] == [1, 2]
    with pytest.raises(ValueError, match="data ended after 2 batches"):
        stream(2)
