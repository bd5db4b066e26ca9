"""A finished run of the digits, for the tests of cards: it must not be written to."""

import pytest
import tensorflow as tf

from keras_vit.runs import run
from trainers import config_files


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The directory of a run of six steps, with an evaluator beside its own evaluation."""
    config = config_files.load_config("digits_pretrain")
    config.update(total="6 steps", evaluate="3 steps", checkpoint="6 steps", batch_size=16, jit_compile=False)
    config.model.update(depth=1, width=32, heads=2, mlp_dim=32)
    config.data.update(train="train[:64]", evaluation="test[:48]")
    config.evals.knn = {"source": "digits", "train": "train[:64]", "test": "test[:32]", "k": 4, "every": None}
    folder = tmp_path_factory.mktemp("runs") / "digits"
    tf.config.run_functions_eagerly(True)  # tracing is most of what so few steps take
    try:
        run(config, folder)
    finally:
        tf.config.run_functions_eagerly(False)
    return folder
