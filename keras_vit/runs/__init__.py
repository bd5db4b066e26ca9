"""A training run from a config: its directory, checkpoints, faults, seeds and sweeps."""

from keras_vit.io.durations import resolve_steps
from keras_vit.runs.loop.callbacks import MetricsLog
from keras_vit.runs.saving.checkpointing import Checkpoints
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.runs.seeds import run_seeds
from keras_vit.runs.sweep import run_sweep
from keras_vit.runs.training_run import run

__all__ = ["Checkpoints", "MetricsLog", "RunDirectory", "resolve_steps", "run", "run_seeds", "run_sweep"]
