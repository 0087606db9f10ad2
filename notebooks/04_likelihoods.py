# %% [markdown]
# # 4. Several outputs, noise that varies, and outliers
#
# Three departures from one Gaussian target, each by a likelihood or a kernel of GPflow; the
# network and the training do not change.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow_probability as tfp

import gpflow_gpnet as gpn
from gpflow_gpnet.likelihoods import MissingTargets

NUM_STEPS = 600  # short: 3

rng = np.random.default_rng(0)


def fit(model, data, seed=0):
    """Natural steps; the features' learning rate falls from 0.02 to 0."""
    rate = gpn.LinearDecay(0.02, NUM_STEPS)
    return gpn.fit(
        model,
        data,
        optimizer=gpn.FunctionalMirrorDescent(learning_rate=rate),
        num_steps=NUM_STEPS,
        batch_size=100,
        seed=seed,
        progress=False,
    )


# %% [markdown]
# ## Several outputs
#
# Three outputs that are mixtures of two hidden functions. In the middle of the range the first
# output was not observed at all: `NaN`, which `MissingTargets` leaves out cell by cell. A linear
# model of coregionalisation learns the mixing, and so predicts the first output there from the
# other two.

# %%
X = np.sort(rng.uniform(-5, 5, (400, 1)), axis=0)
hidden = np.hstack([np.sin(1.5 * X), np.cos(X) + 0.3 * X])
W = np.array([[0.8, 0.6], [1.0, -0.2], [-0.3, 1.0]])
truth = hidden @ W.T
Y = truth + 0.15 * rng.normal(size=truth.shape)
gap = (X[:, 0] > -1.5) & (X[:, 0] < 2.0)
Y[gap, 0] = np.nan


def latent():
    return gpflow.kernels.SquaredExponential()


coupled = gpflow.kernels.LinearCoregionalization([latent(), latent()], W=rng.normal(size=(3, 2)))
apart = gpflow.kernels.SeparateIndependent([latent() for _ in range(3)])
models = {}
for name, kernel, num_latent_gps in (("coupled", coupled, 2), ("independent", apart, 3)):
    models[name] = gpn.GPNet(
        kernel,
        MissingTargets(gpflow.likelihoods.Gaussian(0.1)),
        gpn.RFE(kernel, input_dim=1, num_features=30),
        num_latent_gps=num_latent_gps,
        num_data=len(X),
    )
    fit(models[name], (X, Y))

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    mean, variance = (moment.numpy() for moment in model.predict_f(X))
    for p in range(3):
        width = 2 * np.sqrt(variance[:, p])
        (line,) = ax.plot(X[:, 0], mean[:, p], label=f"output {p + 1}")
        ax.fill_between(
            X[:, 0],
            mean[:, p] - width,
            mean[:, p] + width,
            color=line.get_color(),
            alpha=0.25,
            lw=0,
        )
    ax.plot(X[:, 0], truth[:, 0], "k:", label="output 1, truth")
    ax.axvspan(-1.5, 2.0, color="0.93", zorder=0)
    ax.set(title=f"outputs {name}", xlabel="x")
axes[0].set_ylabel("f ± 2 sd")
axes[1].legend(loc="lower right", fontsize=7)
plt.show()

for name, model in models.items():
    mean, variance = (moment.numpy()[gap, 0] for moment in model.predict_f(X))
    error = np.sqrt(np.mean((mean - truth[gap, 0]) ** 2))
    print(
        f"{name:12} output 1 in the gap: RMSE {error:.3f}, mean sd {np.sqrt(variance).mean():.3f}"
    )

# %% [markdown]
# Grey: where output 1 was not observed. The coupled model predicts it from the other two;
# independent outputs interpolate, and say by a wide band that they are guessing.
#
# Coupling helps only if outputs do share functions. And the mixing matrix is learned as a number:
# its own uncertainty is not in the band, so that above the coupled model's error is larger than
# its standard deviation.
#
# ## Noise that varies with x
#
# `HeteroskedasticTFPConditional` has two latent functions: the mean, and the noise's scale through
# an exponential. Both need a kernel and a network's output: `num_latent_gps=2`.

