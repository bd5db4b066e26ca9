"""Micro-batching: computes concurrent requests together, with bounds on waiting and on the queue."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Overloaded(Exception):
    """The queue is full: try again later."""


class Batcher:
    """Collects rows and calls a function on batches of them, in a dedicated thread. Use it from one event loop.

    Args:
        function: rows (b, ...), an array -> a sequence of b results.
        max_rows: most rows per call.
        max_wait: seconds that a batch's first row waits for others while the function is idle.
        max_queue: most waiting rows; more raise Overloaded.
        computed: called with the number of rows before each call.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray], Sequence],
        max_rows: int = 16,
        max_wait: float = 0.005,
        max_queue: int = 256,
        computed: Callable[[int], None] = lambda rows: None,
    ):
        self.function, self.max_rows, self.max_wait, self.max_queue = function, max_rows, max_wait, max_queue
        self.computed = computed
        self._waiting: asyncio.Queue = asyncio.Queue()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="model")
        self._task: asyncio.Task | None = None

    @property
    def waiting(self) -> int:
        """Rows that wait for a call."""
        return self._waiting.qsize()

    async def submit(self, rows: Sequence[np.ndarray]) -> list[Any]:
        """The results of rows of equal shape, possibly from several calls.

        Raises:
            Overloaded: if the queue lacks room for all of them.
        """
        if self.waiting + len(rows) > self.max_queue:
            raise Overloaded(f"{self.waiting} images are waiting, of {self.max_queue} at most.")
        self._task = self._task or asyncio.create_task(self._work())
        futures = [asyncio.get_running_loop().create_future() for _ in rows]
        for row, future in zip(rows, futures):
            self._waiting.put_nowait((row, future))
        return await asyncio.gather(*futures)

    async def _collect(self):
        """The next rows, at least one, with callers that still wait."""
        batch = [await self._waiting.get()]
        deadline = asyncio.get_running_loop().time() + self.max_wait
        while len(batch) < self.max_rows:
            if not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
                continue
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self._waiting.get(), left))
            except TimeoutError:
                break
        return [(row, future) for row, future in batch if not future.done()]

    async def _work(self):
        while True:
            batch = await self._collect()
            if not batch:
                continue
            self.computed(len(batch))
            try:
                rows = np.stack([row for row, _ in batch])
                results = await asyncio.get_running_loop().run_in_executor(self._thread, self.function, rows)
                outcomes = [(future.set_result, result) for (_, future), result in zip(batch, results, strict=True)]
            except Exception as error:  # callers report it; the next batch runs regardless
                outcomes = [(future.set_exception, error) for _, future in batch]
            for (_, future), (settle, outcome) in zip(batch, outcomes):
                if not future.done():  # its caller may have left
                    settle(outcome)

    async def close(self) -> None:
        """Stops, and cancels what waits."""
        if self._task is not None:
            self._task.cancel()
        while not self._waiting.empty():
            self._waiting.get_nowait()[1].cancel()
        self._thread.shutdown(wait=False)
