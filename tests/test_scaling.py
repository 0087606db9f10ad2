"""Scaling inside the model: everything that leaves it is in the units of the data."""

from __future__ import annotations

from copy import deepcopy

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_gpnet as gpn
from gpflow_gpnet.likelihoods import KnownNoise, MissingTargets, Weighted

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(12, 2)) * [2.0, 1e-3] + [100.0, 7.0]
Y = RNG.normal(size=(12, 2)) * [2e4, 0.1] + [5e5, -3.0]
XNEW = X[:4] + np.array([0.3, 1e-4])
SCALING = gpn.Scaling.from_data((X, Y))
SCALE, CENTER = Y.std(axis=0), Y.mean(axis=0)


def standardised(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return (values - reference.mean(axis=0)) / reference.std(axis=0)


XS, YS, XNEWS = standardised(X, X), standardised(Y, Y), standardised(XNEW, X)


def make_kernel(kind: str) -> gpflow.kernels.Kernel:
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0]) for _ in range(2)]
    if kind == "mixed":
        return gpflow.kernels.LinearCoregionalization(kernels, W=[[1.0, 0.5], [-0.3, 2.0]])
    return kernels[0]


def pair_of_models(kind: str = "shared", likelihood=None) -> tuple[gpn.GPNet, gpn.GPNet]:
    """One that scales, and the same one for data scaled by hand."""
    kernel = make_kernel(kind)
    network = gpn.RFE(kernel, 2, 7, num_latent_gps=2)
    network.q_mu.assign(np.random.default_rng(1).normal(size=(14, 2)))
    plain = gpn.GPNet(
        kernel,
        likelihood or gpflow.likelihoods.Gaussian(0.1),
        network,
        num_latent_gps=2,
        mean_function=gpflow.mean_functions.Linear(np.ones((2, 2)), [0.1, -0.2]),
        num_data=12,
    )
    parts = deepcopy(plain)
    scaled = gpn.GPNet(
        parts.kernel,
        parts.likelihood,
        parts.inference_network,
        num_latent_gps=2,
        mean_function=parts.mean_function,
        num_data=12,
        scaling=SCALING,
    )
    return scaled, plain


@pytest.mark.parametrize("kind", ["shared", "mixed"])
def test_predictions_are_in_the_units_of_the_data(kind: str) -> None:
    scaled, plain = pair_of_models(kind)
    tolerance = dict(rtol=1e-8)
    outer = np.outer(SCALE, SCALE)
    factors = {
        (False, False): SCALE**2,
        (True, False): (SCALE**2)[:, None, None],
        (False, True): outer,
        (True, True): outer[:, None, :],
    }
    for flags, factor in factors.items():
        mean, cov = scaled.predict_f(XNEW, *flags)
        mean_s, cov_s = plain.predict_f(XNEWS, *flags)
        np.testing.assert_allclose(mean, mean_s * SCALE + CENTER, **tolerance)
        np.testing.assert_allclose(cov, cov_s * factor, **tolerance)
        mean_p, cov_p = scaled.posterior().predict_f(XNEW, *flags)
        np.testing.assert_array_equal(mean_p, mean)
        np.testing.assert_array_equal(cov_p, cov)
    mean, variance = scaled.predict_y(XNEW)
    mean_s, variance_s = plain.predict_y(XNEWS)
    np.testing.assert_allclose(mean, mean_s * SCALE + CENTER, **tolerance)
    np.testing.assert_allclose(variance, variance_s * SCALE**2, **tolerance)
    quantiles = scaled.predict_quantiles(XNEW, [0.1, 0.5])
    expected = plain.predict_quantiles(XNEWS, [0.1, 0.5]) * SCALE + CENTER
    np.testing.assert_allclose(quantiles, expected, **tolerance)
    samples = scaled.predict_y_samples(XNEW, 3, seed=5)
    expected = plain.predict_y_samples(XNEWS, 3, seed=5) * SCALE + CENTER
    np.testing.assert_allclose(samples, expected, **tolerance)
    functions = scaled.sample_functions(3, seed=5)(XNEW)
    expected = plain.sample_functions(3, seed=5)(XNEWS) * SCALE + CENTER
    np.testing.assert_allclose(functions, expected, **tolerance)


