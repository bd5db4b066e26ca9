"""MirroredStrategy on two devices, and what one device gives. For functions that run in a process with two devices."""

import functools

from small_models import distance, eager, reordered, trained

from keras_vit.distribution import strategy


@functools.cache
def two():
    """MirroredStrategy on two devices. A process can have only one."""
    chosen = strategy("mirrored")
    assert chosen.replicas == 2
    return chosen


def alone(optimizer, x, y, **options):
    """(what `trained` gives on one device, the distance of one device with each batch's rows in another order)."""
    with eager():
        found = trained(strategy("one"), optimizer, x, y, **options)
        return found, distance(found, trained(strategy("one"), optimizer, reordered(x), reordered(y), **options))
