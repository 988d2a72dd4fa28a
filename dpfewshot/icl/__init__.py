"""In-context learning: demonstrations at work. All of it is post-processing, with any language model.

A text to be labelled may be confidential: it reaches the model, and no message, representation or log.
"""

from dpfewshot.icl.calibration import batch_calibrated
from dpfewshot.icl.classifier import Classifier, Prediction
from dpfewshot.icl.extractor import Extractor
from dpfewshot.prompts.few_shot import PromptFormat, prompt_format

__all__ = ["Classifier", "Extractor", "Prediction", "PromptFormat", "batch_calibrated", "prompt_format"]