# %%
X = rng.uniform(0, 4 * np.pi, (1000, 1))


def scale(x):
    return 0.05 + 0.45 * np.exp(-0.5 * (x - 2 * np.pi) ** 2)


Y = np.sin(X) + scale(X) * rng.normal(size=X.shape)

likelihood = gpflow.likelihoods.HeteroskedasticTFPConditional(
    distribution_class=tfp.distributions.Normal, scale_transform=tfp.bijectors.Exp()
)
kernel = gpflow.kernels.SeparateIndependent([latent(), latent()])
network = gpn.RFE(kernel, input_dim=1, num_features=50)
varying = gpn.GPNet(kernel, likelihood, network, num_latent_gps=2, num_data=len(X))
fit(varying, (X, Y))

# %%
Xnew = np.linspace(0, 4 * np.pi, 200)[:, None]
mean, variance = varying.predict_y(Xnew)
log_scale = varying.predict_f(Xnew)[0].numpy()[:, 1]

figure, axes = plt.subplots(1, 2, figsize=(9, 3))
width = 2 * np.sqrt(variance[:, 0])
axes[0].plot(X[:, 0], Y[:, 0], ".k", ms=2, alpha=0.4)
axes[0].fill_between(Xnew[:, 0], mean[:, 0] - width, mean[:, 0] + width, alpha=0.3, lw=0)
axes[0].plot(Xnew[:, 0], mean[:, 0])
axes[0].set(xlabel="x", ylabel="y", title="predicted y ± 2 sd")
axes[1].plot(Xnew[:, 0], np.exp(log_scale), label="learned")
axes[1].plot(Xnew[:, 0], scale(Xnew[:, 0]), "--", label="truth")
axes[1].set(xlabel="x", ylabel="noise, standard deviation", ylim=(0, None))
axes[1].legend()
plt.show()

low, high = varying.predict_quantiles(X, [0.05, 0.95])
print(f"{np.mean((Y > low) & (Y < high)):.3f} of the data are in the central 90 % interval")

# %% [markdown]
# Noise whose size is *known* row by row is simpler: `likelihoods.KnownNoise()`, with the variances
# as the third member of the data.
#
# ## Outliers
#
# Snelson's data with one point in ten replaced by nonsense. A Gaussian likelihood explains them by
# more noise and bends towards them; Student's t lets them go.

# %%
dataset = gpn.datasets.load("snelson")
X, clean = dataset.X, dataset.Y
order = np.argsort(X[:, 0])
X, clean = X[order], clean[order]
outlier = rng.uniform(size=len(X)) < 0.1
Y = np.where(outlier[:, None], rng.uniform(-4, 4, clean.shape), clean)

robust = {}
for name, likelihood in (
    ("Gaussian", gpflow.likelihoods.Gaussian(0.1)),
    ("Student-t, 3 degrees of freedom", gpflow.likelihoods.StudentT(scale=0.3, df=3.0)),
):
    kernel = gpflow.kernels.SquaredExponential()
    network = gpn.RFE(kernel, input_dim=1, num_features=20)
    robust[name] = gpn.GPNet(kernel, likelihood, network, num_data=len(X))
    fit(robust[name], (X, Y))

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for ax, (name, model) in zip(axes, robust.items(), strict=True):
    gpn.plotting.posterior(model, X, (X[~outlier], Y[~outlier]), num_sds=2, ax=ax)
    ax.plot(X[outlier, 0], Y[outlier, 0], "x", color="#D55E00", ms=5, label="outliers")
    ax.set(title=name, xlabel="x", ylim=(-4.2, 4.2))
axes[0].set_ylabel("f(x)")
axes[0].legend(loc="lower left", fontsize=7)
plt.show()

for name, model in robust.items():
    error = np.sqrt(np.mean((model.predict_f(X)[0] - clean)[~outlier] ** 2))
    print(f"{name}: RMSE on the points that were left alone {error:.3f}")

# %% [markdown]
# Student's t costs nothing here but a quadrature. It is a choice about the data, not a safe
# default: where there are no outliers it gives up some accuracy, and its log density is not
# comparable with a Gaussian's unless both are scored on the same held-out targets.
