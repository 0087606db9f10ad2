"""Inference networks for Gaussian processes: GPNet, a drop-in for GPflow's SVGP."""

from . import (
    callbacks,
    classification,
    datasets,
    kernels,
    likelihoods,
    measurement,
    plotting,
    step_sizes,
)
from ._version import __version__
from .compare import compare
from .defaults import defaults
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
    ConvNTK,
    Deterministic,
    InducingFeatures,
    InferenceNetwork,
    LinearisedNTK,
    LinearNetwork,
    LinearSum,
    Sum,
    weight_gaussian,
)
from .mirror_descent import FunctionalMirrorDescent
from .saving import load, load_into, save_arrays
from .scaling import Scaling
from .step_sizes import Constant, InverseSqrt, InverseTime, LinearDecay

__all__ = [
    "AdaptiveBasis",
    "BNN",
    "Constant",
    "ConvNTK",
    "Deterministic",
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
    "LinearSum",
    "LinearisedNTK",
    "NTK",
    "RFE",
    "Scaling",
    "Sum",
    "__version__",
    "callbacks",
    "classification",
    "compare",
    "datasets",
    "defaults",
    "fit",
    "fit_hyperparameters",
    "kernels",
    "likelihoods",
    "load",
    "load_into",
    "measurement",
    "plotting",
    "save_arrays",
    "step_sizes",
    "weight_gaussian",
]
