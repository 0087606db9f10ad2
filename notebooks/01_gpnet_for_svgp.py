# %% [markdown]
# # 1. GPNet in place of SVGP
#
# You have GPflow code with an `SVGP`. This notebook replaces it with a `GPNet`, first by changing
# one line and keeping your training loop, then with the package's own optimiser. The last section
# says when to stay with what you have.
#
# SVGP summarises the posterior of a Gaussian process by its values at *inducing points*. GPNet
# keeps it in an *inference network*: a function that returns the posterior's mean and covariance
# at any inputs, here a layer of cosines and sines with a Gaussian over its weights.

# %%
import time

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_gpnet as gpn

NUM_STEPS = 1500  # short: 3

# %% [markdown]
# ## The data
#
# Snelson and Ghahramani's one-dimensional set comes with the package: 200 points. Every fourth
# point is kept for testing. To use your own data, replace `X` [N, D] and `Y` [N, P]: NumPy arrays
# in float64 (a GPNet takes integers, float32 and DataFrames too).

# %%
dataset = gpn.datasets.load("snelson")
is_test = np.arange(len(dataset.X)) % 4 == 3
X, Y = dataset.X[~is_test], dataset.Y[~is_test]
Xtest, Ytest = dataset.X[is_test], dataset.Y[is_test]
N = len(X)
print(f"{N} rows to train on, {len(Xtest)} to test on")

# %% [markdown]
# ## The SVGP you have
#
# Ten inducing points, minibatches of 50 and Adam, as in GPflow's own notebook on big data.

# %%
Z = np.linspace(X.min(), X.max(), 10)[:, None]


def train(model):
    """Your training loop."""
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().shuffle(N, seed=0).batch(50)
    loss = model.training_loss_closure(iter(batches))
    optimizer = tf_keras.optimizers.Adam(0.01)

    @tf.function
    def step():
        optimizer.minimize(loss, model.trainable_variables)

    started = time.perf_counter()
    for _ in range(NUM_STEPS):
        step()
    return time.perf_counter() - started


svgp = gpflow.models.SVGP(
    gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), Z, num_data=N
)
seconds = {"SVGP, Adam": train(svgp)}

# %% [markdown]
# ## The swap
#
# One word changes. The array that was the inducing inputs may stay: its rows become *measurement
# points*, at which the network is compared with the prior, and an `RFE` network (random Fourier
# features of your kernel) is made for you. `num_data` is no longer optional.

# %%
swapped = gpn.GPNet(
    gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), Z, num_data=N
)
seconds["GPNet, Adam"] = train(swapped)

# %% [markdown]
# ## The package's own loop
#
# Plain Adam is a slow way to train a GPNet: like SVGP it has a Gaussian over weights, which wants
# natural gradients. `gpn.fit` takes natural steps in closed form, shuffles, keeps a history, and
# ends with one exact pass over the data. Here the network is written out.

# %%
kernel = gpflow.kernels.SquaredExponential()
network = gpn.RFE(kernel, input_dim=1, num_features=20)
model = gpn.GPNet(kernel, gpflow.likelihoods.Gaussian(0.1), network, num_data=N)

started = time.perf_counter()
optimizer = gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.01, NUM_STEPS))
history = gpn.fit(
    model, (X, Y), optimizer=optimizer, num_steps=NUM_STEPS, batch_size=50, seed=0, progress=False
)
seconds["GPNet, gpn.fit"] = time.perf_counter() - started
print(history)

# %% [markdown]
# ## Did it work?
#
# 150 points are few enough for the exact GP, which all the others approximate.

# %%
exact = gpflow.models.GPR((X, Y), gpflow.kernels.SquaredExponential(), noise_variance=0.1)
gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)

models = {
    "exact GP": exact,
    "SVGP, Adam": svgp,
    "GPNet, Adam": swapped,
    "GPNet, gpn.fit": model,
}
print(f"{'':16}{'test RMSE':>10}{'test NLPD':>11}{'seconds':>9}")
for name, m in models.items():
    mean, _ = m.predict_y(Xtest)
    rmse = np.sqrt(np.mean((Ytest - mean) ** 2))
    nlpd = -np.mean(m.predict_log_density((Xtest, Ytest)))
    print(f"{name:16}{rmse:10.4f}{nlpd:11.4f}{seconds.get(name, np.nan):9.1f}")

# %%
Xnew = np.linspace(X.min() - 1.5, X.max() + 1.5, 300)[:, None]
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True)
for ax, (name, m) in zip(axes, list(models.items())[1:], strict=True):
    gpn.plotting.posterior(m, Xnew, (X, Y), reference=exact, ax=ax)
    ax.set(title=name, xlabel="x")
axes[0].set_ylabel("f(x)")
axes[0].legend(loc="lower left")
plt.show()

# %% [markdown]
# Blue is the mean and three standard deviations of f, dashed the exact GP, dots the training data.
# NLPD is the mean negative log predictive density in nats per datum: lower is better.
#
# On 150 points in one dimension nothing can beat the exact GP, and ten inducing points are enough
# for SVGP: all four predict the held-out points about equally well. That is what a swap should do
# first. Look at the ends: beyond the data, where no point was measured, the mean of the GPNets
# wanders inside the prior's band in place of returning to 0. Notebook 9 is about that. The seconds
# are those of a machine that did other work too; each includes some for compiling.
#
# ## What you had, you still have
#
# `predict_f`, `predict_y`, `predict_log_density`, `predict_f_samples`, `posterior()`, `elbo`,
# `training_loss`, `trainable_variables`, `gpflow.utilities.print_summary`, checkpoints: same
# names, same arguments, same shapes. In addition there are whole functions, quantiles, and one
# file that holds model and optimiser.

# %%
functions = model.sample_functions(5, seed=1)  # a callable: x -> [5, N, 1]
low, high = model.predict_quantiles(Xnew, [0.05, 0.95])  # of new observations

figure, ax = plt.subplots()
ax.fill_between(Xnew[:, 0], low[:, 0], high[:, 0], color="0.85", label="90 % of observations")
for f in functions(Xnew)[..., 0].numpy():
    ax.plot(Xnew[:, 0], f, lw=1)
ax.plot(X[:, 0], Y[:, 0], ".k", ms=3, label="training data")
ax.set(xlabel="x", ylabel="y", title="Five functions drawn from the posterior")
ax.legend(loc="lower left")
plt.show()

# %% [markdown]
# What moved: `q_mu` and `q_sqrt` are `model.inference_network.q_mu` and `.q_sqrt`; there is no
# `inducing_variable`. Ask the model for one of these and the error says where it is.
#
# ## When not to use GPNet
#
# * **Up to a few thousand rows** with a Gaussian likelihood: the exact GP (`gpflow.models.GPR`) is
#   exact, and has no settings.
# * **SVGP with a few hundred inducing points is already as good** as you need, or the exact GP on
#   a subset is: there is nothing to gain.
# * **The kernel has no random features** (an arc-cosine kernel, say) and you do not want a neural
#   network: `gpn.InducingFeatures` is SVGP itself, so stay with SVGP.
# * **Noise far below the signal** (standard deviations 1 : 300) with many data: random features
#   have too few degrees of freedom and become over-confident between the data.
# * **You choose kernels by the evidence lower bound**: GPNet's depends on the measurement points
#   and is noisy. Compare held-out scores instead (notebook 8).
