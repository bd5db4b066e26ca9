"""The tf.data service: other machines prepare the examples."""

import re
import socket

import tensorflow as tf

_ADDRESS = re.compile(r"grpc://(?P<host>[^/]+):(?P<port>\d+)")
_HOW = "Start one with tf.data.experimental.service.DispatchServer, and workers beside it: docs/data.md has the lines."


def _check_answers(service, seconds=5):
    """Without a dispatcher, TensorFlow would wait for one without a word.

    Raises:
        ValueError: if the address is none, or nothing accepts a connection there.
    """
    match = _ADDRESS.fullmatch(service)
    if not match:
        raise ValueError(f'Expected the data service as "grpc://HOST:PORT", of its dispatcher, got "{service}". {_HOW}')
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), seconds).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f'No dispatcher of the data service answers at "{service}" ({error}). {_HOW}') from None


def distribute(dataset, service, job):
    """`dataset`, prepared by the service's workers; shapes stay.

    The readers of one `job` get the elements first come first served, each once among them; what a worker holds is lost if it
    dies. The workers share out what the dataset's source yields (for Rows.numbers: steps).

    Args:
        dataset: for all readers the same.
        service: "grpc://host:port" of the dispatcher.
        job: its name. A dispatcher gives a known job's elements to all who name it, whatever dataset they bring.

    Raises:
        ValueError: if no dispatcher answers there within seconds.
    """
    _check_answers(service)
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    return dataset.apply(tf.data.experimental.service.distribute(policy, service, job_name=job))
