# %% [markdown]
# # 6. Your own network, kernel and measurement distribution
#
# Three things can be yours: what represents the posterior, the prior, and where the two are
# compared.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import gpflow_gpnet as gpn
from gpflow_gpnet.spectral import SpectralMeasure, spectral_measure

NUM_STEPS = 500  # short: 3

dataset = gpn.datasets.load("snelson")
X, Y = dataset.X, dataset.Y
Xnew = np.linspace(X.min() - 2.0, X.max() + 2.0, 300)[:, None]


def fit(model, num_steps=NUM_STEPS, **settings):
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=gpn.LinearDecay(0.02, num_steps), **settings
    )
    return gpn.fit(
        model,
        (X, Y),
        optimizer=optimizer,
        num_steps=num_steps,
        batch_size=100,
        seed=0,
        progress=False,
    )


# %% [markdown]
# ## A network
#
# A network that is *linear in its weights*, f(x) = φ(x)ᵀw, needs only its features φ. It then has
# natural steps, whole-function samples and everything else. Here: 25 bumps (radial basis
# functions) with trainable centres and width. `weight_gaussian("full", F, L)` makes the Gaussian
# over F weights of L latent functions; where q is the prior, w ~ N(0, I), so the features carry
# the scale.


# %%
class Bumps(gpn.LinearNetwork):
    """Gaussian bumps with trainable centres."""

    def __init__(self, centres, width, num_latent_gps=1):
        super().__init__()
        self.centres = gpflow.Parameter(centres)  # [F]
        self.width = gpflow.Parameter(width, transform=gpflow.utilities.positive())
        self.height = gpflow.Parameter(0.5, transform=gpflow.utilities.positive())
        self.weights = gpn.weight_gaussian("full", len(centres), num_latent_gps)

    def features(self, X):  # [..., N, 1] -> [..., N, F]
        return self.height * tf.exp(-0.5 * ((X - self.centres) / self.width) ** 2)


kernel = gpflow.kernels.SquaredExponential()
bumps = Bumps(np.linspace(X.min() - 0.5, X.max() + 0.5, 25), width=0.5)
own_network = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), bumps, num_data=len(X))
fit(own_network)

# %% [markdown]
# Any other network is a `gpn.InferenceNetwork` with one method, `network(X, full_cov=False)`, that
# returns mean [N, L] and variance [N, L] or covariance [L, N, N]; it takes gradient steps. The
# README has an example. Layers of Keras inside it must be of `tf_keras`, which GPflow uses.
#
# Away from its bumps this network has nothing to say: its variance there is 0, the prior's is not.
# The figure below shows it.
#
# ## A kernel
#
# `RFE` draws frequencies from the kernel's *spectral density*, which it knows for GPflow's
# stationary kernels, their sums and products. Any other kernel has two ways:
#
# 1. `gpn.InducingFeatures(kernel, Z)`: needs nothing but the kernel's values. It is SVGP's
#    posterior.
# 2. Register the spectral measure of a stationary kernel of your own, and use `RFE`.
#
# As an example of the second, a kernel that GPflow does not have: the mean of a squared
# exponential over two lengthscales, a slow and a fast one. Its frequencies are Gaussian with
# either width.


# %%
class TwoScales(gpflow.kernels.IsotropicStationary):
    """k(r) = variance (exp(-r²/2) + exp(-(fast r)²/2)) / 2, r in lengthscales."""

    fast = 5.0

    def K_r2(self, r2):
        return 0.5 * self.variance * (tf.exp(-0.5 * r2) + tf.exp(-0.5 * self.fast**2 * r2))


@spectral_measure.register(TwoScales)
def _two_scales(kernel, input_dim):
    def draw(num, rng):  # frequencies [num, D] in units of 1 / lengthscale, and their shares
        width = np.where(np.arange(num) % 2, kernel.fast, 1.0)[:, None]
        return width * rng.standard_normal((num, input_dim)), np.full(num, 1.0 / num)

    lengthscales = np.broadcast_to(kernel.lengthscales.numpy(), [input_dim])
    return SpectralMeasure(float(kernel.variance.numpy()), lengthscales, draw)


kernel = TwoScales(lengthscales=1.5)
network = gpn.RFE(kernel, input_dim=1, num_features=100)
own_kernel = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=len(X))

# Before training the network is the prior: its covariance should be the kernel's.
_, covariance = own_kernel.predict_f(X, full_cov=True)
print(
    "largest error of the features' covariance:", np.abs(covariance[0] - kernel(X)).max().round(3)
)
fit(own_kernel)

# %% [markdown]
# The last number is what 100 random frequencies are worth: the error falls as the root of their
# number, and training moves them to where the data need them.
#
# ## A measurement distribution
#
# Measurement points are where the network is held to the prior: c(x) in the paper. By default they
# are the batch's inputs and copies of them, moved by about half a lengthscale. Give your own where
# you know where predictions will be asked for: a distribution of `gpn.measurement`, an array to
# draw from, or a function n ↦ [n, D].

# %%
c = gpn.measurement
kernel = gpflow.kernels.SquaredExponential()
wide = c.Mixture(c.BatchInputs(), c.Uniform(X.min() - 2.0, X.max() + 2.0))
own_measurement = gpn.GPNet(
    kernel,
    gpflow.likelihoods.Gaussian(0.1),
    gpn.RFE(kernel, input_dim=1, num_features=20),
    num_data=len(X),
    measurement=wide,
)
fit(own_measurement)


def to_the_right(n):
    """Any function will do; this one asks about the future alone."""
    return X.max() + tf.random.stateless_uniform([n, 1], [0, n], dtype=tf.float64)


print(c.as_measurement(to_the_right)(3).numpy().round(2).tolist())

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True)
panels = {"own network": own_network, "own kernel": own_kernel, "own measurement": own_measurement}
for ax, (title, model) in zip(axes, panels.items(), strict=True):
    gpn.plotting.posterior(model, Xnew, (X, Y), ax=ax)
    ax.set(title=title, xlabel="x", ylim=(-4, 4))
axes[0].set_ylabel("f(x)")
axes[0].legend(loc="lower left", fontsize=7)
plt.show()

# %% [markdown]
# Left: between the ends of the bumps the network does as well as any; beyond them its variance
# falls to 0, which is wrong, and no measurement points can mend what the features cannot express.
# Middle: the kernel's slow and fast parts, and the prior's band on both sides. Right: the wide
# c(x) keeps the band from closing beyond the data. 20 frequencies do not make it exact there: it
# comes out wider than the prior's. Notebook 9 measures this.
#
# ## When not to write your own
#
# Before you write a network: `RFE`, `AdaptiveBasis`, `NTK`, `BNN`, `InducingFeatures`, their sums
# `network + network`, and `Deterministic(function) + network` are there already; the guide says
# which is for what.
