"""The training loop: what it takes, what it records, how it stops, resumes and refuses."""

import gc
import sys
import weakref

import gpflow
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.likelihoods import Gaussian
from line_model import Line

import gpflow_gpnet as gpn
from gpflow_gpnet import gaussians
from gpflow_gpnet.array_files import read_arrays
from gpflow_gpnet.batches import ArrayBatches

# gpflow_gpnet.fit, the attribute, is the function.
fit_module = sys.modules["gpflow_gpnet.fit"]


def make_data(rng, num=10, noise=0.1):
    X = rng.uniform(-2, 2, size=(num, 1))
    return X, X + np.sin(2 * X) + noise * rng.normal(size=X.shape)


def make_gpnet(num_data, num_features=4, noise_variance=0.1, **kwargs):
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, num_features)
    return gpn.GPNet(kernel, Gaussian(noise_variance), network, num_data=num_data, **kwargs)


def fit(model, data, num_steps=5, **kwargs):
    kwargs = {"batch_size": 4, "progress": False, "seed": 3, **kwargs}
    return gpn.fit(model, data, num_steps=num_steps, **kwargs)


def keras_version():
    import keras

    return keras.__version__


def adam(rate=0.1):
    return tf_keras.optimizers.Adam(rate)


def train_by_hand(model, batches, optimizer):
    for batch in batches:
        with tf.GradientTape() as tape:
            loss = model.training_loss(batch)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def assert_same_variables(one, other, **tolerance):
    for got, expected in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(got, expected, **{"rtol": 0, "atol": 0, **tolerance})


def largest_constant(graph):
    sizes = [np.prod(op.outputs[0].shape) for op in graph.get_operations() if op.type == "Const"]
    return max(sizes, default=0)


# ------------------------------------------------------------------ what trains


@pytest.mark.parametrize(
    "convert",
    [
        lambda X, Y: (X, Y),
        lambda X, Y: [X.astype(np.float32).astype(float), Y],
        lambda X, Y: (X.tolist(), Y.tolist()),
        lambda X, Y: (pd.DataFrame(X, columns=["a"]), pd.DataFrame(Y, columns=["b"])),
        lambda X, Y: (tf.constant(X), tf.constant(Y)),
        lambda X, Y: tf.data.Dataset.from_tensor_slices((X, Y)).batch(10),
        lambda X, Y: [(X, Y)],
        lambda X, Y: [(X, Y), (X, Y)],
        lambda X, Y: [(X.tolist(), Y.tolist())] * 3,
        lambda X, Y: ((X, Y) for _ in range(5)),
    ],
    ids=["tuple", "list", "lists", "frames", "tensors", "dataset", "one", "two", "three", "iter"],
)
def test_every_kind_of_data_trains_alike(rng, convert):
    X, Y = make_data(rng)
    X = X.astype(np.float32).astype(float)
    expected, model = Line(10), Line(10)
    train_by_hand(expected, [(X, Y)] * 5, adam())
    fit(model, convert(X, Y), optimizer=adam(), batch_size=10)
    assert model.slope.numpy() > 0.1
    np.testing.assert_allclose(model.slope, expected.slope, rtol=1e-12)


def test_batches_of_a_list_are_taken_in_turn(rng):
    """Two of them, which must not be mistaken for X and Y."""
    X, Y = make_data(rng)
    batches = [(X[:3], Y[:3]), (X[3:], Y[3:])]
    expected, model = Line(10), Line(10)
    train_by_hand(expected, [batches[i % 2] for i in range(5)], adam())
    fit(model, batches, optimizer=adam())
    np.testing.assert_allclose(model.slope, expected.slope, rtol=1e-12)


def test_svgp_ends_where_a_hand_written_loop_ends(rng):
    """The default optimiser is Adam with learning rate 0.01."""
    data = make_data(rng)
    models = [
        gpflow.models.SVGP(
            gpflow.kernels.SquaredExponential(), Gaussian(), np.linspace(-2, 2, 3)[:, None],
            num_data=10,
        )
        for _ in range(2)
    ]  # fmt: skip
    fit(models[0], data, 3, batch_size=5)
    batches = ArrayBatches(tuple(map(tf.constant, data)), 5, 3)
    train_by_hand(models[1], [batches(step) for step in range(3)], adam(0.01))
    assert np.abs(models[0].q_mu).max() > 0.01
    assert_same_variables(*models, atol=1e-9)


