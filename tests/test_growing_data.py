"""Growing data: new rows alone, or all rows again, against training on all rows at once."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.likelihoods import Bernoulli, Gaussian, Poisson, StudentT

import gpflow_gpnet as gpn
from gpflow_gpnet.likelihoods import KnownNoise, MissingTargets, Weighted

RBF = gpflow.kernels.SquaredExponential


def make_data(rng, num=40, kind=Gaussian):
    X = rng.uniform(-2, 2, size=(num, 1))
    f = np.sin(3 * X)
    if kind is Poisson:
        return X, rng.poisson(np.exp(f)).astype(float)
    if kind is Bernoulli:
        return X, (rng.uniform(size=f.shape) < 0.5 + 0.4 * f).astype(float)
    return X, f + 0.2 * rng.normal(size=f.shape)


def make_model(likelihood, num_data, network=None, **kwargs):
    """Everything but the weights is frozen, and the network's centre is 0."""
    kernel = RBF(1.3, 0.7)
    network = gpn.RFE(kernel, 1, 15) if network is None else network(kernel)
    model = gpn.GPNet(kernel, likelihood, network, num_data=num_data, **kwargs)
    gpflow.set_trainable(model, False)
    gpflow.set_trainable(network.q_mu, True)
    gpflow.set_trainable(network.q_sqrt, True)
    return model


def part(data, rows):
    return tuple(values[rows] for values in data)


def fitted(model, data, **kwargs):
    kwargs = {"num_steps": 1, "seed": 0, "progress": False, **kwargs}
    optimizer = gpn.FunctionalMirrorDescent(step_size=1.0, prior_correction=False)
    optimizer.build(model)
    model.inference_network.initialise(np.zeros([1, 1]))  # the same centre for all parts
    model.inference_network.q_mu.assign(np.full_like(model.inference_network.q_mu, 1e-12))
    gpn.fit(model, data, optimizer=optimizer, **kwargs)
    return optimizer


def assert_same_posterior(model, other, tolerance=1e-8):
    for name in ("q_mu", "q_sqrt"):
        got, expected = (getattr(m.inference_network, name).numpy() for m in (model, other))
        np.testing.assert_allclose(got, expected, atol=tolerance * np.abs(expected).max())


