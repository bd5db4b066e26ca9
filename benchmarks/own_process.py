"""A measurement in a separate process, so that its peak memory is its own."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments) in a new process, for a module's function; its exceptions are raised here."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