def test_one_seed_gives_the_same_bits_and_another_does_not(rng):
    data = make_data(rng)
    models = []
    for seed in (3, 3, 4):
        models.append(make_gpnet(10))
        optimizer = gpn.FunctionalMirrorDescent(prior_correction=False)
        fit(models[-1], data, 4, optimizer=optimizer, seed=seed, batch_size=5, polish=False)
    assert_same_variables(models[0], models[1])
    weights = [model.inference_network.q_mu for model in models]
    assert np.abs(weights[0] - weights[2]).max() > 1e-4


def test_default_optimizer_of_a_gpnet_takes_natural_steps_and_the_seed(rng, monkeypatch):
    made = []

    class Recorded(gpn.FunctionalMirrorDescent):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)

    monkeypatch.setattr(fit_module, "FunctionalMirrorDescent", Recorded)
    fit(make_gpnet(10), make_data(rng), num_steps=1, seed=17, polish=False)
    assert made[0].takes_natural_steps and made[0].seed == 17 and int(made[0].t) == 1


# ------------------------------------------------------------------ graphs


@pytest.mark.parametrize("stream", [False, True])
def test_at_most_two_traces_with_ragged_batches(rng, stream):
    X, Y = make_data(rng)
    data = [(X[:n], Y[:n]) for n in (5, 3, 2, 4, 1)] if stream else (X, Y)
    model = Line(10)
    fit(model, data, num_steps=9, optimizer=adam())
    assert 1 <= model.traces <= 2


def test_data_are_never_constants_of_a_graph(rng):
    data = make_data(rng, 1500)
    model = Line(1500)
    fit(model, data, optimizer=adam(), batch_size=1500, validation_data=data)
    graphs = list(model.graphs)

    def points(num):
        graphs.append(tf.compat.v1.get_default_graph())
        return tf.linspace(tf.constant(-2.0, tf.float64), 2.0, num)[:, None]

    model = make_gpnet(1500, measurement=points, num_measurement_points=2)
    fit(model, data, num_steps=1, batch_size=1500)
    assert len(graphs) >= 3 and all(graph.building_function for graph in graphs)
    assert max(map(largest_constant, graphs)) < 1000


# ------------------------------------------------------------------ records and callbacks


def test_history_holds_steps_seconds_and_mean_losses(rng):
    X, Y = make_data(rng)
    history = fit(Line(10), (X, Y), num_steps=5, optimizer=adam(0.0), batch_size=10, log_every=2)
    assert history["step"].tolist() == [2, 4, 5]
    assert np.all(np.diff(history["seconds"]) > 0)
    np.testing.assert_allclose(history["loss"], np.sum(Y**2))
    assert "validation_nlpd" not in history


def test_validation_score_is_the_mean_negative_log_density(rng, monkeypatch):
    """In nats per datum, in pieces, at the steps asked for and at the last."""
    monkeypatch.setattr(fit_module, "_PREDICTION_ROWS", 3)
    model, new = Line(10), make_data(rng, 8)
    history = fit(
        model, make_data(rng), optimizer=adam(), validation_data=new, validate_every=2, log_every=1
    )
    scores = history["validation_nlpd"]
    assert np.isfinite(scores).tolist() == [False, True, False, True, True]
    expected = -np.mean(model.predict_log_density(tuple(map(tf.constant, new))))
    np.testing.assert_allclose(scores[-1], expected)
    assert scores[1] > scores[3] > scores[4]


def test_callbacks_are_called_after_each_step(rng):
    steps, slopes = [], []
    model = Line(10)
    history = fit(
        model,
        make_data(rng),
        optimizer=adam(),
        callbacks=iter([steps.append, lambda step: slopes.append(model.slope.numpy()) or 1]),
    )
    assert steps == [1, 2, 3, 4, 5]
    assert 0.0 < slopes[0] < slopes[-1] == model.slope.numpy()
    assert history["step"][-1] == 5


def test_a_callback_that_returns_true_stops_training(rng):
    steps = []
    model = Line(10)
    callbacks = [lambda step: step == 3, steps.append]
    fit(model, make_data(rng), optimizer=adam(), callbacks=callbacks)
    assert steps == [1, 2, 3]


def test_gpflows_monitor_is_a_callback(rng):
    model, slopes = Line(10), []
    task = gpflow.monitor.ExecuteCallback(lambda: slopes.append(model.slope.numpy().item()))
    monitor = gpflow.monitor.Monitor(gpflow.monitor.MonitorTaskGroup(task, period=2))
    fit(model, make_data(rng), optimizer=adam(), callbacks=[monitor])
    assert len(slopes) >= 2 and slopes == sorted(set(slopes))


# ------------------------------------------------------------------ held-out rows and polishing


