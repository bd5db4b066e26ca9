"""A measurement in a process that does nothing else before or after: the most memory that it held is its own."""

import concurrent.futures
import multiprocessing
from collections.abc import Callable
from typing import Any


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), called in a new process. The function is one of a module; what it raises is raised here."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
