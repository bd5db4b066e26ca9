"""Patches in groups: which keys each patch attends to, computed group by group as a batch.

One class per pattern. Its methods arrange tensors, or with xp=numpy the numbers of the patches: the same lines say what
is computed and which pairs of patches take part. Padding is 0, which is the number of no patch.

Letters: b images (times heads), h w grid, m groups, s queries and t keys of a group, c values.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from keras import ops

from keras_vit.layers.attention.patterns import PATTERNS, parse
from keras_vit.layers.attention.token_masks import causal_softmax, masked_softmax
from keras_vit.layers.attention.windows import pad, padding, partition, unpartition

_BLOCK = 4  # patches per side of a block of local attention, at least


def with_neighbours(x: Any, before: int, after: int, xp: ModuleType = ops) -> Any:
    """Each group with the last places of the group before it and the first of the one after; zeros at the ends.

    Args:
        x: (b, m, s, c).
        before, after: numbers of places, at most s.
        xp: keras.ops or numpy.

    Returns:
        (b, m, before + s + after, c).
    """
    s = x.shape[2]
    padded = xp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))  # (b, m + 2, s, c)
    parts = [padded[:, :-2, s - before :]] if before else []
    parts += [x]
    parts += [padded[:, 2:, :after]] if after else []
    return xp.concatenate(parts, axis=2)


class Groups:
    """The base: each row of the grid is a group, and its patches attend to one another.

    Args:
        grid: (h, w) patches.
        causal: whether patches attend only to themselves and earlier ones, row by row.
    """

    def __init__(self, grid: tuple[int, int], causal: bool = False):
        self.grid, self.causal = grid, causal

    def _map(self, x, xp):
        return xp.reshape(x, (-1, *self.grid, x.shape[-1]))  # (b, h*w, c) -> (b, h, w, c)

    def queries(self, x: Any, xp: ModuleType = ops) -> Any:
        """Patches as the queries of groups: (b, h*w, c) -> (b, m, s, c)."""
        return self._map(x, xp)

    def patches(self, y: Any) -> Any:
        """The inverse of `queries`."""
        return ops.reshape(y, (-1, self.grid[0] * self.grid[1], y.shape[-1]))

    def keys(self, x: Any, xp: ModuleType = ops) -> list:
        """Patches as the keys of groups: (b, h*w, c) -> [(b, m, t, c)], one array for each arrangement of groups."""
        return [self.queries(x, xp)]

    def arranged(self, y: Any, number: int, xp: ModuleType = ops) -> Any:
        """Queries' values (b, m, s, c) in arrangement `number`, and back: its own inverse."""
        return y

    def pairs(self, number: int, i: np.ndarray, j: np.ndarray) -> Any:
        """Which patches i attend to patches j of their group, by numbers from 1; True for all."""
        return True


class Columns(Groups):
    """Each column of the grid is a group."""

    def queries(self, x, xp=ops):
        return xp.transpose(self._map(x, xp), (0, 2, 1, 3))  # (b, h, w, c) -> (b, w, h, c)

    def patches(self, y):
        return super().patches(ops.transpose(y, (0, 2, 1, 3)))


