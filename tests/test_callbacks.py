"""Callbacks with a view of model and history."""

import numpy as np
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from line_model import Line

import gpflow_gpnet as gpn
from gpflow_gpnet.callbacks import Callback, EarlyStopping, TensorBoard, TimeLimit

X = np.linspace(-1, 1, 8)[:, None]


def fit(callbacks, num_steps=40, **kwargs):
    """Training pulls the slope from 0 to 9 by 0.1 a step; 1 is best on the validation data."""
    model = Line(8)
    settings = {"validation_data": (X, X), "validate_every": 1, **kwargs}
    history = gpn.fit(
        model,
        (X, 9 * X),
        optimizer=tf_keras.optimizers.Adam(0.1),
        num_steps=num_steps,
        batch_size=8,
        progress=False,
        callbacks=callbacks,
        **settings,
    )
    return model, history


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_goes_back_to_the_best_step(patience):
    stopping = EarlyStopping(patience)
    model, history = fit([stopping])
    best = int(np.argmin(history["validation_nlpd"])) + 1
    assert stopping.best_step == best and 9 <= best <= 12
    assert history["step"][-1] == best + patience
    np.testing.assert_allclose(model.slope, 1.0, atol=0.06)


def test_early_stopping_may_keep_the_last_step():
    model, history = fit([EarlyStopping(4, restore_best=False)])
    assert history["step"][-1] < 40
    assert model.slope.numpy() > 1.3


def test_without_patience_only_the_best_step_is_restored():
    stopping = EarlyStopping(None)
    model, history = fit([stopping], num_steps=20)
    assert history["step"][-1] == 20
    np.testing.assert_allclose(model.slope, 1.0, atol=0.06)


def test_small_improvements_do_not_count():
    stopping = EarlyStopping(2, min_delta=100.0)
    _, history = fit([stopping])
    assert stopping.best_step == 1 and history["step"][-1] == 3


def test_patience_counts_validations_not_steps():
    _, history = fit([EarlyStopping(2)], validate_every=3, log_every=1)
    scores = history["validation_nlpd"]
    best = history["step"][np.nanargmin(scores)]
    assert history["step"][-1] == best + 6


def test_a_second_run_starts_afresh():
    stopping = EarlyStopping(2)
    fit([stopping])
    first = stopping.best_step
    fit([stopping])
    assert stopping.best_step == first


def test_early_stopping_needs_validation():
    steps = []
    with pytest.raises(ValueError, match="give fit validation_data"):
        fit([EarlyStopping(), steps.append], num_steps=2, validation_data=None)
    assert not steps


def test_what_ends_before_the_first_validation_keeps_its_parameters():
    stopping = EarlyStopping()
    model, history = fit([stopping, lambda step: step == 3], validate_every=10)
    assert stopping.best_step is None and history["step"][-1] == 3
    assert model.slope.numpy() > 0.2


def test_patience_must_be_positive():
    with pytest.raises(ValueError, match="patience must be at least 1 or None, got 0"):
        EarlyStopping(0)


def test_callbacks_see_the_start_each_step_and_the_end():
    events = []

    class Recorder(Callback):
        def on_start(self, model, history):
            super().on_start(model, history)
            events.append(("start", model.slope.numpy(), history.num_rows))

        def __call__(self, step):
            events.append((step, self.model.slope.numpy() > 0.0, self.history.num_rows))

        def on_end(self):
            events.append("end")

    fit([Recorder()], num_steps=2)
    assert events == [("start", 0.0, 0), (1, True, 1), (2, True, 2), "end"]


def test_time_limit_stops_at_the_first_step_after_it(monkeypatch):
    """On a clock that moves a second a step; what was done is in the history."""
    now = [100.0]
    monkeypatch.setattr("gpflow_gpnet.callbacks.time.perf_counter", lambda: now[0])
    limit = TimeLimit(2.5)

    def tick(step):
        now[0] += 1.0

    _, history = fit([tick, limit], log_every=10, validation_data=None)
    assert history["step"].tolist() == [3.0] and np.isfinite(history["loss"]).all()
    _, history = fit([tick, limit], num_steps=2)
    assert history["step"][-1] == 2
    _, history = fit([TimeLimit(0.0)])
    assert history["step"][-1] == 1
    for seconds in (-1.0, np.nan):
        with pytest.raises(ValueError, match="seconds must not be negative"):
            TimeLimit(seconds)


def test_tensorboard_has_the_history(tmp_path):
    """Also what is recorded after the callbacks, when one of them stops training."""
    folder = tmp_path / "log"
    _, history = fit(
        [TensorBoard(folder), lambda step: step == 7], log_every=2, validation_data=None
    )
    assert history["step"].tolist() == [2.0, 4.0, 6.0, 7.0]
    found = {}
    (path,) = folder.iterdir()
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name == "scalars"
            found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    assert len(found) == 8
    for row in history.rows:
        assert found["fit/loss", row["step"]] == np.float32(row["loss"])


def test_tensorboard_needs_a_folder(tmp_path):
    path = tmp_path / "board"
    path.write_text("not a folder")
    with pytest.raises(NotADirectoryError, match=f"log_dir .* {path} is a file"):
        fit([TensorBoard(path)])
