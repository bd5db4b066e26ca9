"""The data of evaluators that measure a model as it is, without fitting anything: their own source, or else the
run's.
"""

import dataclasses
from typing import Any

from keras_vit.data import image_and_label, open_source
from keras_vit.evaluation.preprocessing import default_preprocessing
from keras_vit.evaluation.registry import Setting


def source_of(evaluator: Any, setting: Setting, split: str = "test") -> tuple[Setting, Any, str]:
    """(setting, source, preprocessing text) of an evaluator with the options source, split and preprocess.

    Args:
        evaluator: whose options they are.
        setting: of the run.
        split: of the evaluator's source, if it does not say which.

    Raises:
        ValueError: if neither the evaluator nor the run names data, or for a split without a source.
    """
    source, preprocess = setting.source, setting.preprocess
    if evaluator.source is not None:
        setting = dataclasses.replace(setting, select=image_and_label)
        source, preprocess = open_source(evaluator.source, evaluator.split or split, setting.data_dir), None
    elif evaluator.split is not None:
        raise ValueError(
            f'The evaluator "{type(evaluator).__name__}": split="{evaluator.split}" names a split of source=, which is'
            " missing; the run's own data has its split already."
        )
    if source is None:
        raise ValueError(f'The evaluator "{type(evaluator).__name__}" needs data: give its source.')
    return setting, source, evaluator.preprocess or preprocess or default_preprocessing(setting.model)