def test_log_density_and_bound_have_the_jacobian() -> None:
    scaled, plain = pair_of_models()
    jacobian = np.log(SCALE).sum()
    np.testing.assert_allclose(
        scaled.predict_log_density((X, Y)),
        plain.predict_log_density((XS, YS)) - jacobian,
        rtol=1e-8,
    )
    for model in (scaled, plain):  # so that the measurement points do not depend on rounding
        model.inference_network.represents = lambda kernel: True
    np.testing.assert_allclose(scaled.elbo((X, Y)), plain.elbo((XS, YS)) - 12 * jacobian, rtol=1e-8)


def test_samples_have_the_moments_of_predictions() -> None:
    scaled, _ = pair_of_models()
    mean, variance = scaled.predict_f(XNEW)
    tf.random.set_seed(0)
    samples = scaled.predict_f_samples(XNEW, 20_000, full_cov=False).numpy()
    error = np.sqrt(variance / 20_000)
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - mean), 5.0 * error)
    np.testing.assert_allclose(samples.var(axis=0), variance, rtol=0.06)


@pytest.mark.parametrize("natural", [True, False])
def test_training_is_that_on_scaled_data(natural: bool) -> None:
    models = pair_of_models()
    for model, data in zip(models, ((X, Y), (XS, YS)), strict=True):
        # Same points, whatever the last bits of the batch.
        model.measurement = gpn.measurement.Empirical(data[0])
        optimizer = gpn.FunctionalMirrorDescent(natural=natural, noise="training", seed=1)
        gpn.fit(
            model, data, optimizer=optimizer, num_steps=4, batch_size=24, seed=0, progress=False
        )  # fmt: skip
    scaled, plain = models
    mean, variance = scaled.predict_f(XNEW)
    mean_s, variance_s = plain.predict_f(XNEWS)
    np.testing.assert_allclose(mean, mean_s * SCALE + CENTER, rtol=1e-6)
    np.testing.assert_allclose(variance, variance_s * SCALE**2, rtol=1e-5)
    np.testing.assert_allclose(scaled.likelihood.variance, plain.likelihood.variance, rtol=1e-6)


def test_log_density_falls_by_the_log_of_the_unit() -> None:
    """Case H5: Y2 = 5e5 + 2e4 Y1, same settings."""
    rng = np.random.default_rng(5)
    inputs = rng.uniform(-2.0, 2.0, size=(500, 1))
    first = np.sin(2.0 * inputs) + 0.1 * rng.normal(size=(500, 1))
    densities, errors = [], []
    for targets in (first, 5e5 + 2e4 * first):
        kernel = gpflow.kernels.SquaredExponential()
        model = gpn.GPNet(
            kernel,
            gpflow.likelihoods.Gaussian(0.1),
            gpn.RFE(kernel, 1, 30),
            num_data=500,
            scaling=gpn.Scaling.from_data((inputs, targets)),
        )
        gpn.fit(model, (inputs, targets), num_steps=100, batch_size=100, seed=0, progress=False)
        densities.append(model.predict_log_density((inputs, targets)))
        residual = model.predict_y(inputs)[0] - targets
        errors.append(float(np.sqrt(np.mean(residual**2)) / targets.std()))
    np.testing.assert_allclose(densities[0] - densities[1], np.log(2e4), atol=1e-6)
    assert max(errors) < 0.2


