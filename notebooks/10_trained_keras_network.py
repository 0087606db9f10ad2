# %% [markdown]
# # 10. Uncertainty for a Keras network that is trained already
#
# You have a network whose predictions you trust and do not want to change. This notebook gives it
# error bars in two ways, both of which leave its predictions exactly as they are:
#
# 1. `Deterministic(model) + RFE(kernel)`: the network's mean with the posterior covariance of a
#    GP;
# 2. `LinearisedNTK(NTK(model))`: the covariance of the network itself, linearised in its weights.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
from gpflow.keras import tf_keras  # the Keras 2 that GPflow uses

import gpflow_gpnet as gpn

EPOCHS = 600  # short: 2
NUM_STEPS = 500  # short: 3

# %% [markdown]
# ## The network
#
# Snelson's points without the end, x > 4.8, one fifth of the rest kept for testing, and a small
# multilayer perceptron trained on squared error in the usual way.

# %%
dataset = gpn.datasets.load("snelson")
end = dataset.X[:, 0] > 4.8
is_test = ~end & (np.arange(len(dataset.X)) % 5 == 0)
train = ~end & ~is_test
X, Y = dataset.X[train], dataset.Y[train]
sets = {
    "test points": (dataset.X[is_test], dataset.Y[is_test]),
    "the end": (dataset.X[end], dataset.Y[end]),
}

tf_keras.utils.set_random_seed(0)
trained = tf_keras.Sequential(
    [
        tf_keras.layers.Dense(20, "tanh", input_shape=(1,)),
        tf_keras.layers.Dense(20, "tanh"),
        tf_keras.layers.Dense(1),
    ]
)
trained.compile(tf_keras.optimizers.Adam(0.01), "mse")
trained.fit(X, Y, epochs=EPOCHS, batch_size=50, verbose=0)
before = trained.predict(X, verbose=0)
residual_variance = float(np.mean((Y - before) ** 2))
print(f"standard deviation of the residuals {np.sqrt(residual_variance):.3f}")

# %% [markdown]
# ## 1. A GP's covariance about the network's mean
#
# The kernel says how far one observation tells about its neighbours; its hyperparameters are
# fitted by the exact GP. The mean of the random features is frozen at 0 together with the network,
# so that only the covariance (and the noise) is trained.

# %%
kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
gpn.fit_hyperparameters(kernel, likelihood, (X, Y))
likelihood.variance.assign(residual_variance)

deterministic = gpn.Deterministic(trained)
network = deterministic + gpn.RFE(kernel, input_dim=1, num_features=30)
gpflow.set_trainable([deterministic, network.q_mu], False)
with_gp = gpn.GPNet(kernel, likelihood, network, num_data=len(X))
gpflow.set_trainable(kernel, False)
gpn.fit(with_gp, (X, Y), num_steps=NUM_STEPS, batch_size=50, seed=0, progress=False)

# %% [markdown]
# ## 2. The network's own tangent kernel
#
# The network linearised in its 481 weights is a linear model whose features are the gradients of
# the output. `LinearisedNTK` takes natural steps in it. The trained weights stay; what is trained
# is the covariance of a change of the weights, and the prior variance of each.

# %%
tangent = gpn.NTK(trained, kernel=kernel)
linearised = gpn.LinearisedNTK(tangent)
gpflow.set_trainable([tangent.tangents.body, linearised.q_mu], False)
with_ntk = gpn.GPNet(
    kernel,
    gpflow.likelihoods.Gaussian(residual_variance),
    linearised,
    num_data=len(X),
    measurement=gpn.measurement.Uniform(dataset.X.min() - 1.0, dataset.X.max() + 1.0),
    num_measurement_points=20,
)
gpn.fit(
    with_ntk,
    (X, Y),
    optimizer=gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.02, NUM_STEPS)),
    num_steps=NUM_STEPS,
    batch_size=50,
    seed=0,
    progress=False,
)

# %%
exact = gpflow.models.GPR((X, Y), kernel, likelihood=likelihood)
Xnew = np.linspace(dataset.X.min() - 1.0, dataset.X.max() + 1.0, 300)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), sharey=True)
models = {"network + RFE": with_gp, "linearised network": with_ntk}
for ax, (name, model) in zip(axes, models.items(), strict=True):
    gpn.plotting.posterior(model, Xnew, (X, Y), reference=exact, num_sds=2, ax=ax)
    ax.plot(
        *(values[:, 0] for values in sets["the end"]), "x", color="#D55E00", ms=4, label="the end"
    )
    ax.set(title=name, xlabel="x", ylim=(-4, 4))
axes[0].set_ylabel("f(x)")
axes[0].legend(loc="lower left", fontsize=7)
plt.show()

for name, model in models.items():
    unchanged = np.abs(model.predict_f(X)[0] - before).max()
    print(f"{name}: predictions moved by {unchanged:.1e}")

# %% [markdown]
# ## Is it worth it?
#
# The plain alternative is the network's prediction with the residuals' variance everywhere. NLPD
# in nats per datum, on test points among the data and on the points of the end, which nobody has
# seen:

# %%


def constant_noise(X, Y):
    error = Y - trained.predict(X, verbose=0)
    return 0.5 * np.mean(error**2 / residual_variance + np.log(2 * np.pi * residual_variance))


print(f"{'':22}" + "".join(f"{name:>14}" for name in sets))
scores = [constant_noise(*data) for data in sets.values()]
print(f"{'constant noise':22}" + "".join(f"{score:14.3f}" for score in scores))
for name, model in models.items():
    scores = [-np.mean(model.predict_log_density(data)) for data in sets.values()]
    print(f"{name:22}" + "".join(f"{score:14.3f}" for score in scores))

# %% [markdown]
# Beyond the data the network goes on as it pleases and is wrong by far more than its residuals on
# the training data. Both models know that they have seen nothing there, and score better than
# constant noise, if far from well: their mean is still the network's. Among the data nothing is
# gained: there the residuals tell all. How wide the bands are beyond the data is what the kernel
# says (left) or what the network's gradients happen to span (right); neither knows the truth.
#
# The means are those of the network, mistakes included. A GP trained on the same data would also
# have another mean.
#
# ## When not to do this
#
# * The network may be trained again: then put it into the model (`AdaptiveBasis(keras_model)`), or
#   use a GP from the start.
# * The network over-fits: its residuals on the training data are too small, so that the noise is
#   too. Take the residuals from held-out rows.
# * More than some thousand weights: `LinearisedNTK` costs the cube of their number. `NTK(model)`
#   alone takes gradient steps, and `Deterministic(model) + RFE(kernel)` does not depend on it.
