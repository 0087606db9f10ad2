"""What the paper reports for regression, and the settings that it gives (Shi et al. 2019, B.2)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AIRLINE", "LOG_LIKELIHOOD", "RMSE", "SETTINGS", "Settings"]

BATCH_SIZE = 500
LEARNING_RATE = 0.003
NUM_FREQUENCIES = 1000
NUM_STEPS = 10_000
FIT_ROWS = 1000
"""Random rows whose exact marginal likelihood gives the hyperparameters that training starts at."""

METHODS = ("SVGP-100", "GPNet-100", "SVGP-500", "GPNet-500", "FBNN-500")
"""Columns of tables 3 and 4."""


@dataclass(frozen=True)
class Settings:
    """What differs between the paper's data sets."""

    beta0: float = 1.0
    xi: float = 1.0
    fit_first: bool = True
    """Whether hyperparameters start at an exact GP's on a subset; c(x) is then kernel-smoothed."""
    learn_hyperparameters: bool = False
    """Whether they are trained too, on the bound that is not scaled by N / B."""
    fbnn_learns_hyperparameters: bool | None = None
    """The same for FBNN; None: as above."""


_IN_TRAINING = {"fit_first": False, "learn_hyperparameters": True}
_AIRLINE = Settings(0.1, 0.1, learn_hyperparameters=True, fbnn_learns_hyperparameters=False)

SETTINGS = {
    "power": Settings(0.01, 0.1, **_IN_TRAINING),
    "protein": Settings(0.1, 0.1),
    "wine": Settings(**_IN_TRAINING),
    # In neither of the paper's lists; the authors' published script for it says so.
    "energy": Settings(**_IN_TRAINING),
    "airline_nyc2013": _AIRLINE,
    "airline_us2001": _AIRLINE,
}
"""By data set; those of Boston, Concrete and Kin8nm, the defaults, for all others."""

# Mean and standard error over 20 splits.
RMSE = {
    "boston": ((2.897, 0.132), (2.786, 0.142), (3.023, 0.187), (2.754, 0.143), (2.775, 0.141)),
    "concrete": ((5.768, 0.094), (5.301, 0.127), (5.075, 0.119), (5.050, 0.132), (5.089, 0.117)),
    "energy": ((0.469, 0.014), (0.493, 0.022), (0.439, 0.015), (0.461, 0.014), (0.459, 0.013)),
    "kin8nm": ((0.086, 0.001), (0.080, 0.001), (0.074, 0.000), (0.067, 0.000), (0.072, 0.000)),
    "power": ((3.941, 0.033), (3.942, 0.032), (3.791, 0.034), (3.898, 0.032), (4.135, 0.029)),
    "protein": ((4.536, 0.010), (4.540, 0.014), (4.154, 0.010), (4.329, 0.013), (4.087, 0.051)),
    "wine": ((0.625, 0.009), (0.614, 0.010), (0.626, 0.009), (0.627, 0.009), (0.633, 0.008)),
}
"""Table 3, by data set and in the order of :data:`METHODS`."""

LOG_LIKELIHOOD = {
    "boston": (
        (-2.465, 0.054),
        (-2.421, 0.049),
        (-2.458, 0.072),
        (-2.429, 0.055),
        (-2.437, 0.025),
    ),
    "concrete": (
        (-3.166, 0.015),
        (-3.115, 0.024),
        (-3.027, 0.023),
        (-3.066, 0.022),
        (-3.046, 0.029),
    ),
    "energy": (
        (-0.675, 0.024),
        (-1.060, 0.008),
        (-0.600, 0.033),
        (-0.847, 0.013),
        (-0.755, 0.018),
    ),
    "kin8nm": ((1.006, 0.004), (1.095, 0.011), (1.183, 0.004), (1.283, 0.005), (1.189, 0.005)),
    "power": (
        (-2.793, 0.008),
        (-2.794, 0.007),
        (-2.755, 0.008),
        (-2.783, 0.008),
        (-2.847, 0.006),
    ),
    "protein": (
        (-2.932, 0.002),
        (-3.057, 0.032),
        (-2.841, 0.002),
        (-2.986, 0.029),
        (-2.821, 0.014),
    ),
    "wine": (
        (-0.949, 0.014),
        (-0.917, 0.014),
        (-0.949, 0.015),
        (-0.948, 0.014),
        (-0.961, 0.013),
    ),
}
"""Table 4, nats per datum, likewise."""

AIRLINE = {
    "SVGP-100": (24.261, -4.618),
    "GPNet-100": (24.055, -4.616),
    "FBNN-100": (23.801, -4.586),
    "SVGP-500": (23.698, -4.594),
    "GPNet-500": (23.675, -4.601),
    "FBNN-500": (24.114, -4.582),
}
"""Table 1: RMSE in minutes and test log-likelihood, on flights of January to April 2018."""
