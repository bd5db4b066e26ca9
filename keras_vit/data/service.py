"""The tf.data service: other machines prepare the examples."""

import re
import socket

import tensorflow as tf

_ADDRESS = re.compile(r"grpc://(?P<host>[^/]+):(?P<port>\d+)")
_HOW = "Start one with tf.data.experimental.service.DispatchServer, and workers for it: docs/data.md has the commands."


def _check_answers(service, seconds=5):
    """Raises ValueError unless a dispatcher accepts connections there: TensorFlow would wait without a message."""
    match = _ADDRESS.fullmatch(service)
    if not match:
        raise ValueError(
            f'Expected the data service as "grpc://HOST:PORT", the address of its dispatcher, got "{service}". {_HOW}'
        )
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), seconds).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f'No dispatcher of the data service answers at "{service}" ({error}). {_HOW}') from None


def distribute(dataset: tf.data.Dataset, service: str, job: str) -> tf.data.Dataset:
    """`dataset` prepared by the service's workers, with the same shapes.

    Readers of one `job` receive elements first come, first served, each once; a dying worker's elements are lost.
    Workers split the elements of the dataset's source (for HostShard.row_numbers: steps).

    Args:
        dataset: the same for all readers.
        service: "grpc://host:port" of the dispatcher.
        job: its name. A dispatcher serves a known job to every reader that names it, whatever the reader's dataset.

    Raises:
        ValueError: if no dispatcher answers within seconds.
    """
    _check_answers(service)
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    return dataset.apply(tf.data.experimental.service.distribute(policy, service, job_name=job))
