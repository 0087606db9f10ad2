# %% [markdown]
# # 9. Uncertainty away from the data: what c(x) covers
#
# An inference network is held to the prior only where the two are compared: at the measurement
# points, drawn from c(x). Where c(x) has no mass nothing says what the network should do there.
# This notebook shows what that means, for networks that know the prior and for such that do not.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

import gpflow_gpnet as gpn

NUM_STEPS = 1500  # short: 3

# %% [markdown]
# Snelson's points with a gap: none between 2 and 4, and predictions from 2 left of the data to 2
# right of them. Hyperparameters are fitted by the exact GP and fixed.

# %%
dataset = gpn.datasets.load("snelson")
keep = (dataset.X[:, 0] < 2.0) | (dataset.X[:, 0] > 4.0)
data = X, Y = dataset.X[keep], dataset.Y[keep]
Xnew = np.linspace(X.min() - 2.0, X.max() + 2.0, 300)[:, None]

kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
gpn.fit_hyperparameters(kernel, likelihood, data)
for module in (kernel, likelihood):
    gpflow.set_trainable(module, False)
exact = gpflow.models.GPR(data, kernel, likelihood=likelihood)
print(f"{len(X)} points; lengthscale {float(kernel.lengthscales.numpy()):.2f}")

# %%
c = gpn.measurement
COVERAGE = {
    "the data alone": c.BatchInputs(),
    "default: data and near them": None,
    "all of the plot": c.Uniform(Xnew.min(), Xnew.max()),
}


def train(network, measurement, **settings):
    model = gpn.GPNet(
        kernel,
        likelihood,
        network,
        num_data=len(X),
        measurement=measurement,
        num_measurement_points=40,
    )
    optimizer = gpn.FunctionalMirrorDescent(
        learning_rate=gpn.LinearDecay(0.02, NUM_STEPS), **settings
    )
    gpn.fit(
        model,
        data,
        optimizer=optimizer,
        num_steps=NUM_STEPS,
        batch_size=len(X),
        seed=0,
        progress=False,
        log_every=100,
    )
    return model


def show(title, networks, **settings):
    figure, axes = plt.subplots(1, len(COVERAGE), figsize=(10, 3), sharey=True)
    away = (Xnew[:, 0] < X.min()) | (Xnew[:, 0] > X.max())
    gap = (Xnew[:, 0] > 2.0) & (Xnew[:, 0] < 4.0)
    exact_sd = np.sqrt(exact.predict_f(Xnew)[1])[:, 0]
    print(f"{title}: sd over the exact GP's, mean{'in the gap':>30}{'beyond the data':>18}")
    for ax, (name, measurement) in zip(axes, COVERAGE.items(), strict=True):
        model = train(networks(), measurement, **settings)
        gpn.plotting.posterior(model, Xnew, data, reference=exact, num_sds=2, ax=ax)
        ax.set(title=f"c(x): {name}", xlabel="x", ylim=(-5, 5))
        ratio = np.sqrt(model.predict_f(Xnew)[1])[:, 0] / exact_sd
        print(f"  {name:30}{ratio[gap].mean():36.2f}{ratio[away].mean():18.2f}")
    axes[0].set_ylabel("f(x)")
    axes[0].legend(loc="lower left", fontsize=7)
    figure.suptitle(title)
    plt.show()


# %% [markdown]
# ## A network that knows the prior
#
# Random features of the kernel start *at the prior*, everywhere, and only the data take them away.

# %%
show("RFE, 30 frequencies", lambda: gpn.RFE(kernel, 1, num_features=30))

# %% [markdown]
# ## A network that does not
#
# An adaptive basis (the last hidden layer of a neural network) knows of the kernel its variance
# and lengthscale at the start, no more. Between and beyond the data its uncertainty is what c(x)
# teaches it.

# %%
show(
    "AdaptiveBasis, 50 tanh units",
    lambda: gpn.AdaptiveBasis((50, 50), kernel=kernel, input_dim=1),
)

# %% [markdown]
# ## What to read from this
#
# * **Among the data** all six agree with the exact GP: c(x) does not matter there.
# * **Random features** of the kernel are near the prior wherever they are not told otherwise. With
#   the data alone their band in the gap and beyond is about right in size, but the mean wanders:
#   30 frequencies cannot be the prior everywhere, and nothing says where it matters. Measured over
#   the whole plot, they are the exact GP to a few per cent.
# * **The adaptive basis** is over-confident in the gap and beyond it unless c(x) covers them.
#   Covered, it is better, and still not the exact GP: 50 units are not enough.
#
# So: put the inputs at which you will ask for predictions into c(x) (`measurement=`), such as a
# `Uniform` over the region, or `Empirical(Xtest)`, which needs no targets. Inputs that c(x) covers
# and the network cannot express stay wrong; for these only a richer network helps.
#
# ## Limits of this advice
#
# Uniform points over a box work for a few inputs. In ten dimensions no number of points covers a
# box: there the default (the data and points near them) is what can be had, and uncertainty far
# from the data is the network's opinion.