class Recorder(gpn.FunctionalMirrorDescent):
    """Keeps the inputs that its steps, and its polishing, are given."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.trained, self.held, self.polished = set(), set(), set()

    def compiled_step(self, held_out=False, strategy=None):
        step = super().compiled_step(held_out, strategy)

        def recorded(batch, held_out=None):
            self.trained |= set(batch[0].numpy().ravel())
            self.held |= set(held_out[0].numpy().ravel())
            return step(batch, held_out)

        return recorded

    def polish(self, batches, *, strategy=None):
        batches = list(batches)
        self.polished |= {x for X, _ in batches for x in X.numpy().ravel()}
        super().polish(batches, strategy=strategy)


def test_held_out_rows_are_in_no_step_and_find_the_noise(rng):
    """They are validation data too, and return for the final polishing."""
    X, Y = make_data(rng, 150, noise=0.3)
    optimizer = Recorder(noise="held-out", noise_decay=0.9)
    model = make_gpnet(150, num_features=6, noise_variance=1.0)
    history = fit(model, (X, Y), 60, optimizer=optimizer, batch_size=50, held_out=0.333)
    assert len(optimizer.held) == 50 and len(optimizer.trained) == 100
    assert not optimizer.held & optimizer.trained
    assert optimizer.polished == set(X.ravel())
    assert 0.06 < model.likelihood.variance.numpy() < 0.13
    assert np.isfinite(history["validation_nlpd"][-1])


@pytest.mark.parametrize(
    "rows, trainable, held", [(1000, True, 100), (999, True, 0), (1000, False, 0)]
)
def test_by_default_large_data_with_a_noise_to_learn_spare_a_tenth(rng, rows, trainable, held):
    model = make_gpnet(rows, num_features=2)
    gpflow.set_trainable(model.likelihood, trainable)
    optimizer = Recorder() if held else gpn.FunctionalMirrorDescent()
    history = fit(model, make_data(rng, rows), 20, optimizer=optimizer, batch_size=100)
    assert ("validation_nlpd" in history) == bool(held)
    if held:
        assert len(optimizer.held) == held and len(optimizer.trained) == rows - held


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1])
def test_fraction_held_out_must_be_between_0_and_1(rng, fraction):
    optimizer = gpn.FunctionalMirrorDescent(noise="held-out")
    with pytest.raises(ValueError, match="held_out must be between 0 and 1"):
        fit(make_gpnet(10), make_data(rng), optimizer=optimizer, held_out=fraction)


def test_rows_can_be_held_out_of_arrays_only(rng):
    optimizer = gpn.FunctionalMirrorDescent(noise="held-out")
    with pytest.raises(ValueError, match="needs data as arrays"):
        fit(make_gpnet(10), [make_data(rng)], optimizer=optimizer)


@pytest.mark.parametrize("settings", [{}, {"polish": False, "polish_every": 3}])
def test_polishing_gives_bayesian_linear_regression_on_the_final_features(rng, settings):
    X, Y = make_data(rng)
    model = make_gpnet(10)
    start = model.inference_network.features(X)
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=0.1, prior_correction=False)
    fit(model, (X, Y), 3, optimizer=optimizer, **settings)
    network, variance = model.inference_network, model.likelihood.variance.numpy()
    features = network.features(X).numpy()
    assert np.abs(features - start).max() > 0.01
    cov = np.linalg.inv(np.eye(8) + features.T @ features / variance)
    root = network.q_sqrt.numpy()[0]
    np.testing.assert_allclose(root @ root.T, cov, atol=1e-9)
    np.testing.assert_allclose(network.q_mu, cov @ features.T @ Y / variance, atol=1e-9)


def test_polishing_needs_natural_steps_on_arrays(rng):
    data = make_data(rng)
    with pytest.raises(ValueError, match="polish_every needs natural steps"):
        fit(Line(10), data, polish_every=2)
    with pytest.raises(ValueError, match="polish_every needs natural steps"):
        fit(make_gpnet(10), [data], polish_every=2)


# ------------------------------------------------------------------ checkpoints


def test_a_resumed_gpnet_goes_on_as_if_never_stopped(rng, tmp_path):
    """Another seed of the model's own randomness does not matter; the network is set up once."""
    data = make_data(rng)
    seen = []

    def train(num_steps, folder, seed):
        kernel = gpflow.kernels.SquaredExponential()
        network = gpn.RFE(kernel, 1, 4, seed=seed)
        initialise = network.initialise
        network.initialise = lambda X: (seen.append(X.shape), initialise(X))
        model = gpn.GPNet(kernel, Gaussian(0.1), network, num_data=10)
        optimizer = gpn.FunctionalMirrorDescent(prior_correction=False)
        settings = {"checkpoint_dir": folder, "checkpoint_every": 2, "log_every": 1}
        history = fit(
            model, data, num_steps, optimizer=optimizer, batch_size=5, polish=False, **settings
        )
        return model, history

    whole, _ = train(6, tmp_path / "whole", 0)
    train(3, str(tmp_path / "parts"), 0)
    resumed, history = train(6, str(tmp_path / "parts"), 1)
    assert seen == [(10, 1), (10, 1)]
    assert history["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert_same_variables(resumed, whole)


def test_resuming_before_a_smaller_batch_changes_no_bit_of_the_history(rng, tmp_path):
    """The traces are then the same as in one go, and draw nothing from the user's generator."""
    data, losses = make_data(rng), []

    def points(number):
        return np.random.uniform(-2.0, 2.0, size=(number, 1))

    for num_steps, folder in ((6, "whole"), (2, "parts"), (6, "parts")):
        np.random.seed(0)
        kernel = gpflow.kernels.SquaredExponential()
        network = gpn.RFE(kernel, 1, 4, covariance="diag")
        model = gpn.GPNet(kernel, Gaussian(0.1), network, num_data=10, measurement=points)
        settings = {"batch_size": 4, "checkpoint_dir": tmp_path / folder, "log_every": 1}
        losses.append(fit(model, data, num_steps, **settings)["loss"])
    np.testing.assert_array_equal(losses[2], losses[0])


@pytest.mark.parametrize("name", ["tf_keras", "legacy", "keras"])
def test_a_resumed_keras_optimizer_goes_on_as_if_never_stopped(rng, tmp_path, name):
    data, slopes = make_data(rng), []
    if name == "keras" and tuple(map(int, keras_version().split(".")[:2])) < (3, 3):
        pytest.skip("TensorFlow cannot save the optimisers of this Keras 3.")
    for num_steps, folder in ((6, "whole"), (3, "parts"), (6, "parts")):
        model = Line(10)
        optimizer = make_adam(name)
        fit(model, data, num_steps, optimizer=optimizer, checkpoint_dir=tmp_path / folder)
        slopes.append(model.slope.numpy())
    assert slopes[1] != slopes[0] == slopes[2]


def test_a_resumed_stream_goes_on_where_it_stopped(rng, tmp_path):
    data, slopes = make_data(rng), []
    for num_steps, folder in ((7, "whole"), (3, "parts"), (7, "parts")):
        tf.random.set_seed(0)  # as in a new process: shuffle takes it up too
        stream = tf.data.Dataset.from_tensor_slices(data).shuffle(10, seed=1).batch(4)
        model = Line(10)
        fit(model, stream, num_steps, optimizer=adam(), checkpoint_dir=tmp_path / folder)
        slopes.append(model.slope.numpy())
    assert slopes[1] != slopes[0] == slopes[2]


def test_without_a_seed_a_resumed_run_takes_that_of_the_checkpoint(rng, tmp_path):
    data, slopes = make_data(rng), []
    for num_steps in (2, 6):
        model = Line(10)
        fit(model, data, num_steps, optimizer=adam(), checkpoint_dir=tmp_path, seed=None)
    seed = int(read_arrays(tmp_path / "step-000000006.npz")[0]["seed"])
    for other in (seed, seed + 1):
        again = Line(10)
        fit(again, data, 6, optimizer=adam(), seed=other)
        slopes.append(again.slope.numpy())
    assert slopes[0] == model.slope.numpy() != slopes[1]


def test_resumed_early_stopping_knows_the_best_step(rng, tmp_path):
    """The slope passes 1, the best one, before the interruption; a stopped run stays stopped."""
    X = np.linspace(-1, 1, 8)[:, None]

    def train(num_steps, folder, patience=20):
        model, stopping = Line(8), gpn.callbacks.EarlyStopping(patience)
        settings = {"validation_data": (X, X), "validate_every": 1, "batch_size": 8}
        history = fit(
            model,
            (X, 9 * X),
            num_steps,
            optimizer=adam(),
            callbacks=[stopping],
            checkpoint_dir=tmp_path / folder,
            **settings,
        )
        return model.slope.numpy(), stopping.best_step, history["step"][-1]

    whole = train(60, "whole")
    assert whole[1] + 20 == whole[2] < 60
    train(whole[1] + 3, "parts")
    assert train(60, "parts") == whole
    assert train(60, "parts") == whole  # once more
    assert train(60, "parts", patience=25)[2] == whole[2] + 5


def test_global_generators_go_on_with_the_run(rng, tmp_path):
    data, drawn = make_data(rng), {"whole": [], "parts": []}
    for num_steps, folder in ((5, "whole"), (3, "parts"), (5, "parts")):

        def draw(step, numbers=drawn[folder]):
            uniform = tf.random.get_global_generator().uniform([], dtype=tf.float64)
            numbers.append((np.random.normal(), float(uniform)))

        begun = bool(drawn[folder])
        np.random.seed(begun)
        tf.random.get_global_generator().reset_from_seed(int(begun))
        settings = {"optimizer": adam(), "checkpoint_dir": tmp_path / folder}
        fit(Line(10), data, num_steps, callbacks=[draw], **settings)
    assert len(set(drawn["whole"])) == 5
    assert drawn["parts"] == drawn["whole"]


def test_a_finished_run_is_not_trained_again(rng, tmp_path):
    data = make_data(rng)
    for _ in range(2):
        model, steps = Line(10), []
        fit(
            model,
            data,
            3,
            optimizer=adam(),
            checkpoint_dir=tmp_path,
            callbacks=[steps.append],
        )
    assert steps == [] and model.slope.numpy() > 0.1


# ------------------------------------------------------------------ optimisers


def make_adam(name):
    import keras

    return {
        "tf_keras": tf_keras.optimizers.Adam,
        "legacy": tf_keras.optimizers.legacy.Adam,
        "keras": keras.optimizers.Adam,
    }[name](0.1)


@pytest.mark.parametrize("name", ["tf_keras", "legacy", "keras"])
def test_optimizers_of_every_keras_train_and_refuse_what_they_were_not_built_for(rng, name):
    """Slots of the legacy optimiser grow, so it may go on after unfreezing."""
    X, Y = make_data(rng)
    model, optimizer = Line(10), make_adam(name)
    fit(model, (X, Y), optimizer=optimizer)
    # Adam's own steps, with epsilon = 1e-7.
    slope = first = second = 0.0
    batches = ArrayBatches((X, Y), 4, 3)
    for step in range(5):
        x, y = (values.numpy() for values in batches(step))
        gradient = -2.0 * np.sum(x * (y - slope * x))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrected = np.sqrt(second / (1 - 0.999 ** (step + 1)))
        slope -= 0.1 * first / (1 - 0.9 ** (step + 1)) / (corrected + 1e-7)
    np.testing.assert_allclose(model.slope, slope, rtol=1e-5)

    gpflow.set_trainable(model.offset, True)
    if name == "legacy":
        fit(model, (X, Y), optimizer=optimizer)
        assert model.offset.numpy() != 0.0
    else:
        with pytest.raises(ValueError, match="make a new optimiser after set_trainable"):
            fit(model, (X, Y), optimizer=optimizer)
        fit(model, (X, Y), optimizer=make_adam(name))
        assert model.offset.numpy() != 0.0


def test_a_function_makes_a_step_of_ones_own(rng):
    data = rng.normal(size=(8, 1)), rng.normal(size=(8, 1))
    model, seen = Line(8), []

    def optimizer(bound):
        assert bound is model

        def step(batch):
            seen.append(len(batch[0]))
            return tf.constant(float(len(seen)))

        return step

    history = gpn.fit(model, data, optimizer=optimizer, num_steps=3, batch_size=5, log_every=1)
    assert seen == [5, 3, 5] and history["loss"].tolist() == [1.0, 2.0, 3.0]


def test_optimizer_must_be_one(rng):
    with pytest.raises(TypeError, match=r"optimizer must be .* got Scipy"):
        fit(Line(10), make_data(rng), optimizer=gpflow.optimizers.Scipy())


def test_checkpoints_need_state_that_can_be_saved(rng, tmp_path):
    with pytest.raises(ValueError, match="checkpoint_dir needs an optimizer whose state"):
        fit(Line(10), make_data(rng), optimizer=lambda model: None, checkpoint_dir=tmp_path)


def test_loss_that_is_not_finite_names_its_step(rng):
    with pytest.raises(FloatingPointError, match="loss is inf at step 2"):
        fit(Line(10), make_data(rng), optimizer=adam(1e200))
    with pytest.raises(FloatingPointError, match="loss is inf at step 2"):
        fit(Line(10), make_data(rng), optimizer=adam(1e200), log_every=1)


def test_failures_name_parameters_and_the_last_good_checkpoint(rng, tmp_path):
    data, model = make_data(rng), Line(10)

    def spoil(step):
        if step == 5:
            model.slope.unconstrained_variable.assign(np.nan)

    settings = {"checkpoint_dir": tmp_path, "checkpoint_every": 2, "callbacks": [spoil]}
    message = r"nan at step 6.*values: \.slope.*step-000000004\.npz.*load_into"
    with pytest.raises(FloatingPointError, match=message):
        fit(model, data, 9, optimizer=adam(), **settings)
    gpn.load_into(model, tmp_path / "step-000000004.npz")
    assert np.isfinite(model.slope)
    assert len(list(tmp_path.iterdir())) == 2


def test_parameters_that_are_not_finite_are_not_saved(rng, tmp_path):
    """The loss, taken before the step, is finite still."""
    settings = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    message = r"not finite after step 1\..*\.slope\. There is no checkpoint yet"
    with pytest.raises(FloatingPointError, match=message):
        fit(Line(10), make_data(rng), optimizer=adam(np.inf), **settings)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FloatingPointError, match=r"With checkpoint_dir=.* would have been kept"):
        fit(Line(10), make_data(rng), optimizer=adam(np.inf))


