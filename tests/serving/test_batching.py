"""Micro-batching: which rows are computed together, the order of results, and what happens when there are too many."""

import asyncio
import threading

import numpy as np
import pytest

from keras_vit.serving.http.batching import Batcher, Overloaded


def run(work):
    return asyncio.run(work)


def test_rows_that_come_together_are_computed_together_and_results_go_to_their_callers():
    sizes = []

    async def work():
        batcher = Batcher(lambda rows: (10 * rows).tolist(), max_rows=4, max_wait=0.05, computed=sizes.append)
        answers = await asyncio.gather(*(batcher.submit([np.array(i), np.array(i + 100)]) for i in range(5)))
        await batcher.close()
        return answers

    assert run(work()) == [[10 * i, 10 * i + 1000] for i in range(5)]
    assert sizes == [4, 4, 2]


def test_one_row_does_not_wait_for_others_for_ever():
    async def work():
        batcher = Batcher(lambda rows: rows.tolist(), max_rows=8, max_wait=0.01)
        return await asyncio.wait_for(batcher.submit([np.array(3)]), 5)

    assert run(work()) == [3]


def test_a_full_queue_refuses_and_a_free_one_goes_on():
    gate = threading.Event()

    def slow(rows):
        gate.wait(10)
        return rows.tolist()

    async def work():
        batcher = Batcher(slow, max_rows=1, max_wait=0, max_queue=2)
        first = asyncio.create_task(batcher.submit([np.array(0)]))
        while batcher.waiting or not batcher._task:  # until the thread has it
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.submit([np.array(i)])) for i in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 images are waiting, of 2 at most"):
            await batcher.submit([np.array(3)])
        gate.set()
        results = await asyncio.gather(first, *others)
        return results, await batcher.submit([np.array(4)])

    assert run(work()) == ([[0], [1], [2]], [4])


def test_an_error_reaches_the_callers_of_its_batch_alone():
    def picky(rows):
        if (rows < 0).any():
            raise ArithmeticError("negative")
        return rows.tolist()

    async def work():
        batcher = Batcher(picky, max_rows=1, max_wait=0)
        with pytest.raises(ArithmeticError):
            await batcher.submit([np.array(-1)])
        return await batcher.submit([np.array(1)])

    assert run(work()) == [1]


def test_a_caller_that_leaves_costs_no_computation():
    computed = []

    def note(rows):
        computed.extend(rows.tolist())
        return rows.tolist()

    async def work():
        batcher = Batcher(note, max_rows=3, max_wait=600)  # the third row ends the waiting
        gone, stays = (asyncio.create_task(batcher.submit([np.array(i)])) for i in (1, 2))
        await asyncio.sleep(0.01)
        gone.cancel()
        last = await batcher.submit([np.array(3)])
        return await stays, last

    assert run(work()) == ([2], [3]) and computed == [2, 3]