def test_points_that_users_give_are_in_the_units_of_the_data() -> None:
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0])
    likelihood = gpflow.likelihoods.Gaussian()
    model = gpn.GPNet(kernel, likelihood, X[:5], num_data=12, scaling=SCALING)
    model.num_measurement_points = 50
    points = model.measurement_points(XS, (0, 1)).numpy()
    distance = np.abs(points[:, None] - XS[None, :5]).max(axis=-1)
    assert distance.min(axis=1).max() < 1e-8
    box = gpn.measurement.Uniform(X.min(axis=0), X.max(axis=0))
    smooth = gpn.measurement.KernelSmoothed(X, kernel)
    batch = gpn.measurement.BatchInputs()
    model = gpn.GPNet(
        kernel,
        likelihood,
        gpn.RFE(kernel, 2, 5),
        num_data=12,
        scaling=SCALING,
        measurement=gpn.measurement.Mixture(box, smooth, batch, lambda n: np.tile(X[:1], [n, 1])),
    )
    model.num_measurement_points = 4000
    points = model.measurement_points(XS, (0, 1)).numpy()
    in_box, smoothed, of_batch, of_user = np.split(points, 4)
    low, high = XS.min(axis=0), XS.max(axis=0)
    assert ((in_box >= low - 1e-9) & (in_box <= high + 1e-9)).all()
    np.testing.assert_allclose(in_box.mean(axis=0), (low + high) / 2.0, atol=0.1)
    spread = np.sqrt(XS.var(axis=0) + np.array([1.0, 4.0]) / 2.0)
    np.testing.assert_allclose(smoothed.std(axis=0), spread, rtol=0.1)
    assert set(of_batch[:, 0]) == set(XS[:, 0])
    np.testing.assert_allclose(of_user, np.tile(XS[:1], [1000, 1]), atol=1e-9)


@pytest.mark.parametrize("assigned", ["measurement", "scaling"])
def test_parts_assigned_later_are_as_those_given_at_first(assigned: str) -> None:
    kernel = make_kernel("shared")
    parts = kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 2, 5)
    given = {"measurement": gpn.measurement.Uniform(X.min(axis=0), X.max(axis=0))}
    given["scaling"] = SCALING
    model = gpn.GPNet(*parts, num_data=12, **given)
    later = gpn.GPNet(*parts, num_data=12, **{k: v for k, v in given.items() if k != assigned})
    setattr(later, assigned, given[assigned])
    later.measurement = later.measurement  # what is read may be assigned
    points = (each.measurement_points(XS, (0, 1)) for each in (model, later))
    np.testing.assert_array_equal(*points)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("likelihood", gpflow.likelihoods.Poisson(), "Poisson"),
        ("num_data", -5, "num_data must be positive, got -5"),
        ("num_measurement_points", 0, "num_measurement_points must be at least 1, got 0"),
    ],
)
def test_what_is_refused_at_first_is_refused_later(name: str, value: object, message: str) -> None:
    kernel = make_kernel("shared")
    parts = kernel, gpflow.likelihoods.Gaussian(), gpn.RFE(kernel, 2, 5)
    model = gpn.GPNet(*parts, num_data=12, scaling=SCALING)
    before = getattr(model, name)
    with pytest.raises(ValueError, match=message):
        setattr(model, name, value)
    assert getattr(model, name) is before