# ------------------------------------------------------------------ refused before the first step


def spoilt(rng, name, row, value):
    data = dict(zip("XY", make_data(rng), strict=True))
    data[name][row] = value
    return tuple(data.values())


@pytest.mark.parametrize(
    "change, error, message",
    [
        (lambda rng, X, Y: (X, Y[:, 0]), ValueError, r"\(10, 1\).*\(10,\).*Y\[:, None\]"),
        (lambda rng, X, Y: (X[:, 0], Y), ValueError, r"\(10,\).*X\[:, None\]"),
        (lambda rng, X, Y: (X[:9], Y), ValueError, r"\(9, 1\).*\(10, 1\).*same number of rows"),
        (lambda rng, X, Y: (X[:0], Y[:0]), ValueError, "no rows"),
        (lambda rng, X, Y: (X, np.hstack([Y, Y])), ValueError, "2 columns.* 1 outputs"),
        (lambda rng, X, Y: spoilt(rng, "X", 7, np.nan), ValueError, "X has NaN.*row 7"),
        (lambda rng, X, Y: spoilt(rng, "X", 2, np.inf), ValueError, "X has NaN.*row 2"),
        (lambda rng, X, Y: spoilt(rng, "Y", 4, np.nan), ValueError, "Y has NaN.*row 4"),
        (lambda rng, X, Y: spoilt(rng, "Y", 5, -np.inf), ValueError, "Y has NaN.*row 5"),
        (
            lambda rng, X, Y: (pd.DataFrame({"size": X[:, 0], "town": ["Bath"] * 10}), Y),
            TypeError,
            "column 'town'",
        ),
        (lambda rng, X, Y: (X, Y, Y), ValueError, "pair"),
        (lambda rng, X, Y: [(X, Y), (X, Y[:, 0])][1:], ValueError, r"Y\[:, None\]"),
        (lambda rng, X, Y: [], ValueError, "data ended after 0 batches"),
    ],
    ids=[
        "vector Y", "vector X", "rows", "empty", "columns", "NaN in X", "inf in X", "NaN in Y",
        "inf in Y", "text", "triple", "batch", "no batches",
    ],
)  # fmt: skip
def test_wrong_data_are_refused_before_the_first_step(rng, change, error, message):
    model = Line(10)
    with pytest.raises(error, match=message):
        fit(model, change(rng, *make_data(rng)), optimizer=adam())
    assert model.traces == 0


