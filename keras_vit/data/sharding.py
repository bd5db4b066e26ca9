"""Assigns rows of the global batches to hosts.

A step's global batch is split into contiguous parts, one per host, and each part into batches, one per replica.
Concatenated in this order, the hosts' batches equal the batch of a single host.
"""

import dataclasses

import numpy as np
import tensorflow as tf

ENDLESS = np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class HostShard:
    """One host's rows in a stream of global batches. Row r of step s has number s * batch_size + r.

    Attributes:
        batch_size: int. Rows of the global batch.
        index, count: int. The host is number `index` of `count`.
        replicas: int. Batches into which the host's rows of a step are split.

    Raises:
        ValueError: if `index` is not below `count`, or the batch cannot be split evenly.
    """

    batch_size: int
    index: int = 0
    count: int = 1
    replicas: int = 1

    def __post_init__(self):
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard=({self.index}, {self.count}): expected (index, count) with 0 <= index < count.")
        if self.replicas < 1:
            raise ValueError(f"replicas={self.replicas}: expected at least 1 replica per host.")
        parts = self.count * self.replicas
        if self.batch_size < 1 or self.batch_size % parts:
            below = max(self.batch_size, 0) // parts * parts
            nearest = f"{below} or {below + parts}" if below else f"{parts}"
            raise ValueError(
                f"batch_size={self.batch_size}, the global batch, cannot be split evenly among {parts} replicas (hosts:"
                f" {self.count}, replicas per host: {self.replicas}). Nearest valid sizes: {nearest}."
            )

    @property
    def per_host(self) -> int:
        """Rows per host in each step."""
        return self.batch_size // self.count

    @property
    def per_replica(self) -> int:
        """Rows per batch."""
        return self.per_host // self.replicas

    def row_numbers(self, start_step: int = 0) -> tf.data.Dataset:
        """Yields the host's row numbers from a step on, endlessly. A tf.data service splits them by step."""

        @tf.autograph.experimental.do_not_convert
        def of_step(step):
            first = step * self.batch_size + self.index * self.per_host
            return tf.data.Dataset.range(first, first + self.per_host)

        return tf.data.Dataset.range(start_step, ENDLESS).flat_map(of_step)

    def select(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Selects the host's elements from a dataset of all rows in order."""
        if self.count == 1:
            return dataset
        parts = dataset.skip(self.index * self.per_host).window(self.per_host, shift=self.batch_size)

        def rows(*part):
            return part[0] if len(part) == 1 else tf.data.Dataset.zip(part)

        return parts.flat_map(tf.autograph.experimental.do_not_convert(rows))

    def count_below(self, size: int) -> int:
        """Counts the host's rows among rows 0 to `size` - 1."""
        steps, rest = divmod(size, self.batch_size)
        return steps * self.per_host + min(max(rest - self.index * self.per_host, 0), self.per_host)


WHOLE = HostShard(1)  # all rows
