"""In-context learning: using demonstrations with any language model. All of it is post-processing.

Texts to label may be confidential: they reach the model, but no message, repr or log.
"""

from dpfewshot.icl.calibration import Calibration, batch_calibrated
from dpfewshot.icl.classifier import Classifier, Prediction
from dpfewshot.icl.extractor import Extractor
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format

__all__ = [
    "Calibration",
    "Classifier",
    "Extractor",
    "Prediction",
    "PromptFormat",
    "batch_calibrated",
    "prompt_format",
]