def test_wrong_validation_data_are_refused_before_the_first_step(rng):
    model, (X, Y) = Line(10), make_data(rng)
    with pytest.raises(ValueError, match=r"Y\[:, None\]"):
        fit(model, (X, Y), validation_data=(X, Y[:, 0]))
    assert model.traces == 0


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"log_every": 0}, "log_every must be at least 1"),
        ({"validate_every": 0}, "validate_every must be at least 1"),
        ({"checkpoint_every": -1}, "checkpoint_every must be at least 1"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_before_the_first_step(rng, settings, message):
    model = Line(10)
    with pytest.raises(ValueError, match=message):
        fit(model, make_data(rng), optimizer=adam(), **settings)
    assert model.traces == 0


def test_number_of_data_must_fit(rng):
    data = make_data(rng)
    with pytest.raises(ValueError, match="num_data is 11, but the data have 10 rows"):
        fit(Line(11), data)
    with pytest.raises(ValueError, match="pass num_data=10"):
        fit(Line(None), data)
    with pytest.raises(ValueError, match="pass num_data=10"):
        fit(make_gpnet(None), data, batch_size=10)
    with pytest.raises(ValueError, match="streams need the number of data"):
        fit(Line(None), [data])
    for number in (0, -3):
        with pytest.raises(ValueError, match=f"num_data must be positive, got {number}"):
            make_gpnet(number)
    fit(Line(None), data, 1, optimizer=adam(), batch_size=10)  # the whole batch needs no scale


def test_model_must_take_data_as_an_argument(rng):
    model = gpflow.models.GPR(make_data(rng), gpflow.kernels.SquaredExponential())
    with pytest.raises(TypeError, match="takes data as an argument, got GPR"):
        fit(model, make_data(rng))


def test_going_on_with_another_seed_is_warned_of(rng, tmp_path):
    data, settings = make_data(rng), dict(batch_size=5, progress=False, checkpoint_dir=tmp_path)
    gpn.fit(make_gpnet(10), data, num_steps=2, seed=0, **settings)
    with pytest.warns(
        UserWarning, match=r"step-000000002\.npz, which began with seed=0, with seed=1"
    ):
        gpn.fit(make_gpnet(10), data, num_steps=3, seed=1, **settings)
    gpn.fit(make_gpnet(10), data, num_steps=4, **settings)  # warnings are errors in these tests


@pytest.mark.parametrize("wrap", [tf.function, lambda function: function], ids=["graph", "eager"])
def test_a_failure_while_polishing_at_the_end_names_step_and_matrix(rng, monkeypatch, wrap):
    @wrap
    def failing(*args, **kwargs):
        return gaussians.cholesky(-tf.eye(2, dtype=tf.float64), "the target's R⁻½")

    monkeypatch.setattr(gpn.FunctionalMirrorDescent, "polish", lambda *args, **kwargs: failing())
    message = (
        r"^Step 3 failed\. Cholesky of the target's R⁻½ failed: a float64 matrix of shape \(2, 2\) "
        r"is not .*\. Shape now: 2, 2\. With checkpoint_dir"
    )
    with pytest.raises(FloatingPointError, match=message):
        gpn.fit(make_gpnet(10), make_data(rng), num_steps=3, batch_size=5, progress=False)


@pytest.mark.parametrize("noise", ["training", "held-out"])
@pytest.mark.parametrize("parameter", ["variance", "scale"])
def test_noise_of_targets_without_noise_stops_at_the_bound(rng, noise, parameter):
    X = rng.uniform(size=(30, 1))
    model = make_gpnet(30)
    model.likelihood = Gaussian(**{parameter: 0.1})
    optimizer = gpn.FunctionalMirrorDescent(noise=noise, noise_decay=0.1, prior_correction=False)
    fit(model, (X, np.zeros((30, 1))), 12, optimizer=optimizer, batch_size=15)
    variance = float(model.likelihood.variance_at(X[:1])[0, 0])
    assert 1e-6 <= variance < 1e-4


def test_one_row_is_enough_but_not_for_holding_out():
    X, Y = np.ones((1, 1)), np.full((1, 1), 0.3)
    model = make_gpnet(1)
    fit(model, (X, Y), 2)
    assert np.isfinite(model.predict_y(X)[1])
    held_out = gpn.FunctionalMirrorDescent(noise="held-out")
    with pytest.raises(
        ValueError, match='needs rows to hold out, but the data have 1: use noise="tr'
    ):
        fit(make_gpnet(1), (X, Y), 2, optimizer=held_out)


def test_trained_models_are_garbage_once_dropped(rng):
    """No cache of this package keeps a model alive, as in a loop of cross-validation."""
    data = make_data(rng)
    model = make_gpnet(10)
    fit(model, data, 2)
    trained = weakref.ref(model)
    del model
    gc.collect()
    assert trained() is None


# ------------------------------------------------------------------ what users get wrong


@pytest.mark.parametrize("answer", [True, np.bool_(True), tf.constant(True)], ids=type)
def test_any_true_of_a_callback_stops(rng, answer):
    history = fit(make_gpnet(10), make_data(rng), callbacks=[lambda step: answer])
    assert history["step"][-1] == 1


@pytest.mark.parametrize(
    "answer",
    [1, np.float64(1.0), np.bool_(False), np.array([True, True]), "yes", None],
    ids=repr,
)
def test_nothing_else_does(rng, answer):
    history = fit(make_gpnet(10), make_data(rng), callbacks=[lambda step: answer])
    assert history["step"][-1] == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"callbacks": [gpn.callbacks.EarlyStopping]},
            "callbacks must be functions of the step or objects",
        ),
        ({"callbacks": ["stop"]}, "callbacks must be functions of the step or objects"),
        ({"batch_size": 4.0}, "batch_size must be an integer, got 4.0"),
        ({"num_steps": "10"}, "num_steps must be an integer, got '10'"),
        ({"optimizer": gpflow.optimizers.NaturalGradient(0.1)}, "got NaturalGradient"),
    ],
)
def test_arguments_of_other_types_are_named(rng, arguments, message):
    with pytest.raises(TypeError, match=message):
        fit(make_gpnet(10), make_data(rng), **arguments)