def test_missing_targets_weights_and_known_noise() -> None:
    gaps = Y.copy()
    gaps[[0, 3], [1, 0]] = np.nan
    there = ~np.isnan(gaps)
    scaling = gpn.Scaling.from_data((X, gaps))
    np.testing.assert_allclose(scaling.target_center, np.nanmean(gaps, axis=0))
    np.testing.assert_allclose(scaling.target_scale, np.nanstd(gaps, axis=0))

    scaled, plain = pair_of_models(likelihood=MissingTargets(gpflow.likelihoods.Gaussian(0.1)))
    gaps_s = standardised(np.where(there, Y, np.nan), Y)
    np.testing.assert_allclose(
        scaled.predict_log_density((X, gaps)),
        plain.predict_log_density((XS, gaps_s)) - there @ np.log(SCALE),
        rtol=1e-8,
    )
    scaled, plain = pair_of_models(likelihood=Weighted(gpflow.likelihoods.Gaussian(0.1)))
    weights = np.arange(12.0)
    for model in (scaled, plain):
        model.inference_network.represents = lambda kernel: True
    np.testing.assert_allclose(
        scaled.elbo((X, Y, weights)),
        plain.elbo((XS, YS, weights)) - weights.sum() * np.log(SCALE).sum(),
        rtol=1e-8,
    )
    np.testing.assert_allclose(
        scaled.predict_log_density((X, Y, weights)),
        plain.predict_log_density((XS, YS, weights)) - np.log(SCALE).sum(),
        rtol=1e-8,
    )
    scaled, plain = pair_of_models(likelihood=KnownNoise())
    noise = RNG.uniform(0.1, 1.0, size=(12, 2))
    np.testing.assert_allclose(
        scaled.predict_log_density((X, Y, noise * SCALE**2)),
        plain.predict_log_density((XS, YS, noise)) - np.log(SCALE).sum(),
        rtol=1e-8,
    )


def test_inputs_alone_for_likelihoods_of_other_targets() -> None:
    labels = (Y[:, :1] > Y[:, :1].mean()).astype(int)
    kernel = gpflow.kernels.SquaredExponential()
    likelihood = gpflow.likelihoods.Bernoulli()
    with pytest.raises(ValueError, match="targets=False"):
        gpn.GPNet(kernel, likelihood, X, scaling=gpn.Scaling.from_data((X, labels)))
    scaling = gpn.Scaling.from_data((X, labels), targets=False)
    model = gpn.GPNet(kernel, likelihood, gpn.RFE(kernel, 2, 5), num_data=12, scaling=scaling)
    plain = gpn.GPNet(kernel, likelihood, model.inference_network, num_data=12)
    np.testing.assert_allclose(
        model.predict_log_density((X, labels)), plain.predict_log_density((XS, labels))
    )
    softmax = gpn.GPNet(
        kernel, gpflow.likelihoods.Softmax(2), X, num_latent_gps=2, num_data=12, scaling=scaling
    )
    assert np.isfinite(softmax.elbo((X, labels)))


def test_constant_columns_keep_their_scale() -> None:
    inputs = np.hstack([X, np.full((12, 1), 1e6 + 0.1)])
    scaling = gpn.Scaling.from_data((inputs, np.full((12, 1), 3.0)))
    np.testing.assert_allclose(scaling.input_scale[-1], 1.0)
    np.testing.assert_allclose(scaling.target_scale, 1.0)
    scaled, targets = scaling((inputs, np.full((12, 1), 3.0)))
    np.testing.assert_allclose(scaled[:, -1], 0.0, atol=1e-9)
    np.testing.assert_array_equal(targets, np.zeros((12, 1)))
    np.testing.assert_allclose(scaling.original_inputs(scaled), inputs, rtol=1e-12)
    one_row = gpn.Scaling.from_data((X[:1], Y[:1]))
    np.testing.assert_array_equal(one_row.input_scale, np.ones(2))


def test_scale_of_a_huge_constant_is_its_rounding(float_type) -> None:
    """So that inputs beside it are not astronomically far from it."""
    eps = np.finfo(float_type).eps
    scaling = gpn.Scaling.from_data((np.full((12, 1), 1e30, float_type), np.ones((12, 1))))
    np.testing.assert_allclose(scaling.input_scale, 1e30 * eps, rtol=1e-6)
    beside = np.full((1, 1), 1e30 * (1 + 4 * eps), float_type)
    assert 2.0 <= scaling.inputs(beside)[0, 0] <= 6.0


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"input_scale must be .* positive"):
        gpn.Scaling(0.0, 0.0)
    with pytest.raises(ValueError, match="target_center must be"):
        gpn.Scaling(0.0, 1.0, np.nan)
    with pytest.raises(ValueError, match="data must be"):
        gpn.Scaling.from_data(X)
    with pytest.raises(ValueError, match="without finite values"):
        gpn.Scaling.from_data((X, np.full((12, 1), np.nan)))


