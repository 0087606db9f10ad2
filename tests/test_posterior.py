"""``posterior()``: the same predictions as the model's, and never stale."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
from gpflow.posteriors import AbstractPosterior, PrecomputeCacheType

import gpflow_gpnet as gpn


@pytest.fixture
def model() -> gpn.GPNet:
    rng = np.random.default_rng(0)
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, 1, 5, num_latent_gps=2)
    network.q_mu.assign(rng.normal(size=(10, 2)))
    return gpn.GPNet(
        kernel,
        gpflow.likelihoods.Gaussian(),
        network,
        num_latent_gps=2,
        mean_function=gpflow.mean_functions.Constant(3.0),
        num_data=1,
    )


@pytest.mark.parametrize("full_cov", [False, True])
@pytest.mark.parametrize("full_output_cov", [False, True])
@pytest.mark.parametrize("cache", ["tensor", "variable", PrecomputeCacheType.TENSOR])
def test_predicts_as_the_model_does(model, cache, full_cov, full_output_cov) -> None:
    Xnew = np.linspace(-1.0, 1.0, 4)[:, None]
    posterior = model.posterior(cache)
    assert isinstance(posterior, AbstractPosterior)
    expected = model.predict_f(Xnew, full_cov, full_output_cov)
    for predict in (posterior.predict_f, posterior.fused_predict_f):
        for moment, wanted in zip(predict(Xnew, full_cov, full_output_cov), expected, strict=True):
            np.testing.assert_array_equal(moment, wanted)


def test_is_never_stale(model) -> None:
    Xnew = np.ones((1, 1))
    posterior = model.posterior()
    before, _ = posterior.predict_f(Xnew)
    model.inference_network.q_mu.assign(2.0 * model.inference_network.q_mu)
    after, _ = posterior.predict_f(Xnew)
    np.testing.assert_allclose(after - 3.0, 2.0 * (before - 3.0), rtol=1e-12)


@pytest.mark.parametrize("cache", ["nocache", None, PrecomputeCacheType.NOCACHE])
def test_without_a_cache_predict_f_asks_for_one_as_svgp_does(model, cache) -> None:
    posterior = model.posterior(cache)
    Xnew = np.ones((1, 1))
    with pytest.raises(ValueError, match="Cache has not been precomputed yet"):
        posterior.predict_f(Xnew)
    posterior.update_cache(PrecomputeCacheType.VARIABLE)
    np.testing.assert_array_equal(posterior.predict_f(Xnew)[0], posterior.fused_predict_f(Xnew)[0])


def test_an_unknown_cache_is_refused(model) -> None:
    with pytest.raises(ValueError, match="disk"):
        model.posterior("disk")