@pytest.mark.parametrize(
    "data", [None, np.zeros((3, 2)), pd.DataFrame({"x": [1.0], "y": [2.0]})], ids=type
)
def test_data_that_are_no_pair_are_named(data):
    with pytest.raises(TypeError, match=rf"data must be \(X, Y\).*got {type(data).__name__}"):
        fit(make_gpnet(10), data)


def test_batches_of_no_rows_are_refused(rng):
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        fit(make_gpnet(10), make_data(rng), batch_size=0)


def test_validation_data_are_named_as_such(rng):
    X, Y = make_data(rng)
    with pytest.raises(ValueError, match="validation_data: Y has NaN"):
        fit(make_gpnet(10), (X, Y), validation_data=(X, np.nan * Y))


def test_a_keras_optimiser_of_another_model_is_named(rng):
    data, optimizer = make_data(rng), adam()
    fit(make_gpnet(10), data, optimizer=optimizer)
    with pytest.raises(ValueError, match="Adam was built for other variables"):
        fit(make_gpnet(10), data, optimizer=optimizer)


def test_mean_may_be_a_plain_function(rng):
    """As for GPflow's models, which call it and no more."""
    X, Y = make_data(rng)
    model = make_gpnet(10, mean_function=lambda X: 3.0 + 0.0 * X)
    fit(model, (X, Y + 3.0), num_steps=3)
    same = make_gpnet(10, mean_function=gpflow.mean_functions.Constant(3.0))
    gpflow.set_trainable(same.mean_function, False)
    fit(same, (X, Y + 3.0), num_steps=3)
    np.testing.assert_array_equal(model.predict_f(X)[0], same.predict_f(X)[0])


