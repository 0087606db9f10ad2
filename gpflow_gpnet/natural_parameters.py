"""Natural parameters Λ = V⁻¹ and θ = Λ m of a linear network's weights: sites, and mirror steps."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from . import gaussians
from .inference_networks import LinearNetwork
from .replicas import Share

__all__ = [
    "NaturalParameters",
    "Site",
    "correction_parameters",
    "coupling",
    "frozen",
    "longest_step",
    "plus_prior",
]

_REFINEMENTS = 2
"""Conjugate-gradient iterations on the weights' mean between factorisations."""

_ROUNDED_PRIOR = 0.5
"""Rounding of Λ, in units of the prior's precision, from which on variances are wrong."""


class Site(NamedTuple):
    """A Gaussian factor for each row and latent GP, from gradients at the current marginals."""

    precision: tf.Tensor  # [B, L]
    shift: tf.Tensor  # [B, L], precision times mean

    @classmethod
    def from_gradients(
        cls, mean: tf.Tensor, d_mean: tf.Tensor, d_variance: tf.Tensor | None
    ) -> Site:
        """From the loss's gradients by the marginals (Khan and Lin 2017), precision kept >= 0.

        :param mean: that of the weights' share in f.
        :param d_variance: None where the expected log-likelihood does not depend on it.
        """
        precision = tf.zeros_like(mean) if d_variance is None else tf.maximum(2.0 * d_variance, 0.0)
        return cls(precision, precision * mean - d_mean)

    def parameters(self, features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Φᵀ R⁻¹ Φ [L, F, F] and Φᵀ R⁻¹ y [L, F] of features [K, B, F]."""
        weighted = tf.transpose(tf.sqrt(self.precision))[..., None] * features  # [L, B, F]
        precision = tf.matmul(weighted, weighted, transpose_a=True)
        shift = tf.matmul(features, tf.transpose(self.shift)[..., None], transpose_a=True)
        return precision, shift[..., 0]


def plus_prior(precision: tf.Tensor, replicas: int) -> tf.Tensor:
    """I + precision [L, F, F], of which each replica gives its part."""
    return gaussians.add_diagonal(precision, tf.ones_like(precision[:, 0, 0]) / replicas)


def correction_parameters(
    features: tf.Tensor,
    factors: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
    offset: tf.Tensor | None,
    share: Share,
) -> tuple[tf.Tensor, tf.Tensor]:
    """C_M = Φᵀ (K⁻¹ - K_φ⁻¹) Φ [L, F, F], I + C_M never indefinite, and -Φᵀ K⁻¹ offset [L, F].

    Of both a share's part: with K = L Lᵀ they are sums over the rows of L⁻¹ Φ.
    """
    prior, features_prior, _ = factors
    shape = tf.concat([tf.shape(prior)[:1], tf.shape(features)[1:]], axis=0)
    whitened = tf.linalg.triangular_solve(prior, tf.broadcast_to(features, shape))
    explained = tf.linalg.triangular_solve(features_prior, features)
    whitened, explained = share.rows(whitened, -2), share.rows(explained, -2)
    precision = tf.matmul(whitened, whitened, transpose_a=True) - tf.matmul(
        explained, explained, transpose_a=True
    )
    if offset is None:
        return precision, tf.zeros_like(precision[..., 0])
    pull = tf.linalg.triangular_solve(prior, tf.transpose(offset)[..., None])
    return precision, -tf.matmul(whitened, share.rows(pull, -2), transpose_a=True)[..., 0]


def coupling(features: tf.Tensor, mixing: tf.Tensor, precision: tf.Tensor) -> tf.Tensor:
    """Precision [L, F, L, F] of all weights together, from f = W g with independent sites.

    :param features: of the latent GPs g, [K, B, F].
    :param mixing: W [P, L]; precision: of the sites on f, [B, P].
    """
    number, (size, width) = mixing.shape[-1], tf.unstack(tf.shape(features)[-2:])
    features = tf.broadcast_to(features, [number, size, width])
    pairs = tf.einsum("bp,pl,pm->lmb", precision, mixing, mixing)
    blocks = [  # one latent GP with all: [L, F, F]
        tf.matmul(features[latent], pairs[latent][..., None] * features, transpose_a=True)
        for latent in range(number)
    ]
    return tf.transpose(tf.stack(blocks), [0, 2, 1, 3])


def longest_step(mixing: tf.Tensor) -> tf.Tensor:
    """Largest β of natural steps in which no error of the means grows, for a mixing W [P, L].

    Sites of a latent GP are taken with the others' old means: a Jacobi iteration, of which an error
    is multiplied by 1 - β λ once Λ is that of the sites, λ an eigenvalue of Wᵀ W normalised to 1 on
    its diagonal and at most its largest sum of a row. (From a wide prior the first step is Newton's
    for any β, and overshoots.)
    """
    columns = tf.math.l2_normalize(tf.convert_to_tensor(mixing), axis=0)
    coupling = tf.abs(tf.matmul(columns, columns, transpose_a=True))
    return 1.0 / tf.maximum(tf.reduce_max(tf.reduce_sum(coupling, axis=1)), 1.0)


def frozen(network: LinearNetwork) -> tuple[bool, bool]:
    """Whether q_mu is, and whether q_sqrt is."""
    return not network.q_mu.trainable, not network.q_sqrt.trainable


class NaturalParameters(tf.Module):
    """Λ = V⁻¹ [L, F, F] and θ = Λ m [L, F] of a network's weights, kept beside q_mu and q_sqrt.

    They are read off q_mu and q_sqrt again whenever somebody else has changed these. Where
    q_sqrt is frozen, Λ is that of the posterior tracked, not V⁻¹.
    """

    def __init__(self, network: LinearNetwork) -> None:
        super().__init__(name="natural_parameters")
        num_features, num_latents = network.q_mu.shape
        self._network = network
        dtype = network.q_mu.dtype
        self.precision = tf.Variable(
            tf.zeros([num_latents, num_features, num_features], dtype), trainable=False
        )
        self.shift = tf.Variable(tf.zeros([num_latents, num_features], dtype), trainable=False)
        self.age = tf.Variable(tf.zeros([], dtype), trainable=False)  # of q_sqrt, in step sizes
        self.fingerprint = tf.Variable(self._fingerprint() + 1, trainable=False)

    def _fingerprint(self) -> tf.Tensor:
        """Wrap-around sums of the bits of q_mu and q_sqrt: exact, whatever the order."""
        return tf.stack(
            [
                tf.reduce_sum(tf.bitcast(parameter.unconstrained_variable.value(), tf.int32))
                for parameter in (self._network.q_mu, self._network.q_sqrt)
            ]
        )

    def _read(self) -> tuple[tf.Tensor, tf.Tensor]:
        root = tf.convert_to_tensor(self._network.q_sqrt)
        identity = tf.eye(tf.shape(root)[-1], batch_shape=tf.shape(root)[:1], dtype=root.dtype)
        inverse = tf.linalg.triangular_solve(root, identity)
        precision = tf.matmul(inverse, inverse, transpose_a=True)
        mean = tf.transpose(self._network.q_mu)[..., None]
        return precision, tf.matmul(precision, mean)[..., 0]

    def present(self, unchanged: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Λ and θ as they are now."""
        if unchanged is None:
            unchanged = tf.reduce_all(self._fingerprint() == self.fingerprint)
        return tf.cond(unchanged, lambda: (self.precision.value(), self.shift.value()), self._read)

    def mix(
        self,
        beta: tf.Tensor | float,
        precision: tf.Tensor,
        shift: tf.Tensor,
        staleness: float = 0.0,
    ) -> None:
        """Step of size β from the present natural parameters to the given ones.

        What is frozen of q_mu and q_sqrt stays: with the mean frozen the covariance alone moves;
        with the covariance frozen Λ and θ are tracked as ever, and q_mu is their mean (natural
        gradients would overshoot from a wide covariance).
        """
        mean_stays, root_stays = frozen(self._network)
        if mean_stays and root_stays:
            return
        unchanged = tf.reduce_all(self._fingerprint() == self.fingerprint)
        old_precision, old_shift = self.present(unchanged)
        beta = tf.cast(beta, precision.dtype)
        new_precision = (1.0 - beta) * old_precision + beta * precision
        new_shift = (1.0 - beta) * old_shift + beta * shift
        if mean_stays:
            new_shift = self._times_mean(new_precision)
        self.precision.assign(new_precision)
        self.shift.assign(new_shift)
        self.age.assign_add(beta)
        if not staleness or mean_stays or root_stays:
            self._factorise()
        else:
            fresh = tf.logical_and(unchanged, self.age <= staleness)
            tf.cond(fresh, self._refine_mean, self._factorise)
        self.fingerprint.assign(self._fingerprint())

    def jump(
        self,
        prior: tuple[tf.Tensor, tf.Tensor],
        evidence: tuple[tf.Tensor, tf.Tensor],
        coupling: tf.Tensor | None = None,
    ) -> None:
        """To the best q(w) for Gaussian sites.

        :param prior: Λ and θ of what q(w) diverges from; evidence: those of the sites at the
            present q_mu.
        :param coupling: precision [L, F, L, F] that the sites give the weights of all latent GPs
            together, where these are mixed: then the means depend on each other, and precisions
            do not.
        """
        precision, shift = prior[0] + evidence[0], prior[1] + evidence[1]
        mean_stays, _ = frozen(self._network)
        if coupling is not None:
            slope = shift - self._times_mean(precision)  # of the bound, by the means
            number, size = slope.shape
            own = tf.linalg.LinearOperatorBlockDiag(
                [tf.linalg.LinearOperatorFullMatrix(part) for part in tf.unstack(prior[0])]
            ).to_dense()
            joint = own + tf.reshape(coupling, [number * size, number * size])
            root = gaussians.cholesky(joint, "the precision of all latent GPs' weights")
            move = tf.linalg.cholesky_solve(root, tf.reshape(slope, [-1, 1]))
            if not mean_stays:
                self._network.q_mu.assign_add(tf.transpose(tf.reshape(move, slope.shape)))
            shift = self._times_mean(precision)
        self.mix(1.0, precision, shift)

    def divergence(self, precision: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        """KL of q(w) from the Gaussian of other natural parameters, nats, up to a constant."""
        root, mean = tf.convert_to_tensor(self._network.q_sqrt), tf.transpose(self._network.q_mu)
        moments = tf.concat([root, mean[..., None]], axis=-1)  # E[w wᵀ] = moments momentsᵀ
        square = 0.5 * tf.reduce_sum(moments * tf.matmul(precision, moments))
        log_det = tf.reduce_sum(tf.math.log(tf.abs(tf.linalg.diag_part(root))))
        return square - tf.reduce_sum(shift * mean) - log_det

    def warn_of_rounding(self) -> None:
        """Say so where Λ = I + … is so large that its float type does not hold the prior's I."""
        largest = float(tf.reduce_max(tf.linalg.diag_part(self.precision)))
        # Rounding of the factor's products adds up as that of independent errors.
        errors = np.sqrt(self.precision.shape[-1]) * largest
        if errors * np.finfo(self.precision.dtype.as_numpy_dtype).eps > _ROUNDED_PRIOR:
            name = self.precision.dtype.name
            warnings.warn(
                f"The weights' precision has entries of {largest:.2g}, beside which {name} rounds "
                "the prior's 1 away: predicted variances may be wrong. The noise variance is tiny "
                "for the kernel's variance and the number of rows: scale the targets, raise it, or "
                "use float64.",
                UserWarning,
                stacklevel=3,
            )

    def _times_mean(self, matrix: tf.Tensor) -> tf.Tensor:
        return tf.matmul(matrix, tf.transpose(self._network.q_mu)[..., None])[..., 0]

    def _factorise(self) -> None:
        """Read q_mu and q_sqrt, but what is frozen, off the natural parameters."""
        mean_stays, root_stays = frozen(self._network)
        root = gaussians.lower_root_of_inverse(self.precision.value(), "the weights' precision")
        if not mean_stays:
            mean = tf.matmul(root, tf.matmul(root, self.shift[..., None], transpose_a=True))
            self._network.q_mu.assign(tf.transpose(mean[..., 0]))
        if not root_stays:
            self._network.q_sqrt.assign(root)
            self.age.assign(tf.zeros_like(self.age))

    def _refine_mean(self) -> None:
        """Improve q_mu with the last factorisation, and leave q_sqrt."""
        mean = gaussians.conjugate_gradients(
            self.precision.value(),
            self.shift.value(),
            tf.transpose(self._network.q_mu),
            tf.convert_to_tensor(self._network.q_sqrt),
            _REFINEMENTS,
        )
        self._network.q_mu.assign(tf.transpose(mean))
