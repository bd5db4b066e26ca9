"""Clusters for tf.distribute: workers listed in TF_CONFIG, and TPUs."""

import json
import os
import socket
from typing import Any

from absl import logging


def multi_worker_strategy() -> tuple[Any, int, int]:
    """(tf.distribute.MultiWorkerMirroredStrategy, number of workers, own index), from TF_CONFIG, or ValueError."""
    example = '{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        raise ValueError(
            f'The strategy "multiworker" needs TF_CONFIG, the same on every worker except for the index: {example}'
        )
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        index, kind = int(task["index"]), task.get("type", "worker")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"TF_CONFIG is not valid ({error!r}): {text}. Example: {example}") from None
    if kind != "worker" or set(config["cluster"]) != {"worker"} or not 0 <= index < len(workers):
        raise ValueError(
            f"TF_CONFIG: got task {kind} {index} in a cluster of"
            f' { ({k: len(v) for k, v in config["cluster"].items()}) }. Expected only tasks of type "worker",'
            " numbered from 0 (the first is the chief)."
        )
    import tensorflow as tf

    logging.info("Worker %d of %d (%s) is waiting for the others.", index, len(workers), ", ".join(workers))
    tf.get_logger().setLevel("WARNING")  # it would log every sum over workers
    try:
        engine = tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise ValueError(
            'keras_vit.strategy("multiworker") must come before any TensorFlow operation: it is where the workers'
            f" join. ({error})"
        ) from None
    return engine, len(workers), index


def _check_answers(address, seconds=10):
    """OSError unless something listens at "grpc://host:port"; TensorFlow itself would wait forever."""
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    socket.create_connection((host, int(port)), timeout=seconds).close()


def tpu_strategy(name: str | None = None) -> Any:
    """A tf.distribute.TPUStrategy by name or address; None for TPU_NAME in the environment, or this machine's TPU.

    ValueError if there is no TPU, or it does not answer.
    """
    import tensorflow as tf

    name = name or os.environ.get("TPU_NAME", "local")
    if name == "local" and not tf.config.list_physical_devices("TPU"):
        raise ValueError(
            "There is no TPU on this machine, or TensorFlow does not see it. On a TPU VM, install the tpu extra and"
            " import keras_vit before tensorflow (it sets the environment that TensorFlow's TPU plugin needs); for a"
            " slice, give its name (--tpu=NAME, or TPU_NAME). See docs/tpu.md."
        )
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if resolver.master().startswith("grpc://"):
            _check_answers(resolver.master())
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:  # errors of the name service, the network and the TPU share no base class
        raise ValueError(
            f'The TPU "{name}" does not answer: {type(error).__name__}: {error} Check the name, that it is READY'
            " (gcloud compute tpus tpu-vm list), and that this machine is in the same network. See docs/tpu.md."
        ) from error
    return tf.distribute.TPUStrategy(resolver)
