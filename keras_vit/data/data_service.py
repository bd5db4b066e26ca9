"""Prepares examples on other machines with the tf.data service."""

import re
import socket

import tensorflow as tf

_ADDRESS = re.compile(r"grpc://(?P<host>[^/]+):(?P<port>\d+)")
_HOW = "Start a tf.data.experimental.service.DispatchServer and workers, as in docs/reference/several_hosts.md."


def _check_answers(service, seconds=5):
    """Raises ValueError unless a dispatcher accepts connections; TensorFlow would wait silently."""
    match = _ADDRESS.fullmatch(service)
    if not match:
        raise ValueError(
            f'Expected the address of the data service\'s dispatcher, "grpc://HOST:PORT", got "{service}". {_HOW}'
        )
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), seconds).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f'No dispatcher of the data service answers at "{service}" ({error}). {_HOW}') from None


def distribute(dataset: tf.data.Dataset, service: str, job: str) -> tf.data.Dataset:
    """Prepares `dataset` on the service's workers; shapes stay.

    Readers of one `job` receive each element once, first come, first served; the elements of a dying worker are lost.
    Workers split the elements of the dataset's source (for HostShard.row_numbers: steps).

    Args:
        dataset: tf.data.Dataset. The same for all readers.
        service: str. "grpc://host:port" of the dispatcher.
        job: str. Name of the job. A dispatcher serves a known job to every reader that names it, whatever the reader's
            dataset.

    Raises:
        ValueError: if no dispatcher answers within seconds.
    """
    _check_answers(service)
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    return dataset.apply(tf.data.experimental.service.distribute(policy, service, job_name=job))
