# %% [markdown]
# # 5. Large data: streams, checkpoints, predictions in bounded memory
#
# A GPNet never needs all data at once: a step costs the same whatever N is. This notebook trains
# from a `tf.data` stream that reads a file in pieces, stops half way and goes on from the
# checkpoint.

# %%
import tempfile
from pathlib import Path

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

import gpflow_gpnet as gpn

NUM_STEPS = 600  # short: 6
ROWS = 40_000  # short: 1000
BATCH = 500  # short: 50

# %% [markdown]
# ## Data
#
# `kin40k`, the forward dynamics of a robot arm (40,000 rows, 8 inputs), where the environment
# variable `GPNET_DATA` names a folder that has it; a synthetic function of 8 inputs elsewhere.

# %%
try:
    dataset = gpn.datasets.load("kin40k")
except FileNotFoundError:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.7, 1.7, (ROWS, 8))
    f = np.sin(2 * X[:, :1]) * np.cos(X[:, 1:2]) + 0.5 * np.sin(X[:, 2:3] + X[:, 3:4] * X[:, 4:5])
    dataset = gpn.datasets.Dataset("synthetic", X, f + 0.05 * rng.normal(size=f.shape))
print(dataset.name, dataset.X.shape)

split = gpn.datasets.split(dataset, index=0)  # nine tenths to train on; standardised
N, D = split.X_train.shape

# %% [markdown]
# ## First the hyperparameters
#
# Random features start at the kernel's lengthscales and move slowly, so give it sensible ones: the
# exact GP on a random subset of 500 rows, a few seconds whatever N is.

# %%
NUM_SUBSET = 500  # short: 50

kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(D))
likelihood = gpflow.likelihoods.Gaussian(0.1)
gpn.fit_hyperparameters(kernel, likelihood, split.train, num_points=NUM_SUBSET)
print("lengthscales", kernel.lengthscales.numpy().round(2))


# %%
def make_model():
    """A new GPNet at the prior."""
    own_kernel, own_likelihood = (gpflow.utilities.deepcopy(part) for part in (kernel, likelihood))
    network = gpn.RFE(own_kernel, input_dim=D, num_features=100)
    return gpn.GPNet(own_kernel, own_likelihood, network, num_data=N)


def make_optimizer():
    return gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.01, NUM_STEPS))


# %% [markdown]
# ## A stream
#
# What does not fit into memory lies in a file. Here it is a `.npy` file that is mapped and not
# read: `tf.data` takes shuffled batches of rows from it, and prepares the next while the model
# trains. Any `tf.data.Dataset` of (X, Y) batches will do, such as one that reads TFRecord files,
# and so will a list or iterator of batches.
#
# The model must know N: `num_data=N` scales the likelihood of a batch.

# %%
folder = Path(tempfile.mkdtemp())
np.save(folder / "rows.npy", np.hstack(split.train))
rows = np.load(folder / "rows.npy", mmap_mode="r")


def stream(seed):
    """Batches of rows in random order, for ever."""

    def batches():
        rng = np.random.default_rng(seed)
        while True:
            order = rng.permutation(N)
            for start in range(0, N - BATCH + 1, BATCH):
                batch = rows[np.sort(order[start : start + BATCH])]
                yield batch[:, :D], batch[:, D:]

    signature = (tf.TensorSpec([BATCH, D], tf.float64), tf.TensorSpec([BATCH, 1], tf.float64))
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2)


# %% [markdown]
# ## Stop and go on
#
# With `checkpoint_dir`, `fit` saves model, optimiser and step as it goes. Called again, it goes on
# from the last checkpoint it finds; `num_steps` counts the steps already done. Below, the first
# call is stopped half way, as if the machine had been switched off, and a *new* model and
# optimiser take over.

# %%
checkpoints = folder / "checkpoints"


def stop_half_way(step):
    return step >= NUM_STEPS // 2


first = gpn.fit(
    make_model(),
    stream(seed=1),
    optimizer=make_optimizer(),
    num_steps=NUM_STEPS,
    validation_data=split.test,
    callbacks=[stop_half_way],
    checkpoint_dir=str(checkpoints),
    seed=0,
    progress=False,
)
model, optimizer = make_model(), make_optimizer()
second = gpn.fit(
    model,
    stream(seed=2),
    optimizer=optimizer,
    num_steps=NUM_STEPS,
    validation_data=split.test,
    checkpoint_dir=str(checkpoints),
    seed=0,
    progress=False,
)
print(f"first call: steps to {first['step'][-1]:.0f}; second: {second['step'][0]:.0f} to ", end="")
print(f"{second['step'][-1]:.0f}; the optimiser has counted {int(optimizer.t)}")

# %%
figure, ax = plt.subplots()
for history, style, label in (
    (second, "-", "second call, new objects: history of both"),
    (first, "o", "first call"),
):
    scored = np.isfinite(history["validation_nlpd"])
    ax.plot(history["step"][scored], history["validation_nlpd"][scored], style, ms=5, label=label)
ax.set(xlabel="step", ylabel="NLPD on other rows [nats per datum]")
ax.legend()
plt.show()

# %% [markdown]
# The second call goes on where the first ended: the curve has no jump.
#
# Rows that are scored along the way must not be the ones you report if you also choose settings by
# them; here nothing is chosen.
#
# ## The last pass
#
# For arrays `fit` ends with one exact pass over all rows (`polish=True`), which removes the noise
# of the last minibatches. A stream has no end, so there you ask for it yourself, with batches that
# hold each row once.

# %%


def scores(model):
    mean, _ = model.predict_y(split.X_test)
    rmse = np.sqrt(np.mean((split.Y_test - mean) ** 2))
    return f"RMSE {rmse:.4f}, NLPD {-np.mean(model.predict_log_density(split.test)):.4f}"


print("before:", scores(model))
optimizer.polish((rows[i : i + 5000, :D], rows[i : i + 5000, D:]) for i in range(0, N, 5000))
print("after: ", scores(model))

# %% [markdown]
# ## Many rows to predict
#
# Predictions treat `model.prediction_rows` rows at a time (4,096), so memory stays bounded; a full
# covariance that could not fit is refused with an error that says how large it would be.

# %%
many = np.tile(split.X_test, (20, 1))
mean, variance = model.predict_y(many)
print(f"{len(many)} rows predicted")
try:
    model.predict_f(np.zeros((100_000, D)), full_cov=True)
except ValueError as error:
    print(error)

# %% [markdown]
# ## One file for the result
#
# `save` keeps model and optimiser; after `load`, `gpn.fit(model, …)` goes on as if it had never
# stopped. Such files are pickles: load only those that you trust.

# %%
model.save(folder / "model.gpn")
loaded = gpn.load(folder / "model.gpn")
print(
    "same predictions:",
    np.array_equal(loaded.predict_y(split.X_test)[0], mean[: len(split.X_test)]),
)

# %% [markdown]
# ## When not to use GPNet here
#
# If a random subset of a few thousand rows already gives the score you need, the exact GP on it is
# simpler. If you need no probabilities, boosted trees are faster. SVGP trains from the same
# streams by the same `gpn.fit`: compare them on your data (notebook 8). Cost grows with the square
# and the cube of the number of features: for more than about 1,000 frequencies use
# `covariance="diag"` or a rank, and expect gradient steps, which learn more slowly.
