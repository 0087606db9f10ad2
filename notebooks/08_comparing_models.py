# %% [markdown]
# # 8. Comparing models
#
# Which model is better on *your* data? `gpn.compare` trains models on the same random splits and
# scores them on the same held-out rows, in the units of the data.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

import gpflow_gpnet as gpn

NUM_SPLITS = 4  # short: 2
NUM_STEPS = 300  # short: 3
ITERATIONS = 40  # short: 2

# %% [markdown]
# ## Data
#
# UCI's `energy` (768 rows, 8 inputs, heating load of buildings) where the environment variable
# `GPNET_DATA` names a folder that has it or, with the extra `openml`, it can be fetched; Snelson's
# 200 points, which come with the package, elsewhere.

# %%
try:
    dataset = gpn.datasets.load("energy")
except FileNotFoundError:
    dataset = gpn.datasets.load("snelson")
print(dataset.name, dataset.X.shape)

# %% [markdown]
# ## Models
#
# A model is a function (X, Y) → trained model. It sees inputs and targets standardised by the
# training rows. Anything with `predict_f`, `predict_y`, `predict_log_density` and a likelihood
# will do.


# %%
def parts(X):
    """Kernel and likelihood to start from."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(X.shape[1]))
    return kernel, gpflow.likelihoods.Gaussian(0.1)


def fitted_parts(X, Y):
    """The same start for both approximations: the exact GP's hyperparameters on 300 rows."""
    kernel, likelihood = parts(X)
    gpn.fit_hyperparameters(kernel, likelihood, (X, Y), num_points=300, max_iterations=ITERATIONS)
    return kernel, likelihood


def exact_gp(X, Y):
    kernel, likelihood = parts(X)
    model = gpflow.models.GPR((X, Y), kernel, likelihood=likelihood)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": ITERATIONS}
    )
    return model


def svgp(X, Y):
    kernel, likelihood = fitted_parts(X, Y)
    Z = X[np.random.default_rng(0).choice(len(X), min(50, len(X) // 2), replace=False)]
    model = gpflow.models.SVGP(kernel, likelihood, Z, num_data=len(X))
    gpn.fit(model, (X, Y), num_steps=5 * NUM_STEPS, batch_size=200, seed=0, progress=False)
    return model


def gpnet(X, Y):
    kernel, likelihood = fitted_parts(X, Y)
    network = gpn.RFE(kernel, num_features=50)
    model = gpn.GPNet(kernel, likelihood, network, num_data=len(X))
    optimizer = gpn.FunctionalMirrorDescent(learning_rate=gpn.LinearDecay(0.01, NUM_STEPS))
    gpn.fit(
        model,
        (X, Y),
        optimizer=optimizer,
        num_steps=NUM_STEPS,
        batch_size=200,
        seed=0,
        progress=False,
    )
    return model


# %% [markdown]
# ## The comparison
#
# With `out="results.csv"` each result is written as soon as it is known, and what is there is not
# done again. A model that fails does not stop the rest.

# %%
comparison = gpn.compare(
    {"exact GP": exact_gp, "SVGP, 50": svgp, "GPNet": gpnet},
    dataset,
    splits=NUM_SPLITS,
    progress=False,
)
comparison.table(["rmse", "nlpd", "crps", "coverage_90", "calibration_error"])

# %% [markdown]
# Mean ± standard error over the splits. Lower is better, but for `coverage_90`, which should be
# 0.9.
#
# * **RMSE** scores the mean alone; **NLPD** and **CRPS** the whole prediction: one that is
#   confident and wrong pays for it.
# * The test rows of different splits overlap, so the standard errors are somewhat too small.
#
# Differences on the same split are less noisy than the means: `paired` takes them, with Wilcoxon's
# signed-rank test. With four splits its p-value cannot be below 0.12, so do not read a small one
# into it.

# %%
comparison.paired("exact GP", "nlpd")

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4))
gpn.plotting.violins(comparison, "nlpd", ax=axes[0])
axes[0].set_ylabel("test NLPD [nats per datum]")
axes[0].tick_params(axis="x", labelsize=8)
gpn.plotting.calibration(comparison, ax=axes[1])
plt.show()

# %% [markdown]
# Left: a dot for each split, the mean as a line. Right: the fraction of test targets below each
# predicted quantile, against its level; a calibrated model is on the diagonal, one whose curve is
# steeper in the middle is under-confident.
#
# In the run shown, on `energy`, GPNet is close to the exact GP that it approximates; SVGP with 50
# inducing points and Adam is behind, and less confident than it might be.
#
# ## Fair comparisons
#
# * Give each model its usual care: SVGP with 50 inducing points and Adam is not the best SVGP can
#   do.
# * Choose settings on training rows (a split of them, `validation_data`), never on the test rows.
# * Compare at equal time as well as at equal steps: `seconds` and `memory_mib` are columns.
# * Where the exact GP can be had, as here, it is the reference: an approximation that "beats" it
#   has another prior (a warp, trained frequencies) or better hyperparameters, not a better
#   posterior.
