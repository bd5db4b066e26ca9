"""Bipartite matching of queries and targets, for set losses (DETR, arXiv 2005.12872, equation 1).

`match` finds the assignment of least total cost by shortest augmenting paths (Jonker and Volgenant, 1987; Crouse, 2016,
for rectangular problems; SciPy's linear_sum_assignment). Shapes are static, the images of a batch advance together, and
the loops are keras.ops.while_loop: it runs inside compiled steps on TensorFlow, XLA and JAX.

Letters: b images, m targets (padded), q queries. Prices u (b, m) and v (b, q) keep cost - u - v >= 0, and 0 for matched
pairs; `query_of` (b, m) is each target's query, -1 for none.
"""

import functools
from typing import Any

from keras import ops

from keras_vit.layers.backend import compiles_parts, one_pass

_LARGE = 1e9  # of costs that are not finite


def _at(values, index):
    """values[i, index[i]] for each image i: (b, n), (b,) -> (b,); (b, n, k), (b,) -> (b, k)."""
    index = ops.reshape(index, (-1, *[1] * (len(values.shape) - 1)))
    return ops.squeeze(ops.take_along_axis(values, index, axis=1), 1)


def _is_place(index, n):
    """Which of n places is index (b,): booleans (b, n); none for -1."""
    return ops.arange(n, dtype="int32")[None] == index[:, None]


def _place(flags):
    """The first True of each row: (b, n) -> int32 (b,)."""
    return ops.cast(ops.argmax(flags, axis=1), "int32")


def _some_left(*state):
    """Whether the loop goes on for an image: any of the last variable."""
    return ops.any(state[-1])


def _start(costs, valid):
    """Each target takes its cheapest query unless an earlier target does: (u, v, query_of)."""
    m = costs.shape[1]
    cheapest = ops.cast(ops.argmin(costs, axis=2), "int32")  # (b, m)
    is_earlier = ops.arange(m)[None, :] < ops.arange(m)[:, None]  # (m, m)
    taken = (cheapest[:, :, None] == cheapest[:, None, :]) & is_earlier & valid[:, None, :]  # (b, m, m)
    query_of = ops.where(valid & ~ops.any(taken, axis=2), cheapest, -1)
    return ops.min(costs, axis=2), ops.zeros_like(costs[:, 0]), query_of


def _search(costs, u, v, query_of, target, wanting):
    """Dijkstra's algorithm from `target` (b,) to the nearest unmatched query, in the images that are `wanting` (b,).

    Of equally near queries an unmatched one is taken, which ends the search: the queries that `match` adds for targets
    left over are all equally near.

    Returns:
        That query (b,); `parent` (b, q), the target before each query on its shortest path; `reached` (b, q), by how
        much a visited query is nearer than the one found, else 0; the length of the path (b,), 0 if not wanting.
    """
    q = costs.shape[2]
    is_free = ~ops.any(query_of[:, :, None] == ops.arange(q, dtype="int32"), axis=1)  # (b, q)

    def step(distance, parent, done, row, length, found, searching):
        onward = length[:, None] + _at(costs, row) - _at(u, row)[:, None] - v  # (b, q)
        closer = searching[:, None] & ~done & (onward < distance)
        distance, parent = ops.where(closer, onward, distance), ops.where(closer, row[:, None], parent)
        left = ops.where(done, float("inf"), distance)
        is_least = left == ops.min(left, axis=1, keepdims=True)
        nearest = ops.argmax(ops.cast(is_least, "int32") * ops.where(is_free, 2, 1), axis=1)  # the first of them
        nearest = ops.cast(nearest, "int32")  # (b,)
        length, found = ops.where(searching, _at(distance, nearest), length), ops.where(searching, nearest, found)
        done = done | (searching[:, None] & _is_place(nearest, q))
        owner = query_of == nearest[:, None]  # (b, m), one at most
        searching = searching & ops.any(owner, axis=1)
        return distance, parent, done, ops.where(searching, _place(owner), row), length, found, searching

    zeros, start = ops.zeros_like(v), ops.zeros_like(target)
    state = (zeros + float("inf"), ops.cast(zeros, "int32"), zeros > 0, target, zeros[:, 0], start, wanting)
    state = ops.while_loop(_some_left, step, state, maximum_iterations=costs.shape[1] + 1)
    distance, parent, done, _, length, found, _ = state
    return found, parent, ops.where(done, length[:, None] - distance, 0.0), length


def _augment(query_of, parent, target, query, wanting):
    """`query_of` after each target on the path takes the next query, and leaves its own to the target before it."""
    m = query_of.shape[1]

    def step(query_of, query, moving):
        row = _at(parent, query)
        left = _at(query_of, row)
        here = moving[:, None] & _is_place(row, m)
        return ops.where(here, query[:, None], query_of), ops.maximum(left, 0), moving & (row != target)

    return ops.while_loop(_some_left, step, (query_of, query, wanting), maximum_iterations=m)[0]


def _match(costs, valid):
    """`match` of finite costs (b, m, q), q >= m."""
    m = costs.shape[1]

    def step(u, v, query_of, pending):
        target, wanting = _place(pending), ops.any(pending, axis=1)
        query, parent, reached, length = _search(costs, u, v, query_of, target, wanting)
        passed = ops.where(query_of < 0, 0.0, ops.take_along_axis(reached, ops.maximum(query_of, 0), axis=1))  # (b, m)
        u, v = u + passed + ops.where(_is_place(target, m), length[:, None], 0.0), v - reached
        query_of = _augment(query_of, parent, target, query, wanting)
        return u, v, query_of, valid & (query_of < 0)

    u, v, query_of = _start(costs, valid)
    state = (u, v, query_of, valid & (query_of < 0))
    return ops.while_loop(_some_left, step, state, maximum_iterations=m)[2]


@functools.cache
def _compiled():
    return one_pass(_match)


def match(costs: Any, valid: Any) -> Any:
    """The assignment of distinct queries to targets with the least total cost.

    Args:
        costs: (b, q, m), the cost of each query for each target; costs that are not finite count as 1e9.
        valid: (b, m) booleans, which targets are there; the others are padding, at any place.

    Returns:
        int32 (b, m), the query of each target; -1 for padding, and for the targets left over if there are more than
        queries. It has no gradient.
    """
    costs, valid = ops.stop_gradient(ops.cast(costs, "float32")), ops.cast(valid, "bool")
    q, m = costs.shape[1:]
    costs = ops.where(ops.abs(costs) < _LARGE, costs, _LARGE)  # NaN < x is False
    if m > q:  # m - q more queries, dearer than the others
        dearest = ops.max(costs, axis=(1, 2), keepdims=True) + 1.0  # (b, 1, 1)
        costs = ops.concatenate([costs, dearest + ops.zeros((1, m - q, m))], axis=1)
    costs = ops.transpose(costs, (0, 2, 1))  # (b, m, q)
    found = (_compiled() if compiles_parts() else _match)(costs, valid)
    return ops.where(found < q, found, -1)