@pytest.mark.parametrize(
    "kernel",
    [
        gpflow.kernels.SharedIndependent(gpflow.kernels.SquaredExponential(), output_dim=2),
        gpflow.kernels.LinearCoregionalization(
            [gpflow.kernels.SquaredExponential()], W=np.array([[1.0], [-1.0]])
        ),
    ],
    ids=["shared", "negative correlation"],
)
def test_scale_of_several_outputs_is_that_of_their_variances(rng, kernel):
    """Covariances between outputs would cancel them; warnings are errors here."""
    X, Y = make_data(rng)
    latents = kernel.num_latent_gps
    network = gpn.RFE(kernel, 1, 4, num_latent_gps=latents)
    model = gpn.GPNet(kernel, Gaussian(0.1), network, num_latent_gps=latents, num_data=10)
    fit(model, (X, np.hstack([Y, -Y])), num_steps=1)
    with pytest.warns(UserWarning, match=r"prior's standard deviation is (1|0\.9\d*):"):
        fit(model, (X, 1000.0 * np.hstack([Y, -Y])), num_steps=1)


def test_many_models_in_turn_are_no_retraces(rng, caplog):
    """TensorFlow warns of functions with the same code that are traced again and again."""
    X, Y = make_data(rng)
    validation = X, Y
    with caplog.at_level("WARNING", logger="tensorflow"):
        for _ in range(7):
            likelihood = gpflow.likelihoods.Gaussian(0.1)
            model = gpflow.models.SVGP(gpflow.kernels.RBF(), likelihood, X[:3], num_data=10)
            fit(model, (X, Y), num_steps=1, validation_data=validation)
    assert "retracing" not in caplog.text


