# %% [markdown]
# # 7. Bayesian optimisation with trieste
#
# A GPNet as a model of [trieste](https://secondmind-labs.github.io/trieste/). Needs `pip install
# 'gpflow_gpnet[trieste]'`.
#
# What it has that SVGP lacks: *whole functions* drawn exactly from the posterior at the cost of
# one draw of weights, which is what Thompson sampling wants.

# %%
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import trieste
from trieste.acquisition.function import GreedyContinuousThompsonSampling
from trieste.acquisition.rule import EfficientGlobalOptimization
from trieste.objectives import ScaledBranin

from gpflow_gpnet.bayesian_optimisation import GPNetModel, build_gpnet

NUM_ROUNDS = 15  # short: 1
NUM_STEPS = 50  # short: 2
BATCH = 4

tf.random.set_seed(0)
space = ScaledBranin.search_space
observer = trieste.objectives.utils.mk_observer(ScaledBranin.objective)
start = observer(space.sample_sobol(10, skip=3))


def regrets(data):
    """How far the best value found so far is from the minimum, after each observation."""
    values = np.minimum.accumulate(data.observations.numpy()[:, 0])
    return values - float(ScaledBranin.minimum[0])


# %% [markdown]
# ## Expected improvement, one point at a time
#
# `build_gpnet` chooses kernel, priors and noise from the data and the search space, as trieste's
# own builders do. Everything after it is trieste.

# %%
model = GPNetModel(build_gpnet(start, space), num_steps=NUM_STEPS)
result = trieste.bayesian_optimizer.BayesianOptimizer(observer, space).optimize(
    NUM_ROUNDS, start, model, track_state=False
)
one_by_one = result.try_get_final_dataset()

# %% [markdown]
# ## Thompson sampling, four points at a time
#
# Each of the four is the minimum of another function from the posterior.

# %%
rule = EfficientGlobalOptimization(GreedyContinuousThompsonSampling(), num_query_points=BATCH)
model = GPNetModel(build_gpnet(start, space), num_steps=NUM_STEPS)
result = trieste.bayesian_optimizer.BayesianOptimizer(observer, space).optimize(
    -(-NUM_ROUNDS // 3), start, model, rule, track_state=False
)
four_at_a_time = result.try_get_final_dataset()

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
side = np.linspace(0, 1, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
surface = ScaledBranin.objective(tf.constant(grid)).numpy().reshape(60, 60)
axes[0].contour(side, side, surface, levels=15, cmap="cividis", linewidths=0.8)
for data, style, label in (
    (one_by_one, "o", "expected improvement"),
    (four_at_a_time, "^", "Thompson sampling"),
):
    axes[0].plot(*data.query_points.numpy()[len(start) :].T, style, ms=4, label=label)
    axes[1].semilogy(np.maximum(regrets(data), 1e-5), style + "-", ms=3, label=label)
axes[0].plot(*start.query_points.numpy().T, "kx", ms=5, label="start")
axes[0].set(xlabel="$x_1$", ylabel="$x_2$", title="points tried, on the function's contours")
axes[1].axvline(len(start) - 0.5, color="k", lw=0.8, ls=":")
axes[1].set(xlabel="observations", ylabel="best value - minimum", title="regret")
axes[1].legend(fontsize=7)
plt.show()

for name, data in (("expected improvement", one_by_one), ("Thompson sampling", four_at_a_time)):
    print(f"{name}: {len(data)} observations, best is {regrets(data)[-1]:.4f} above the minimum")

# %% [markdown]
# One run each: which rule is ahead here is chance.
#
# ## A trajectory
#
# `model.trajectory_sampler()` gives functions that can be evaluated, and differentiated, anywhere.
# Three of them along the line $x_2 = 0.5$, with the mean and two standard deviations:

# %%
line = np.stack([side, np.full_like(side, 0.5)], axis=-1)
trajectory = model.trajectory_sampler().get_trajectory()
functions = trajectory(tf.constant(np.repeat(line[:, None], 3, axis=1))).numpy()[..., 0]  # [60, 3]
mean, variance = (moment.numpy()[:, 0] for moment in model.predict(tf.constant(line)))

figure, ax = plt.subplots()
width = 2 * np.sqrt(variance)
ax.fill_between(side, mean - width, mean + width, color="0.85", label="mean ± 2 sd")
ax.plot(side, functions, lw=1)
ax.plot(side, ScaledBranin.objective(tf.constant(line)).numpy(), "k--", lw=1, label="truth")
ax.set(xlabel="$x_1$", ylabel="objective", title="three posterior functions, $x_2 = 0.5$")
ax.legend()
plt.show()

# %% [markdown]
# ## When not to use GPNet here
#
# Most Bayesian optimisation has tens or hundreds of observations: there trieste's exact GP
# (`build_gpr`) is exact and quicker. GPNet is for what the exact GP cannot do: thousands of
# observations (large batches, logged data), and likelihoods that are not Gaussian. For noise-free
# functions random features become over-confident as data accumulate.