NETWORKS = {
    "RFE": None,
    "InducingFeatures": lambda kernel: gpn.InducingFeatures(kernel, np.linspace(-2, 2, 7)[:, None]),
    "AdaptiveBasis": lambda kernel: gpn.AdaptiveBasis((6,), kernel=kernel, input_dim=1),
    "LinearSum": lambda kernel: gpn.RFE(kernel, 1, 4) + gpn.RFE(RBF(1.0, 0.2), 1, 5),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_streamed_rows_are_all_rows_at_once(rng, name):
    """Also in another order, and into a number of data that is a variable."""
    data = make_data(rng)
    whole = make_model(Gaussian(0.04), 40, NETWORKS[name])
    fitted(whole, data)
    model = make_model(Gaussian(0.04), tf.Variable(10.0, dtype=tf.float64), NETWORKS[name])
    optimizer = fitted(model, part(data, slice(10)))
    for rows in (slice(31, 40), slice(10, 30), slice(30, 31)):
        optimizer.absorb(part(data, rows))
    assert_same_posterior(model, whole)
    assert float(model.num_data) == 40


ROW_DATA = {
    "weights": lambda rng: (Weighted(Gaussian(0.04)), rng.uniform(0.5, 2.0, size=40)),
    "noise": lambda rng: (KnownNoise(), rng.uniform(0.02, 0.2, size=40)),
    "missing": lambda rng: (MissingTargets(Gaussian(0.04)), None),
}


@pytest.mark.parametrize("kind", ROW_DATA)
def test_row_data_stream_too(rng, kind):
    X, Y = make_data(rng)
    likelihood, row_data = ROW_DATA[kind](rng)
    if kind == "missing":
        Y[rng.uniform(size=Y.shape) < 0.3] = np.nan
    data = (X, Y) if row_data is None else (X, Y, row_data)
    whole, model = (make_model(likelihood, number) for number in (40, 12))
    fitted(whole, data)
    optimizer = fitted(model, part(data, slice(12)))
    optimizer.absorb(part(data, slice(12, 40)))
    assert_same_posterior(model, whole)


def test_a_model_at_the_prior_absorbs_its_first_rows(rng):
    """Its ``num_data`` is then what it has seen, and its network has seen the inputs."""
    data = make_data(rng)
    X, Y = data[0] + 100.0, data[1]
    model = make_model(Gaussian(0.04), 1)
    optimizer = gpn.FunctionalMirrorDescent()
    optimizer.build(model)
    optimizer.absorb(part((X, Y), slice(25)))
    np.testing.assert_allclose(model.inference_network.center, X[:25].mean(axis=0))
    optimizer.absorb(part((X, Y), slice(25, 40)))
    assert model.num_data == 40
    features = model.inference_network.features(X).numpy()
    precision = np.eye(30) + features.T @ features / 0.04
    expected = np.linalg.solve(precision, features.T @ Y / 0.04)
    np.testing.assert_allclose(model.inference_network.q_mu, expected, atol=1e-8)


@pytest.mark.parametrize("kind", [Bernoulli, Poisson, StudentT])
def test_sites_of_other_likelihoods_reach_their_fixed_point(rng, kind):
    """The new rows' sites at the posterior give it back, and all rows at once are near."""
    data = make_data(rng, kind=kind)
    model = make_model(kind(), 20)
    optimizer = fitted(model, part(data, slice(20)), num_steps=40)
    before = optimizer._natural_parameters.present()
    rest = part(data, slice(20, 40))
    optimizer.absorb(rest, iterations=60)
    sites = optimizer._evidence(*map(tf.constant, rest))
    after = optimizer._natural_parameters.present()
    for new, old, site in zip(after, before, sites, strict=True):
        np.testing.assert_allclose(new, old + site, atol=1e-7 * np.abs(new).max())

    whole, Xnew = make_model(kind(), 40), np.linspace(-2, 2, 9)[:, None]
    fitted(whole, data, num_steps=100)
    (mean, var), (expected, expected_var) = model.predict_f(Xnew), whole.predict_f(Xnew)
    assert np.max(np.abs(mean - expected) / np.sqrt(expected_var)) < 0.3
    np.testing.assert_allclose(var, expected_var, rtol=0.3)


@pytest.mark.parametrize("kind", [Gaussian, Bernoulli])
def test_training_goes_on_with_all_rows(rng, kind):
    """The other way: set the number of data and call fit with all rows, old and new."""
    data = make_data(rng, kind=kind)
    likelihood = {Gaussian: lambda: Gaussian(0.04), Bernoulli: Bernoulli}[kind]
    whole, model = (make_model(likelihood(), number) for number in (40, 25))
    fitted(whole, data, num_steps=60)
    fitted(model, part(data, slice(25)), num_steps=20)
    model.num_data = 40
    gpn.fit(model, data, num_steps=60, seed=0, progress=False)  # by the same optimiser
    assert_same_posterior(model, whole, 1e-7)


def test_training_goes_on_after_absorbing(rng):
    data = make_data(rng)
    model = make_model(Gaussian(0.04), 30)
    optimizer = fitted(model, part(data, slice(30)))
    optimizer.absorb(part(data, slice(30, 40)))
    before = model.inference_network.q_mu.numpy()
    gpn.fit(model, data, num_steps=2, seed=0, progress=False)  # nothing new in them
    np.testing.assert_allclose(model.inference_network.q_mu, before, atol=1e-8)


def test_frozen_mean_stays_while_the_covariance_absorbs(rng):
    data = make_data(rng)
    whole, model = (make_model(Gaussian(0.04), number) for number in (40, 25))
    fitted(whole, data)
    optimizer = fitted(model, part(data, slice(25)))
    gpflow.set_trainable(model.inference_network.q_mu, False)
    before = model.inference_network.q_mu.numpy()
    optimizer.absorb(part(data, slice(25, 40)))
    np.testing.assert_array_equal(model.inference_network.q_mu, before)
    root, expected = (m.inference_network.q_sqrt.numpy() for m in (model, whole))
    np.testing.assert_allclose(root, expected, atol=1e-8)


def test_targets_of_zero_are_data_too(rng):
    """They leave the mean at 0: training that goes on must not centre the network anew."""
    X = rng.uniform(1, 2, size=(20, 1))
    model = make_model(Gaussian(0.04), 20)
    gpn.fit(model, (X, np.zeros_like(X)), num_steps=2, seed=0, progress=False)
    center = model.inference_network.center.numpy()
    np.testing.assert_allclose(center, X.mean(axis=0))
    assert not model.inference_network.q_mu.numpy().any()
    assert model.inference_network.is_trained
    model.optimizer.absorb((X[:5] + 7.0, np.ones([5, 1])))
    np.testing.assert_array_equal(model.inference_network.center, center)
    assert model.num_data == 25


@pytest.mark.parametrize("covariance", ["full", "diag", "kronecker", 2])
@pytest.mark.usefixtures("float_type")
def test_a_new_network_is_not_trained(covariance):
    assert not gpn.RFE(RBF(), 1, 300, covariance).is_trained


def test_what_cannot_be_absorbed_is_refused(rng):
    X, Y = make_data(rng)
    optimizer = gpn.FunctionalMirrorDescent()
    with pytest.raises(ValueError, match="has no model yet"):
        optimizer.absorb((X, Y))
    kernel = RBF()
    diagonal = gpn.GPNet(kernel, Gaussian(), gpn.RFE(kernel, 1, 5, "diag"), num_data=40)
    optimizer.build(diagonal)
    with pytest.raises(ValueError, match=r"absorb needs natural steps, .* got RFE"):
        optimizer.absorb((X, Y))
    model = make_model(Gaussian(0.04), 40)
    optimizer = fitted(model, (X, Y))
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        optimizer.absorb((X, Y), iterations=0)
    with pytest.raises(ValueError, match="has NaN or infinite values in 1 rows"):
        optimizer.absorb((np.full([1, 1], np.nan), Y[:1]))
    gpflow.set_trainable(model, False)
    with pytest.raises(ValueError, match="both are frozen"):
        optimizer.absorb((X, Y))
    assert model.num_data == 40


def mixed(W, likelihood, num_data):
    """Latent GPs of different lengthscales, and no correction to draw."""
    kernels = [RBF(1.0, 0.5 + 0.2 * latent) for latent in range(W.shape[1])]
    kernel = gpflow.kernels.LinearCoregionalization(kernels, W=W)
    network = gpn.InducingFeatures(kernel, np.linspace(-2, 2, 7)[:, None])
    model = gpn.GPNet(kernel, likelihood, network, num_latent_gps=W.shape[1], num_data=num_data)
    gpflow.set_trainable(model, False)
    gpflow.set_trainable(network.q_mu, True)
    gpflow.set_trainable(network.q_sqrt, True)
    return model


@pytest.mark.parametrize("latents", [2, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_mixed_latent_gps_absorb_the_means_of_their_joint_posterior(rng, latents):
    """One alike for all would overshoot as many times as there are latent GPs."""
    X, _ = make_data(rng)
    W = np.ones([2, latents]) + 0.1 * rng.normal(size=[2, latents])
    Y = np.concatenate([np.sin(3 * X), X], axis=1) + 0.2 * rng.normal(size=[len(X), 2])
    model = mixed(W, Gaussian(0.04), len(X))
    optimizer = gpn.FunctionalMirrorDescent()
    optimizer.build(model)
    optimizer.absorb((X, Y))
    features = model.inference_network.features(X).numpy()  # [L, N, F]
    size = features.shape[-1]
    whole = np.concatenate(
        [np.concatenate([w * phi for w, phi in zip(row, features, strict=True)], 1) for row in W]
    )
    precision = np.eye(latents * size) + whole.T @ whole / 0.04
    mean = np.linalg.solve(precision, whole.T @ Y.T.ravel() / 0.04).reshape(latents, size)
    np.testing.assert_allclose(model.inference_network.q_mu, mean.T, atol=1e-8)
    root = model.inference_network.q_sqrt.numpy()
    for latent in range(latents):
        own = slice(latent * size, (latent + 1) * size)
        cov = np.linalg.inv(precision[own, own])
        np.testing.assert_allclose(root[latent] @ root[latent].T, cov, atol=1e-8)
    # The exact posterior's mean of the outputs, from wherever steps have led.
    gpn.fit(model, (X, Y), num_steps=2, batch_size=15, seed=0, progress=False)
    again = mixed(W, Gaussian(0.04), len(X))
    gpn.fit(again, (X, Y), num_steps=1, batch_size=40, seed=0, progress=False)
    np.testing.assert_allclose(model.predict_f(X)[0], again.predict_f(X)[0], atol=1e-8)
    np.testing.assert_allclose(model.inference_network.q_mu, mean.T, atol=1e-8)


def test_mixed_latent_gps_whose_mean_is_frozen_absorb_the_covariance_alone(rng):
    X, Y = make_data(rng)
    model, free = (mixed(np.ones([1, 3]), Gaussian(0.04), len(X)) for _ in range(2))
    gpflow.set_trainable(model.inference_network.q_mu, False)
    for each in (model, free):
        optimizer = gpn.FunctionalMirrorDescent()
        optimizer.build(each)
        optimizer.absorb((X, Y))
    assert not model.inference_network.q_mu.numpy().any()
    roots = [each.inference_network.q_sqrt.numpy() for each in (model, free)]
    np.testing.assert_allclose(*roots, atol=1e-9)


def test_absorbing_counts_through_mixed_latent_gps_never_lowers_the_bound(rng):
    data = make_data(rng, kind=Poisson)
    model = mixed(np.ones([1, 6]), Poisson(), len(data[0]))
    optimizer = gpn.FunctionalMirrorDescent()
    optimizer.build(model)
    optimizer.absorb(data, iterations=1)
    bounds = [float(model.elbo(data))]
    for iterations in (5, 50):
        again = mixed(np.ones([1, 6]), Poisson(), len(data[0]))
        optimizer = gpn.FunctionalMirrorDescent()
        optimizer.build(again)
        optimizer.absorb(data, iterations=iterations)
        bounds.append(float(again.elbo(data)))
    start = float(mixed(np.ones([1, 6]), Poisson(), len(data[0])).elbo(data))
    assert start < bounds[0] < bounds[1] <= bounds[2]
    # The best that full-batch natural steps find.
    trained = mixed(np.ones([1, 6]), Poisson(), len(data[0]))
    settings = {"num_steps": 100, "batch_size": len(data[0]), "seed": 0, "progress": False}
    gpn.fit(trained, data, optimizer=gpn.FunctionalMirrorDescent(0.15), **settings)
    assert bounds[2] > float(trained.elbo(data)) - 0.1


def test_natural_steps_of_mixed_latent_gps_amplify_no_error(rng):
    """With β = 1 an overshoot, as from the prior, would grow fivefold at each of them."""
    X, Y = make_data(rng)
    model = mixed(np.ones([1, 6]), Gaussian(0.04), len(X))
    before = float(model.elbo((X, Y)))
    optimizer = gpn.FunctionalMirrorDescent(1.0)
    for _ in range(10):
        optimizer.minimize(model, (X, Y))
    assert float(model.elbo((X, Y))) > before + 1000.0


@pytest.mark.parametrize(
    "noise, latents, steps", [(Gaussian(0.01), 6, 30), (None, 2, 3)], ids=["mixed", "noise varies"]
)
def test_polishing_never_lowers_the_bound(rng, noise, latents, steps):
    """A full natural step does, from latent GPs that overshoot or are far from their optimum."""
    X, Y = make_data(rng, 60)
    if noise is None:
        Y = np.sin(2 * X) + np.exp(np.sin(2 * X) - 1.0) * rng.normal(size=X.shape)
    ends = []
    for polish in (False, True):
        if noise is None:
            model = gpn.GPNet(
                kernel := RBF(),
                gpflow.likelihoods.HeteroskedasticTFPConditional(),
                gpn.InducingFeatures(kernel, X[:20], num_latent_gps=2),
                num_latent_gps=2,
                num_data=len(X),
            )
        else:
            model = mixed(np.ones([1, latents]), noise, len(X))
        settings = {"batch_size": 10, "seed": 0, "progress": False, "polish": polish}
        gpn.fit(model, (X, Y), num_steps=steps, **settings)
        ends.append(float(model.elbo((X, Y))))
    assert ends[1] >= ends[0]
