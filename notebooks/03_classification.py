# %% [markdown]
# # 3. Classification, binary and multi-class
#
# With labels the posterior of a Gaussian process is not Gaussian and has no closed form, whatever
# N. GPNet takes any GPflow likelihood: each natural step replaces the likelihood of a batch by the
# Gaussian that has the same gradients at the present predictions, and goes on as in regression.
#
# The data are drawn from known probabilities, so that we can see whether the predicted ones are
# right, not only whether the labels are.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

import gpflow_gpnet as gpn

NUM_STEPS = 400  # short: 3
N = 2000  # short: 200

rng = np.random.default_rng(0)

# %% [markdown]
# ## Two classes
#
# `Bernoulli` takes labels 0 and 1 in a column [N, 1], and squashes f by the normal CDF (probit).

# %%


def probability(X):
    """P(y = 1 | x) [N], the truth."""
    return norm.cdf(2.5 * np.sin(1.5 * X[:, 0]) * np.cos(X[:, 1]) + 0.5 * X[:, 1])


X = rng.uniform(-3, 3, (N, 2))
Y = (rng.uniform(size=N) < probability(X))[:, None].astype(float)

kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
network = gpn.RFE(kernel, input_dim=2, num_features=100)
binary = gpn.GPNet(kernel, gpflow.likelihoods.Bernoulli(), network, num_data=N)
optimizer = gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.02, NUM_STEPS))
gpn.fit(
    binary, (X, Y), optimizer=optimizer, num_steps=NUM_STEPS, batch_size=500, seed=0, progress=False
)

# %% [markdown]
# For a Bernoulli likelihood the mean of `predict_y` is P(y = 1 | x). Below: the truth, the
# prediction, and the standard deviation of f, which says where the data do not determine the
# boundary.

# %%
side = np.linspace(-4.5, 4.5, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
p = binary.predict_y(grid)[0].numpy()
sd = np.sqrt(binary.predict_f(grid)[1].numpy())


def panel(ax, values, title, **kwargs):
    image = ax.pcolormesh(side, side, values.reshape(60, 60), rasterized=True, **kwargs)
    ax.add_patch(plt.Rectangle((-3, -3), 6, 6, fill=False, ls="--"))
    ax.set(title=title, xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    plt.colorbar(image, ax=ax)


figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
panel(axes[0], probability(grid), "P(y = 1), truth", cmap="cividis", vmin=0, vmax=1)
panel(axes[1], p, "P(y = 1), predicted", cmap="cividis", vmin=0, vmax=1)
panel(axes[2], sd, "standard deviation of f", cmap="cividis", vmin=0)
plt.show()

# %% [markdown]
# The data lie inside the dashed square. Inside, truth and prediction agree. Outside, the standard
# deviation of f grows to the prior's within about two units, and the prediction is a guess that is
# right in places and wrong in others, less and less sure of itself.
#
# Predicted probabilities can be checked without knowing the truth: of the points with a prediction
# near 0.8, about 80 % should have label 1. New data, in ten groups by prediction:

# %%
Xtest = rng.uniform(-3, 3, (4000, 2))
Ytest = (rng.uniform(size=4000) < probability(Xtest))[:, None].astype(float)
predicted = binary.predict_y(Xtest)[0].numpy()[:, 0]
groups = np.array_split(np.argsort(predicted), 10)
means = [predicted[g].mean() for g in groups]
rates = np.array([Ytest[g].mean() for g in groups])
errors = 2 * np.sqrt(rates * (1 - rates) / 400)

figure, ax = plt.subplots(figsize=(4, 3.4))
ax.plot([0, 1], [0, 1], "k", lw=0.8)
ax.errorbar(means, rates, errors, fmt="o", ms=4, label="groups of 400, ± 2 standard errors")
ax.set(xlabel="predicted probability", ylabel="fraction with label 1")
ax.legend(loc="upper left", fontsize=7)
plt.show()

nlpd = -np.mean(binary.predict_log_density((Xtest, Ytest)))
best = -np.mean(np.log(np.where(Ytest[:, 0] == 1, probability(Xtest), 1 - probability(Xtest))))
print(f"test NLPD {nlpd:.4f} nats per datum; of the true probabilities {best:.4f}")

# %% [markdown]
# ## Many classes
#
# One latent function for each class: `num_latent_gps` is the number of classes, in the model and
# in the network. GPflow has two likelihoods, both with labels 0, 1, …, C - 1 in a column [N, 1]:
#
# * `MultiClass(C)` (robust max): the label is the largest function's, up to a small rate of
#   mistakes. Good where classes are separated.
# * `Softmax(C)`: probabilities by softmax, expectations by Monte Carlo. Good where classes
#   overlap, as here. Its labels are integers.

# %%
C = 3
centres = np.array([[-1.5, -1.0], [1.5, -1.0], [0.0, 1.6]])


def class_probabilities(X):
    """P(y = c | x) [N, 3], the truth: classes are Gaussian clouds of standard deviation 1.2."""
    logits = -0.5 * np.sum((X[:, None] - centres) ** 2, axis=-1) / 1.2**2
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def draw(n):
    labels = rng.integers(C, size=(n, 1))
    return centres[labels[:, 0]] + 1.2 * rng.normal(size=(n, 2)), labels


X3, Y3 = draw(N)
kernel = gpflow.kernels.SquaredExponential(variance=4.0, lengthscales=[2.0, 2.0])
network = gpn.RFE(kernel, input_dim=2, num_features=50, num_latent_gps=C)
multi = gpn.GPNet(kernel, gpflow.likelihoods.Softmax(C), network, num_latent_gps=C, num_data=N)
optimizer = gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.02, NUM_STEPS))
gpn.fit(
    multi,
    (X3, Y3),
    optimizer=optimizer,
    num_steps=NUM_STEPS,
    batch_size=500,
    seed=0,
    progress=False,
)

# %%
predicted = multi.predict_y(grid)[0].numpy()
truth = class_probabilities(grid)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharey=True)
for c, ax in enumerate(axes):
    image = ax.pcolormesh(
        side, side, predicted[:, c].reshape(60, 60), cmap="cividis", vmin=0, vmax=1, rasterized=True
    )
    lines = ax.contour(
        side, side, truth[:, c].reshape(60, 60), levels=[0.1, 0.5, 0.9], colors="w", linewidths=1
    )
    ax.clabel(lines, fontsize=7)
    ax.plot(*X3[Y3[:, 0] == c][:150].T, "k.", ms=2)
    ax.set(title=f"P(y = {c})", xlabel="$x_1$", aspect="equal")
axes[0].set_ylabel("$x_2$")
plt.colorbar(image, ax=axes)
plt.show()

Xtest, Ytest = draw(4000)
p = class_probabilities(Xtest)
mean = multi.predict_y(Xtest)[0].numpy()
print(
    f"test accuracy {np.mean(mean.argmax(1) == Ytest[:, 0]):.3f}; of the true probabilities ",
    end="",
)
print(f"{np.mean(p.argmax(1) == Ytest[:, 0]):.3f}")
print(f"mean |predicted - true probability| {np.abs(mean - p).mean():.3f}")

# %% [markdown]
# Colour: predicted; white lines: true probabilities; dots: data of that class. Where there are
# data the colours follow the lines; the average error of a probability is printed above.
#
# ## When not to use GPNet here
#
# * Few data (N < 1,000): GPflow's `VGP` has no features to choose.
# * Only labels matter, not probabilities, and data are images or text: a neural network classifier
#   will be more accurate than any GP on raw inputs.
# * Softmax expectations are Monte Carlo with 100 draws: for many classes (> 20) they are slow and
#   noisy.