def test_columns_are_never_broadcast() -> None:
    """One centre given as a number is for all columns; a vector's length must be theirs."""
    one, two = (gpn.Scaling.from_data((X[:, :size], Y)) for size in (1, 2))
    for scaling, size in ((one, 2), (two, 1)):
        with pytest.raises(
            ValueError, match=rf"X has shape .* the scaling is of {3 - size} columns"
        ):
            scaling.inputs(X[:, :size])
    pairs = gpn.Scaling(0.0, 1.0, [0.0, 1.0], 2.0)
    with pytest.raises(ValueError, match=r"Y has shape \(12, 1\), but the scaling is of 2 columns"):
        pairs.targets(tf.constant(Y[:, :1]))
    np.testing.assert_allclose(gpn.Scaling(1.0, [2.0, 4.0]).inputs(X), (X - 1.0) / [2.0, 4.0])
    np.testing.assert_allclose(gpn.Scaling(1.0, 2.0, 1.0, 3.0).targets(Y), (Y - 1.0) / 3.0)
    np.testing.assert_allclose(gpn.Scaling(1.0, 2.0).inputs(X), (X - 1.0) / 2.0)


@pytest.mark.parametrize("unit", [1e-25, 1e25])
def test_targets_whose_variances_the_float_type_cannot_hold_are_refused(rng, unit) -> None:
    """float64 holds them; in float32 all predicted variances would be 0 or infinite."""
    X, Y = rng.normal(size=(9, 1)), unit * rng.normal(size=(9, 1))
    assert gpn.Scaling.from_data((X, Y)).target_scale.numpy() > 0.1 * unit
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        with pytest.raises(ValueError, match=r"target_scale is .* beyond float32: .* use float64"):
            gpn.Scaling.from_data((X, Y))


def test_is_saved_with_the_model(tmp_path) -> None:
    scaled, _ = pair_of_models()
    path = tf.train.Checkpoint(model=scaled).save(str(tmp_path / "model"))
    other, _ = pair_of_models()
    other.scaling = deepcopy(SCALING)
    other.scaling.target_center.assign([0.0, 0.0])
    tf.train.Checkpoint(model=other).restore(path)
    np.testing.assert_array_equal(other.predict_f(XNEW)[0], scaled.predict_f(XNEW)[0])


def test_output_indices_are_not_scaled(rng):
    """Standardised, the indices 0, 1, 2 would be cut off to 0 and 1: two outputs for three."""
    index = rng.integers(3, size=(30, 1)).astype(float)
    X = np.hstack([5.0 + rng.normal(size=(30, 1)), index])
    data = X, rng.normal(size=(30, 1))
    kernel = gpflow.kernels.Matern32(active_dims=[0]) * gpflow.kernels.Coregion(
        3, 2, active_dims=[1]
    )

    def model(scaling):
        return gpn.GPNet(
            kernel,
            gpflow.likelihoods.Gaussian(),
            gpn.RFE(kernel, 2, 5),
            num_data=30,
            scaling=scaling,
        )

    with pytest.raises(ValueError, match=r"scaling changes X columns \[1\], which hold the output"):
        model(gpn.Scaling.from_data(data))
    with pytest.raises(ValueError, match="scaling changes X columns"):
        model(gpn.Scaling(0.0, 2.0))
    scaling = gpn.Scaling.from_data(data, unscaled=[1])
    inputs = model(scaling).scaled_inputs(X)
    np.testing.assert_array_equal(inputs[:, 1], X[:, 1])
    np.testing.assert_allclose(np.std(inputs[:, 0]), 1.0)
    with pytest.raises(ValueError, match=r"unscaled must be columns of X of shape \(30, 2\), got"):
        gpn.Scaling.from_data(data, unscaled=[2])
