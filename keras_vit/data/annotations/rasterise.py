"""Draws polygons and run lengths as masks in TensorFlow ops, also in tf.data and on the workers of a data service.

The pixel rule is COCO's: masks equal those of pycocotools (`frPyObjects`, `decode`) bit for bit. A pixel belongs to a
polygon if its centre, (column + 0.5, row + 0.5), is inside; vertices are first rounded to a fifth of a pixel, and
self-intersecting polygons are filled by the even-odd rule. Polygons are clipped at the image's border. Several polygons
of one region are united.

Pixels are numbered down the columns, as in COCO's run lengths: pixel (y, x) of an image h pixels high is x * h + y.
A span is a (start, end) of such numbers, end excluded.
"""

import numpy as np
import tensorflow as tf

FIFTHS = 5  # vertices are rounded to 1 / FIFTHS of a pixel
_CENTRE = FIFTHS // 2  # a pixel's centre lies between its fifths 2 and 3


def to_fifths(points: np.ndarray) -> np.ndarray:
    """Rounds pixel coordinates, float64, to integral fifths of a pixel, like pycocotools."""
    return np.trunc(FIFTHS * points + 0.5)


def group_numbers(count: tf.Tensor) -> tf.Tensor:
    """Numbers each member of consecutive groups of `count` (n,) int32 members by its group: (2, 0, 1) -> (0, 0, 2).

    tf.repeat would pad every group to the size of the largest.
    """
    first = tf.cumsum(count, exclusive=True)
    begun = tf.scatter_nd(first[:, None], tf.ones_like(first), [tf.reduce_sum(count) + 1])
    return tf.cumsum(begun)[:-1] - 1


def _members(count):
    """Returns (group, place in it) of each member of consecutive groups of `count` (n,) int32 members."""
    group = group_numbers(count)
    return group, tf.range(tf.size(group)) - tf.gather(tf.cumsum(count, exclusive=True), group)


def _following(rings):
    """Returns the index of each vertex's successor in its ring; `rings` (n,) int32 is ascending."""
    number = tf.range(tf.size(rings))
    first = tf.math.segment_min(number, rings)  # of each ring
    last = tf.concat([rings[1:] != rings[:-1], [True]], 0)[: tf.size(rings)]
    return tf.where(last, tf.gather(first, rings), number + 1)


