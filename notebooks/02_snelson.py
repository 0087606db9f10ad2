# %% [markdown]
# # 2. The paper's Snelson figure, explained
#
# Shi, Khan and Zhu (2019) show in their figures 2 and 4 what happens to three scalable methods
# when they may look at the function in few places: SVGP with M inducing points, GPNet with M
# measurement points and FBNN (Sun et al. 2019) with M measurement points, for M = 2, 5, 20. This
# notebook draws a version of that figure in about a minute; `python -m gpflow_gpnet.experiments
# snelson` does it with more steps, and with the table of gaps.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
from gpflow.keras import tf_keras

import gpflow_gpnet as gpn

NUM_STEPS = 2000  # short: 3
POINTS = (2, 5, 20)  # short: (2, 20)

# %% [markdown]
# ## The problem
#
# 100 points and a prior whose hyperparameters are fitted by the exact GP and then fixed, so that
# only the representation of the posterior differs. Batches of 20.

# %%
dataset = gpn.datasets.load("snelson")
data = X, Y = dataset.X[:100], dataset.Y[:100]
N, BATCH = len(X), 20

kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
gpn.fit_hyperparameters(kernel, likelihood, data)
for module in (kernel, likelihood):
    gpflow.set_trainable(module, False)
exact = gpflow.models.GPR(data, kernel, likelihood=likelihood)

# Measurement points: uniform over the data and half a lengthscale beyond.
margin = 0.5 * float(kernel.lengthscales.numpy())
measurement = gpn.measurement.Uniform(X.min() - margin, X.max() + margin)

# %% [markdown]
# ## The three methods
#
# * **SVGP**: q(f) is determined by its values at M inducing points. With M = 2 it can bend twice.
# * **GPNet**: q(f) is a network with 20 trainable frequencies. M counts the points at which one
#   step compares it with its target; the next step draws others, so M does not limit what q can
#   be. Here with the published gradient steps (`natural=False`), as in the figure.
# * **FBNN**: the same network, but each step fits a posterior of the *batch alone*: the likelihood
#   of the batch is not scaled by N/B = 5, while the prior counts in full.

# %%
rate = tf_keras.optimizers.schedules.PolynomialDecay


def svgp(M):
    Z = np.quantile(X, (np.arange(M) + 0.5) / M)[:, None]
    model = gpflow.models.SVGP(kernel, likelihood, Z, num_data=N)
    return model, tf_keras.optimizers.Adam(rate(0.01, NUM_STEPS, 0.0))


def gpnet(M):
    network = gpn.RFE(kernel, 1, num_features=20)
    model = gpn.GPNet(
        kernel,
        likelihood,
        network,
        num_data=N,
        measurement=measurement,
        num_measurement_points=M,
    )
    optimizer = gpn.FunctionalMirrorDescent(
        step_size=gpn.InverseSqrt(beta0=1.0, xi=0.1),
        learning_rate=gpn.LinearDecay(0.01, NUM_STEPS),
        natural=False,
    )
    return model, optimizer


def fbnn(M):
    network = gpn.RFE(kernel, 1, num_features=20)
    model = gpn.FBNN(
        kernel,
        likelihood,
        network,
        num_data=N,
        measurement=measurement,
        num_measurement_points=M,
    )
    return model, tf_keras.optimizers.Adam(rate(0.01, NUM_STEPS, 0.0))


def train(build, M):
    model, optimizer = build(M)
    gpn.fit(
        model,
        data,
        optimizer=optimizer,
        num_steps=NUM_STEPS,
        batch_size=BATCH,
        seed=0,
        progress=False,
        log_every=100,
    )
    return model


# %%
Xnew = np.linspace(X.min() - 1.0, X.max() + 1.0, 300)[:, None]
figure, axes = plt.subplots(3, len(POINTS), figsize=(10, 7), sharex=True, sharey=True)
for row, (name, build) in zip(
    axes, {"SVGP": svgp, "GPNet": gpnet, "FBNN": fbnn}.items(), strict=True
):
    for ax, M in zip(row, POINTS, strict=True):
        gpn.plotting.posterior(train(build, M), Xnew, data, reference=exact, ax=ax)
        ax.set_title(f"{name}, M = {M}", fontsize=10)
for ax in axes[-1]:
    ax.set_xlabel("x")
for ax in axes[:, 0]:
    ax.set_ylabel("f(x)")
axes[0, 0].set_ylim(-3.5, 3.5)
axes[0, 0].legend(loc="lower left", fontsize=7)
plt.show()

# %% [markdown]
# Blue: mean ± 3 standard deviations of f. Dashed: the exact GP. Read it by rows:
#
# * **SVGP** is the exact GP with 20 inducing points and cannot follow the data with 2 or 5,
#   whatever the optimiser does: its capacity *is* M.
# * **GPNet** follows the data at every M. Its band is narrower than the exact one at M = 2 and 5,
#   most visibly beyond the data: with few points at a time the divergence counts the data too
#   often. More points cost M³ and remove this.
# * **FBNN** has a band that is too wide at every M. Its fixed point is the posterior for a noise
#   variance N/B = 5 times too large, so no number of points or steps helps.
#
# ## What this package adds
#
# For a network that is linear in its weights the mirror step has a closed form in weight space. It
# uses the measurement points only to correct for the difference between the features and the
# kernel, so that the over-confidence disappears. These *natural* steps are what `gpn.fit` takes by
# default.

# %%
network = gpn.RFE(kernel, 1, num_features=20)
natural = gpn.GPNet(
    kernel, likelihood, network, num_data=N, measurement=measurement, num_measurement_points=20
)
optimizer = gpn.FunctionalMirrorDescent(
    step_size=gpn.InverseSqrt(1.0, 0.1), learning_rate=gpn.LinearDecay(0.02, NUM_STEPS)
)
gpn.fit(
    natural,
    data,
    optimizer=optimizer,
    num_steps=NUM_STEPS,
    batch_size=N,
    seed=0,
    progress=False,
    log_every=100,
)

figure, ax = plt.subplots()
gpn.plotting.posterior(natural, Xnew, data, reference=exact, ax=ax)
ax.set(title="GPNet, natural steps on full batches, M = 20", xlabel="x", ylabel="f(x)")
ax.legend(loc="lower left")
plt.show()

inside = np.linspace(X.min(), X.max(), 300)[:, None]
mean, variance = natural.predict_f(inside)
exact_mean, exact_variance = exact.predict_f(inside)
gap = np.abs(mean - exact_mean) / np.sqrt(exact_variance)
ratio = np.sqrt(variance / exact_variance)
print(f"largest gap of the mean: {gap.max():.3f} exact standard deviations")
print(f"ratio of standard deviations: {ratio.min():.3f} to {ratio.max():.3f}")

# %% [markdown]
# 20 frequencies suffice here because they move in training. This is a statement about 100 points
# in one dimension with known hyperparameters; notebook 8 compares methods on data where nothing is
# known.
