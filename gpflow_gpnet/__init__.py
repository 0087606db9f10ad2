"""Inference networks for Gaussian processes: GPNet, a drop-in for GPflow's SVGP."""

from . import callbacks, datasets, measurement, plotting, step_sizes
from ._version import __version__
from .fbnn import FBNN
from .fit import fit
from .gpnet import GPNet
from .history import History
from .hyperparameters import fit_hyperparameters
from .inference_networks import (
    BNN,
    NTK,
    RFE,
    AdaptiveBasis,
    InducingFeatures,
    InferenceNetwork,
    LinearisedNTK,
    LinearNetwork,
    weight_gaussian,
)
from .mirror_descent import FunctionalMirrorDescent
from .step_sizes import Constant, InverseSqrt, InverseTime, LinearDecay

__all__ = [
    "AdaptiveBasis",
    "BNN",
    "Constant",
    "FBNN",
    "FunctionalMirrorDescent",
    "GPNet",
    "History",
    "InducingFeatures",
    "InferenceNetwork",
    "InverseSqrt",
    "InverseTime",
    "LinearDecay",
    "LinearNetwork",
    "LinearisedNTK",
    "NTK",
    "RFE",
    "__version__",
    "callbacks",
    "datasets",
    "fit",
    "fit_hyperparameters",
    "measurement",
    "plotting",
    "step_sizes",
    "weight_gaussian",
]