def test_tensorflows_seed_is_enough_to_train_the_same_again(rng):
    data, means = make_data(rng), []
    for seed in (5, 5, 6):
        tf.random.set_seed(seed)
        model = make_gpnet(10)
        fit(model, data, seed=None)
        means.append(model.predict_f(data[0])[0].numpy())
    np.testing.assert_array_equal(means[0], means[1])
    assert (means[0] != means[2]).any()


def test_nothing_to_train_is_said(rng):
    model = make_gpnet(10)
    gpflow.set_trainable(model, False)
    with pytest.warns(UserWarning, match="no trainable parameters"):
        fit(model, make_data(rng), num_steps=1)


def test_checkpoints_of_other_data_are_noticed(rng, tmp_path):
    X, Y = make_data(rng)
    fit(make_gpnet(10), (X, Y), num_steps=2, checkpoint_dir=str(tmp_path))
    fit(make_gpnet(10), (X.copy(), Y.copy()), num_steps=3, checkpoint_dir=str(tmp_path))
    for steps, data in ((4, (X, Y + 1e-6)), (5, (X[::-1], Y[::-1]))):
        with pytest.warns(UserWarning, match="began with other data"):
            fit(make_gpnet(10), data, num_steps=steps, checkpoint_dir=str(tmp_path))
