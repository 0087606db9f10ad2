"""Inference networks q(f): what represents the posterior in place of inducing points."""

from .adaptive_basis import AdaptiveBasis
from .base import InferenceNetwork, LinearNetwork
from .bnn import BNN
from .combinations import Deterministic, LinearSum, Sum
from .conv_ntk import ConvNTK
from .inducing import InducingFeatures
from .ntk import NTK, LinearisedNTK
from .random_features import RFE
from .weights import (
    DiagonalGaussian,
    FullGaussian,
    KroneckerGaussian,
    LowRankGaussian,
    WeightGaussian,
    weight_gaussian,
)

__all__ = [
    "AdaptiveBasis",
    "BNN",
    "ConvNTK",
    "Deterministic",
    "DiagonalGaussian",
    "FullGaussian",
    "InducingFeatures",
    "InferenceNetwork",
    "KroneckerGaussian",
    "LinearNetwork",
    "LinearSum",
    "LinearisedNTK",
    "LowRankGaussian",
    "NTK",
    "RFE",
    "Sum",
    "WeightGaussian",
    "weight_gaussian",
]