class Windows(Groups):
    """Windows of `size` x `size` patches, or of the grid's side if it is smaller; the last ones may be padded."""

    def __init__(self, grid: tuple[int, int], causal: bool, size: int):
        super().__init__(grid, causal)
        self.window = (min(size, grid[0]), min(size, grid[1]))

    def queries(self, x, xp=ops):
        windows = partition(pad(self._map(x, xp), self.window, xp), self.window, xp)  # (b*m, s, c)
        (h, w), (below, right), s = self.grid, padding(self.grid, self.window), windows.shape[1]
        return xp.reshape(windows, (-1, (h + below) * (w + right) // s, s, x.shape[-1]))

    def patches(self, y):
        (h, w), (below, right) = self.grid, padding(self.grid, self.window)
        windows = ops.reshape(y, (-1, *y.shape[2:]))  # (b, m, s, c) -> (b*m, s, c)
        return super().patches(unpartition(windows, self.window, (h + below, w + right))[:, :h, :w])


class _Lines(Groups):
    """The base of the Sparse Transformer's patterns: lines of l patches, row by row; the last one may be padded."""

    def __init__(self, grid: tuple[int, int], causal: bool, length: int):
        super().__init__(grid, causal)
        self.length = length

    def queries(self, x, xp=ops):
        n, c = self.grid[0] * self.grid[1], x.shape[-1]
        x = xp.pad(x, ((0, 0), (0, -n % self.length), (0, 0))) if n % self.length else x
        return xp.reshape(x, (-1, -(-n // self.length), self.length, c))  # (b, n, c) -> (b, m, l, c)

    def patches(self, y):
        n = self.grid[0] * self.grid[1]
        return ops.reshape(y, (-1, y.shape[1] * self.length, y.shape[-1]))[:, :n]


class Strided(_Lines):
    """The l patches before a patch and, unless causal, the l after it; and every l-th, by default those of its column.

    Args:
        grid, causal: see Groups.
        length: l; None for the width of the grid.
    """

    def __init__(self, grid: tuple[int, int], causal: bool, length: int | None = None):
        super().__init__(grid, causal, length or grid[1])

    def keys(self, x, xp=ops):
        lines = self.queries(x, xp)
        near = with_neighbours(lines, self.length, 0 if self.causal else self.length, xp)  # (b, m, 3l, c)
        return [near, self.arranged(lines, 1, xp)]  # (b, l, m, c)

    def arranged(self, y, number, xp=ops):
        return xp.transpose(y, (0, 2, 1, 3)) if number else y

    def pairs(self, number, i, j):
        return i != j if number else abs(i - j) < self.length


class Fixed(_Lines):
    """The patches of the own line of l, and the last c patches of every line.

    Args:
        grid, causal: see Groups.
        length: l.
        last: c, at most l.
    """

    def __init__(self, grid: tuple[int, int], causal: bool, length: int, last: int):
        super().__init__(grid, causal, length)
        self.last = last

    def keys(self, x, xp=ops):
        lines = self.queries(x, xp)
        ends = lines[:, :, -self.last :]  # (b, m, last, c)
        return [lines, xp.reshape(ends, (-1, 1, lines.shape[1] * self.last, x.shape[-1]))]

    def pairs(self, number, i, j):
        return (i - 1) // self.length != (j - 1) // self.length if number else True


class Local(Groups):
    """The k x k patches around each. Blocks of patches share the keys around them, of which each uses its own.

    Args:
        grid, causal: see Groups.
        size: k, odd.
    """

    def __init__(self, grid: tuple[int, int], causal: bool, size: int):
        super().__init__(grid, causal)
        self.reach = size // 2
        side = max(self.reach, _BLOCK)
        self.blocks = Windows(grid, causal, side)
        self.blocks.window = (side, side)  # also on smaller grids, so that a block has the neighbours' patches

    def queries(self, x, xp=ops):
        return self.blocks.queries(x, xp)

    def patches(self, y):
        return self.blocks.patches(y)

    def keys(self, x, xp=ops):
        (rows, columns), c = self.blocks.window, x.shape[-1]
        x = pad(self._map(x, xp), (rows, columns), xp)
        h, w = x.shape[1:3]
        x = xp.reshape(x, (-1, h // rows, rows, w * c))  # (b, h, w, c) -> (b, m1, rows, w*c)
        x = with_neighbours(x, self.reach, self.reach, xp)
        tall = x.shape[2]
        x = xp.reshape(x, (-1, w // columns, columns, c))  # (b, m1, tall, w*c) -> (b*m1*tall, m2, columns, c)
        x = with_neighbours(x, self.reach, self.reach, xp)
        wide = x.shape[2]
        x = xp.reshape(x, (-1, tall, w // columns, wide * c))  # (b*m1, tall, m2, wide*c)
        x = xp.transpose(x, (0, 2, 1, 3))  # (b*m1, m2, tall, wide*c)
        return [xp.reshape(x, (-1, h // rows * (w // columns), tall * wide, c))]

    def pairs(self, number, i, j):
        w = self.grid[1]
        (y, x), (y2, x2) = np.divmod(i - 1, w), np.divmod(j - 1, w)
        return (abs(y - y2) <= self.reach) & (abs(x - x2) <= self.reach)


def arrangements(groups: Groups) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """The numbers of queries (m, s) and keys (m, t) of each arrangement, from 1; 0 for padding."""
    numbers = np.arange(1, groups.grid[0] * groups.grid[1] + 1).reshape(1, -1, 1)
    queries = groups.queries(numbers, np)
    keys = groups.keys(numbers, np)
    return tuple((groups.arranged(queries, v, np)[0, :, :, 0], each[0, :, :, 0]) for v, each in enumerate(keys))


def _allowed(groups, number):
    """Whether queries attend to keys in an arrangement: booleans (m, s, t)."""
    i, j = arrangements(groups)[number]
    i, j = i[:, :, None], j[:, None, :]
    found = np.broadcast_to((j > 0) & groups.pairs(number, i, j), np.broadcast_shapes(i.shape, j.shape))
    return found & (j <= i) if groups.causal else found


def group_mask(groups: Groups, prefix: int) -> np.ndarray | None:
    """The mask of the scores of all arrangements, after those of `prefix` keys: booleans (m, s, prefix + t) or None.

    Axes along which it does not change have the size 1.
    """
    masks = [groups.arranged(_allowed(groups, v)[None], v, np)[0] for v in range(len(arrangements(groups)))]
    if all(mask.all() for mask in masks):
        return None
    m, s, _ = masks[0].shape
    mask = np.concatenate([np.ones((m, s, prefix), bool), *masks], axis=-1)
    for axis in (0, 1):
        first = mask.take([0], axis)
        mask = first if (mask == first).all() else mask
    return mask


def allowed_pairs(groups: Groups, prefix: int) -> np.ndarray:
    """Which tokens attend to which, (n, n) booleans: the mask with which attention among all tokens is the same."""
    n = prefix + groups.grid[0] * groups.grid[1]
    found = np.ones((n, n), bool)
    found[prefix:, prefix:] = False
    for v, (i, j) in enumerate(arrangements(groups)):
        mask = _allowed(groups, v) & (i[:, :, None] > 0)
        i, j = np.broadcast_to(i[:, :, None], mask.shape)[mask], np.broadcast_to(j[:, None, :], mask.shape)[mask]
        found[prefix + i - 1, prefix + j - 1] = True
    return found & np.tri(n, dtype=bool) if groups.causal else found


def sizes(groups: Groups, prefix: int) -> tuple[int, int]:
    """The cost of attention in groups: pairs of queries and keys, and keys with their copies, padding included."""
    n = prefix + groups.grid[0] * groups.grid[1]
    m, s = arrangements(groups)[0][0].shape
    pairs = prefix * (prefix if groups.causal else n) + m * s * prefix
    pairs += sum(i.size * j.shape[1] for i, j in arrangements(groups))
    return pairs, m * prefix + sum(j.size for _, j in arrangements(groups))


# {name in patterns.PATTERNS: its class}.
_GROUPS = {
    "window": Windows,
    "strided": Strided,
    "fixed": Fixed,
    "local": Local,
    "rows": Groups,
    "columns": Columns,
}


def make_groups(pattern: str, grid: tuple[int, int], causal: bool = False) -> Groups:
    """The groups of a pattern, "window(14)", "rows", "columns"..., on a grid (h, w)."""
    found = parse(pattern, "pattern", tuple(PATTERNS))
    return _GROUPS[found.name](grid, causal, *found.numbers)


def allowed(pattern: str, grid: tuple[int, int], prefix: int, causal: bool = False) -> np.ndarray:
    """Which tokens a pattern lets attend to which: booleans (n, n), queries before keys."""
    return allowed_pairs(make_groups(pattern, grid, causal), prefix)


@functools.lru_cache(64)
def pattern_sizes(pattern: str, grid: tuple[int, int], prefix: int, causal: bool = False) -> tuple[int, int]:
    """A pattern's cost: pairs of queries and keys, and keys with copies; products and weights grow with the pairs."""
    return sizes(make_groups(pattern, grid, causal), prefix)


def _product(x, y):
    """(b, m, s, c), (b, m or 1, c, t) -> (b, m, s, t). Groups that share one y are rows of one matrix."""
    if x.shape[1] == y.shape[1]:
        return ops.matmul(x, y)
    _, m, s, c = x.shape
    rows = ops.reshape(x, (-1, 1, m * s, c))  # (b, m, s, c) -> (b, 1, m*s, c)
    return ops.reshape(ops.matmul(rows, y), (-1, m, s, y.shape[-1]))  # (b, 1, m*s, t) -> (b, m, s, t)


def _scores(q, keys):
    """(b, m, s, c), (b, m or 1, t, c) -> (b, m, s, t)."""
    return _product(q, ops.transpose(keys, (0, 1, 3, 2)))


def _joined(first, groups):
    """Keys or values of groups, each with a copy of those before the patches: (b, p, c), (b, m, t, c)."""
    if not first.shape[1]:
        return groups
    return ops.concatenate([ops.repeat(first[:, None], groups.shape[1], axis=1), groups], axis=2)  # (b, m, p + t, c)


def _attended_patches(q, k, v, first, groups, mask, drop):
    """The heads' outputs for patches (b, h*w, c); `first` are the keys and values before the patches, (b, p, c)."""
    queries, keys, values = groups.queries(q), groups.keys(k), groups.keys(v)  # (b, m, s, c), [(b, m, t, c)]
    keys[0], values[0] = _joined(first[0], keys[0]), _joined(first[1], values[0])
    scores = [groups.arranged(_scores(groups.arranged(queries, a), each), a) for a, each in enumerate(keys)]
    counts = [each.shape[-1] for each in scores]
    scores = scores[0] if len(scores) == 1 else ops.concatenate(scores, axis=-1)  # (b, m, s, t)
    weights = drop(masked_softmax(scores, None if mask is None else ops.convert_to_tensor(mask)))
    parts = [weights] if len(counts) == 1 else ops.split(weights, np.cumsum(counts)[:-1].tolist(), axis=-1)
    pairs = enumerate(zip(parts, values))
    y = sum(groups.arranged(_product(groups.arranged(part, a), each), a) for a, (part, each) in pairs)
    return groups.patches(y)


def grouped_attention(
    q: Any, k: Any, v: Any, groups: Groups, mask: np.ndarray | None, drop: Callable, drop_first: Callable
) -> Any:
    """The heads' outputs of attention in groups.

    Args:
        q, k, v: (b, k, n, c), the queries scaled; n is known.
        groups: of the last h*w tokens.
        mask: `groups.group_mask(groups, p)`.
        drop, drop_first: dropout of the weights of patches, and of the tokens before them.

    Returns:
        (b, k, n, c).
    """
    heads, n, c = q.shape[1:]
    p = n - groups.grid[0] * groups.grid[1]
    q, k, v = (ops.reshape(x, (-1, n, c)) for x in (q, k, v))  # (b, k, n, c) -> (b*k, n, c)
    y = _attended_patches(q[:, p:], k[:, p:], v[:, p:], (k[:, :p], v[:, :p]), groups, mask, drop)
    if p:
        seen = p if groups.causal else n
        scores = ops.matmul(q[:, :p], ops.transpose(k[:, :seen], (0, 2, 1)))  # (b*k, p, n)
        weights = causal_softmax(scores, p) if groups.causal else ops.softmax(scores)
        y = ops.concatenate([ops.matmul(drop_first(weights), v[:, :seen]), y], axis=1)
    return ops.reshape(y, (-1, heads, n, c))  # (b*k, n, c) -> (b, k, n, c)
