"""The mechanisms: each file reads like its paper's algorithm.

A mechanism states its privacy event and releases tokens. `protocol` says what that takes, and `base` holds
what the package's own mechanisms share: to add one, subclass `BaseMechanism` and `BaseRelease`, and name it
in `by_name`.
"""

from dpfewshot.mechanisms.adadpsyn import AdaDPSyn
from dpfewshot.mechanisms.gaussian import Gaussian
from dpfewshot.mechanisms.invisible_ink import InvisibleInk
from dpfewshot.mechanisms.noiseless import Noiseless
from dpfewshot.mechanisms.private_prediction import PrivatePrediction
from dpfewshot.mechanisms.protocol import Draws, FixedSize, Mechanism, Release, RowChange
from dpfewshot.mechanisms.public_centred import ClippingQuantile, PublicCentred
from dpfewshot.mechanisms.report_noisy_max import ReportNoisyMax
from dpfewshot.mechanisms.softmax_choice import SoftmaxChoice
from dpfewshot.mechanisms.sparse_vector import SparseVector

__all__ = [
    "AdaDPSyn",
    "ClippingQuantile",
    "Draws",
    "FixedSize",
    "Gaussian",
    "InvisibleInk",
    "Mechanism",
    "Noiseless",
    "PrivatePrediction",
    "PublicCentred",
    "Release",
    "ReportNoisyMax",
    "RowChange",
    "SoftmaxChoice",
    "SparseVector",
]