def _crossed_columns(start, end, width):
    """Returns (first, count), int32, of the columns with centres between each edge's x coordinates, in fifths."""
    low, high = tf.minimum(start, end), tf.maximum(start, end)
    first = tf.maximum(-((_CENTRE - low) // FIFTHS), 0)
    last = tf.minimum((high - _CENTRE - 1) // FIFTHS, width - 1)
    return first, tf.maximum(last - first + 1, 0)


def _heights(x, y, x_end, y_end, column):
    """Returns y, int32 in fifths, where edges cross the centres of columns, rounded like pycocotools.

    Args:
        x, y, x_end, y_end: (n,) int32. Edges, in fifths.
        column: (n,) int32. The columns that they cross.
    """
    steep = tf.abs(x_end - x) < tf.abs(y_end - y)
    turned = tf.where(steep, y > y_end, x > x_end)
    x, x_end = tf.where(turned, x_end, x), tf.where(turned, x, x_end)
    y, y_end = tf.where(turned, y_end, y), tf.where(turned, y, y_end)

    def exact(value):
        return tf.cast(value, tf.float64)

    rise = exact(y_end - y) / exact(tf.maximum(x_end - x, 1))
    run = exact(x_end - x) / exact(tf.maximum(y_end - y, 1))

    def flat_height(step):
        return tf.cast(exact(y) + rise * exact(step) + 0.5, tf.int32)

    before = column * FIFTHS + _CENTRE
    flat = tf.minimum(flat_height(before - x), flat_height(before + 1 - x))

    # A steep edge has a point at each y; it crosses at the last point before the column's centre, from either side.
    def is_before(step):
        beyond = tf.cast(exact(x) + run * exact(step) + 0.5, tf.int32) > before
        return beyond != (run > 0)

    safe = tf.where(run == 0, tf.ones_like(run), run)
    near = tf.cast((exact(before) + 0.5 - exact(x)) / safe, tf.int32)
    passed = sum(tf.cast(is_before(near + shift), tf.int32) for shift in (-1, 0, 1, 2))
    return tf.where(steep, y + near + passed - 2, flat)


def polygon_spans(
    points: tf.Tensor, rings: tf.Tensor, height: tf.Tensor, width: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the spans of pixels inside polygons.

    Args:
        points: (n, 2) int32. Vertices x, y, in fifths of a pixel; rings close automatically.
        rings: (n,) int32, ascending. Polygon of each vertex.
        height, width: () int32. Size of the image.

    Returns:
        (ring, start, end), each (m,) int32, by ring and start; some may be empty.
    """
    after = tf.gather(points, _following(rings))
    x, y, x_end, y_end = points[:, 0], points[:, 1], after[:, 0], after[:, 1]
    first, count = _crossed_columns(x, x_end, width)
    edge, place = _members(count)
    column = tf.gather(first, edge) + place
    x, y, x_end, y_end = (tf.gather(value, edge) for value in (x, y, x_end, y_end))
    crossing = _heights(x, y, x_end, y_end, column)
    row = tf.clip_by_value((crossing + _CENTRE) // FIFTHS, 0, height)
    # Even-odd: fill between the first and second crossing, the third and fourth... A closed ring has an even number.
    size = tf.cast(height * width + 1, tf.int64)
    place = tf.cast(tf.gather(rings, edge), tf.int64) * size + tf.cast(column * height + row, tf.int64)
    place = tf.sort(place)
    ring, place = tf.cast(place // size, tf.int32), tf.cast(place % size, tf.int32)
    return ring[::2], place[::2], place[1::2]


def run_spans(counts: tf.Tensor, regions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the spans of run lengths.

    Args:
        counts: (n,) int32. Alternating counts of pixels outside and inside a region, an even number per region.
        regions: (n,) int32, ascending. Region of each count.

    Returns:
        (region, start, end), each (n / 2,) int32.
    """
    ends = tf.cumsum(counts)
    before = tf.gather(tf.math.segment_min(ends - counts, regions), regions)  # the runs of earlier regions
    return regions[::2], (ends - before)[::2], (ends - before)[1::2]


def text_spans(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the spans of compressed run lengths; see run_lengths.py for their form.

    Args:
        texts: (m,) string. One per region.

    Returns:
        (region, start, end), each (n,) int32, by region and start.
    """
    digits = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8), tf.int32) - 48  # of 6 bits
    last = tf.bitwise.bitwise_and(digits, 32) == 0  # of a number
    number, place = _members_of(tf.cumsum(tf.cast(last, tf.int32), exclusive=True))
    bits = tf.bitwise.left_shift(tf.bitwise.bitwise_and(digits, 31), 5 * place)
    value = tf.math.segment_sum(bits, number)
    negative = tf.bitwise.bitwise_and(tf.boolean_mask(digits, last), 16) > 0
    value -= tf.where(negative, tf.bitwise.left_shift(1, 5 * (tf.boolean_mask(place, last) + 1)), 0)
    # From the fourth on, numbers are differences to the one two before: sums over the odd, and the even without 0.
    region, place = _members_of(tf.boolean_mask(group_numbers(tf.strings.length(texts)), last))
    odd = place % 2 == 1
    of_odd, of_even = (_sums(tf.where(which, value, 0), region) for which in (odd, ~odd & (place > 0)))
    counts = tf.where(odd, of_odd, tf.where(place > 0, of_even, value))
    end = _sums(counts, region)
    return tuple(tf.boolean_mask(part, odd) for part in (region, end - counts, end))


def _members_of(groups):
    """Returns ascending `groups` (n,) int32, and each member's place in its group, from 0."""
    number = tf.range(tf.size(groups))
    return groups, number - tf.gather(tf.math.segment_min(number, groups), groups)


def _sums(values, groups):
    """Returns the cumulative sums of values (n,) in each of ascending groups (n,)."""
    sums = tf.cumsum(values)
    first = tf.math.segment_min(tf.range(tf.size(groups)), groups)
    return sums - tf.gather(tf.gather(sums - values, first), groups)


def painted(
    order: tf.Tensor,
    start: tf.Tensor,
    end: tf.Tensor,
    values: tf.Tensor,
    background: int,
    height: tf.Tensor,
    width: tf.Tensor,
    lowest: bool = False,
) -> tf.Tensor:
    """Draws a mask (h, w, 1) with the dtype of `values`, in which later regions cover earlier ones.

    With `lowest`, (h, w, 2): then the first region at each pixel, which is below all others.

    Args:
        order: (m,) int32. Region of each span.
        start, end: (m,) int32. The spans.
        values: (regions,). Value of each region.
        background: int. Value of pixels in no region.
        height, width: () int32. Size of the mask.
        lowest: bool. Whether to draw the lowest regions, too.
    """
    # Find the topmost region, or the lowest, of each stretch between neighbouring ends of spans, where nothing changes.
    bounds = tf.sort(tf.concat([start, end], 0))
    bounds = tf.boolean_mask(bounds, tf.concat([bounds[1:] != bounds[:-1], [True]], 0)[: tf.size(bounds)])
    first, last = tf.searchsorted(bounds, start), tf.searchsorted(bounds, end)
    span, place = _members(last - first)
    stretch = tf.gather(first, span) + place
    regions = tf.gather(order, span) + 1  # of the stretches; 0 is the background
    top = tf.maximum(tf.math.unsorted_segment_max(regions, stretch, tf.size(bounds)), 0)
    values = tf.concat([tf.cast([background], values.dtype), values], 0)

    def drawn(region):
        levels = tf.concat([values[:1], tf.gather(values, region)], 0)
        # A pixel's value is the sum of all changes before it, even if unsigned integers wrap around.
        changes = tf.scatter_nd(bounds[:, None], levels[1:] - levels[:-1], [height * width + 1])
        pixels = tf.cumsum(changes)[:-1] + values[0]
        return tf.transpose(tf.reshape(pixels, (width, height)))  # (w * h) -> (w, h) -> (h, w)

    if not lowest:
        return drawn(top)[..., None]
    low = tf.math.unsorted_segment_min(regions, stretch, tf.size(bounds))
    return tf.stack([drawn(top), drawn(tf.where(top > 0, low, 0))], -1)
