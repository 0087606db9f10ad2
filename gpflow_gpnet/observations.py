"""p(y | f) of GPflow's likelihoods, as distributions with a CDF and samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes import check_shapes
from gpflow import likelihoods
from gpflow.base import MeanAndVariance, TensorType
from gpflow.utilities import Dispatcher

from .likelihoods import KnownNoise, base_likelihood

__all__ = [
    "LikelihoodDispatcher",
    "conditional_distribution",
    "predict_mean_and_var",
    "sample_observations",
]

tfd = tfp.distributions


class LikelihoodDispatcher(Dispatcher):
    """Multiple dispatch on the class of the first argument alone, a likelihood.

    >>> from gpflow_gpnet.observations import conditional_distribution
    >>> conditional_distribution(gpflow.likelihoods.Poisson(), X, tf.zeros([7, 20, 1])).batch_shape
    TensorShape([7, 20, 1])
    """

    def __call__(self, likelihood: likelihoods.Likelihood, *args: Any) -> Any:
        """Call the function registered for the likelihood's class or its nearest base class.

        :raises NotImplementedError: where there is none, saying how to add one.
        """
        implementation = self.dispatch(type(likelihood))
        if implementation is None:
            name = type(likelihood).__name__
            known = ", ".join(sorted(known_class.__name__ for (known_class,) in self.funcs))
            raise NotImplementedError(
                f"{name} has no {self.name}; likelihoods that have: {known}. Add it with "
                f"@gpflow_gpnet.observations.{self.name}.register({name})."
            )
        return implementation(likelihood, *args)


conditional_distribution = LikelihoodDispatcher("conditional_distribution")
"""``conditional_distribution(likelihood, X, F) -> tfp.distributions.Distribution`` of p(y | x, f).

X is [N, D] and F [..., N, L]; the distribution is a scalar one with batch shape [..., N, P].
Distributions over integers have no event-space bijector, as is TensorFlow Probability's rule. Your
own likelihood is added by ::

    @gpflow_gpnet.observations.conditional_distribution.register(Laplace)
    def _laplace(likelihood, X, F):
        return tfp.distributions.Laplace(F, likelihood.scale)
"""


@check_shapes(
    "X: [batch..., D]",
    "mean: [batch..., L]",
    "variance: [batch..., L]",
    "return[0]: [batch..., P]",
    "return[1]: [batch..., P]",
)
def predict_mean_and_var(
    likelihood: likelihoods.Likelihood, X: TensorType, mean: tf.Tensor, variance: tf.Tensor
) -> MeanAndVariance:
    """Mean and variance of y at each row of X, for f ~ N(mean, variance).

    >>> from gpflow_gpnet.observations import predict_mean_and_var
    >>> predict_mean_and_var(likelihood, X, *model.predict_f(X))[1].shape
    TensorShape([20, 1])

    As the likelihood's own, but where that is GPflow's quadrature of E[y²] - E[y]², which cancels
    for large targets and can be negative: Var[E[y | f]] + E[Var[y | f]] by the same quadrature.
    """
    base = base_likelihood(likelihood)
    theirs = likelihoods.QuadratureLikelihood._predict_mean_and_var
    if getattr(type(base), "_predict_mean_and_var", None) is not theirs:
        return likelihood.predict_mean_and_var(X, mean, variance)

    def conditional_mean(F: TensorType, X: TensorType) -> tf.Tensor:
        return base.conditional_mean(X, F)

    expected = base.quadrature(conditional_mean, mean, variance, X=X)

    def spread(F: TensorType, X: TensorType) -> tf.Tensor:
        return base.conditional_variance(X, F) + tf.square(base.conditional_mean(X, F) - expected)

    return expected, base.quadrature(spread, mean, variance, X=X)


@check_shapes("X: [N, D]", "mean: [N, L]", "variance: [N, L]", "return: [S, N, P]")
def sample_observations(
    likelihood: likelihoods.Likelihood,
    X: TensorType,
    mean: tf.Tensor,
    variance: tf.Tensor,
    num_samples: int,
    seed: tf.Tensor,
) -> tf.Tensor:
    """Draws of y at each row of X, independent between rows, for f ~ N(mean, variance).

    >>> from gpflow_gpnet.observations import sample_observations
    >>> mean, variance = model.predict_f(X)
    >>> sample_observations(likelihood, X, mean, variance, 4, tf.constant([0, 1])).shape
    TensorShape([4, 20, 1])

    :param seed: stateless seed [2].
    """
    f_seed, y_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    shape = tf.concat([[num_samples], tf.shape(mean)], axis=0)
    noise = tf.random.stateless_normal(shape, f_seed, dtype=mean.dtype)
    F = mean + tf.sqrt(tf.maximum(variance, 0.0)) * noise
    return tf.cast(conditional_distribution(likelihood, X, F).sample(seed=y_seed), mean.dtype)


def _in_range(parameter: tf.Tensor) -> tf.Tensor:
    """A positive parameter that neither it nor its inverse is 0 or infinite."""
    limits = np.finfo(parameter.dtype.as_numpy_dtype)
    return tf.clip_by_value(parameter, 10.0 * limits.tiny, 0.1 * limits.max)


def _incomplete_gamma(shape: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Regularised lower incomplete gamma function, by Wilson and Hilferty (1931) for large shapes.

    TensorFlow's is then wrong on CPUs (2.21: by 1/2 at 1e7); theirs by 1e-7, in float32 by 1e-5.
    """
    largest = 1e5 if shape.dtype == tf.float64 else 1e3
    cube = tf.pow(x / shape, tf.cast(1.0 / 3.0, shape.dtype)) - 1.0 + 1.0 / (9.0 * shape)
    normal = tfd.Normal(tf.zeros([], shape.dtype), tf.ones([], shape.dtype))
    return tf.where(
        shape > largest,
        normal.cdf(3.0 * tf.sqrt(shape) * cube),
        tf.math.igamma(tf.minimum(shape, largest), x),
    )


