"""The table that training leaves behind."""

import numpy as np
import pytest

import gpflow_gpnet as gpn


@pytest.fixture
def history():
    history = gpn.History()
    history.append(step=10, loss=np.float32(2.5))
    history.append(step=20, loss=1.5, score=0.25)
    return history


def test_columns_are_arrays_with_nan_where_nothing_was_recorded(history):
    assert list(history) == ["step", "loss", "score"] and len(history) == 3
    assert history.num_rows == 2
    np.testing.assert_array_equal(history["loss"], [2.5, 1.5])
    np.testing.assert_array_equal(history["score"], [np.nan, 0.25])


def test_unknown_columns_are_named_with_the_known(history):
    assert "speed" not in history and "loss" in history
    with pytest.raises(KeyError, match=r"'speed' was not recorded.*'loss', 'score', 'step'"):
        history["speed"]


def test_last_is_the_value_at_this_very_step(history):
    assert history.last("score", 20) == 0.25
    assert history.last("score", 10) is None
    assert history.last("speed", 20) is None
    assert gpn.History().last("score", 0) is None


def test_becomes_a_table_indexed_by_step(history):
    table = history.to_pandas()
    assert table.index.name == "step" and table.index.tolist() == [10.0, 20.0]
    assert table.columns.tolist() == ["loss", "score"]
    assert table.loc[20, "score"] == 0.25 and np.isnan(table.loc[10, "score"])


def test_tells_the_last_row(history):
    assert repr(history) == "History(2 rows; last: step=20, loss=1.5, score=0.25)"
    assert repr(gpn.History()) == "History(empty)"