class _Gamma(tfp.distributions.Gamma):
    def _cdf(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.maximum(x, 0.0) * self.rate
        return _incomplete_gamma(tf.broadcast_to(self.concentration, tf.shape(x)), x)


class _Poisson(tfp.distributions.Poisson):
    def _cdf(self, x: tf.Tensor) -> tf.Tensor:
        count = tf.floor(x)
        more = _incomplete_gamma(tf.maximum(count, 0.0) + 1.0, self.rate)
        return tf.where(count < 0.0, tf.zeros_like(more), 1.0 - more)


@conditional_distribution.register((likelihoods.Gaussian, KnownNoise))
def _normal(likelihood: likelihoods.Likelihood, X: TensorType, F: tf.Tensor) -> Any:
    return tfd.Normal(F, tf.sqrt(likelihood.conditional_variance(X, F)))


@conditional_distribution.register(likelihoods.StudentT)
def _student_t(likelihood: likelihoods.StudentT, X: TensorType, F: tf.Tensor) -> Any:
    return tfd.StudentT(tf.cast(likelihood.df, F.dtype), F, likelihood._scale(X))


@conditional_distribution.register(likelihoods.Exponential)
def _exponential(likelihood: likelihoods.Exponential, X: TensorType, F: tf.Tensor) -> Any:
    return tfd.Exponential(1.0 / _in_range(likelihood.invlink(F)))


@conditional_distribution.register(likelihoods.Gamma)
def _gamma(likelihood: likelihoods.Gamma, X: TensorType, F: tf.Tensor) -> Any:
    return _Gamma(likelihood._shape(X), rate=1.0 / _in_range(likelihood.invlink(F)))


@conditional_distribution.register(likelihoods.Beta)
def _beta(likelihood: likelihoods.Beta, X: TensorType, F: tf.Tensor) -> Any:
    mean, scale = likelihood.invlink(F), likelihood._scale(X)
    return tfd.Beta(_in_range(mean * scale), _in_range((1.0 - mean) * scale))


@conditional_distribution.register(likelihoods.Bernoulli)
def _bernoulli(likelihood: likelihoods.Bernoulli, X: TensorType, F: tf.Tensor) -> Any:
    probability = likelihood.invlink(F)
    # Not tfd.Bernoulli, whose CDF cannot be traced in float64.
    return tfd.Categorical(probs=tf.stack([1.0 - probability, probability], axis=-1))


@conditional_distribution.register(likelihoods.Poisson)
def _poisson(likelihood: likelihoods.Poisson, X: TensorType, F: tf.Tensor) -> Any:
    rate = likelihood.invlink(F) * tf.cast(likelihood.binsize, F.dtype)
    return _Poisson(rate)


@conditional_distribution.register(likelihoods.Ordinal)
def _ordinal(likelihood: likelihoods.Ordinal, X: TensorType, F: tf.Tensor) -> Any:
    """GPflow's probabilities, which sum to 0.998 (its probit is kept off 0 and 1), normalised."""
    edges = tf.cast(likelihood.bin_edges, F.dtype)
    below = tfd.Normal(F[..., None], likelihood.sigma).cdf(edges)
    zero = tf.zeros_like(below[..., :1])
    above = tf.concat([zero, below], axis=-1), tf.concat([below, zero + 1.0], axis=-1)
    return tfd.Categorical(probs=above[1] - above[0])


@conditional_distribution.register(likelihoods.Softmax)
def _softmax(likelihood: likelihoods.Softmax, X: TensorType, F: tf.Tensor) -> Any:
    return tfd.Categorical(logits=F[..., None, :])


@conditional_distribution.register(likelihoods.MultiClass)
def _multi_class(likelihood: likelihoods.MultiClass, X: TensorType, F: tf.Tensor) -> Any:
    right = 1.0 - tf.cast(likelihood.invlink.epsilon, F.dtype)
    wrong = (1.0 - right) / (likelihood.num_classes - 1.0)
    probs = tf.one_hot(tf.argmax(F, axis=-1), likelihood.num_classes, right, wrong, dtype=F.dtype)
    return tfd.Categorical(probs=probs[..., None, :])


@conditional_distribution.register(likelihoods.MultiLatentTFPConditional)
def _multi_latent(
    likelihood: likelihoods.MultiLatentTFPConditional, X: TensorType, F: tf.Tensor
) -> Any:
    return likelihood.conditional_distribution(F)
