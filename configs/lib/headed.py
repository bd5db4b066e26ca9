"""The base of the recipes for pixels and boxes: a head, a whole or frozen backbone, a folder of yours or a dataset."""

from . import common
from .choices import choose


def choices(heads, rates, data):
    """CHOICES of such a recipe, from its tables."""
    return {"head": tuple(heads), "backbone": tuple(rates), "data": tuple(data)}


def base(argument, heads, rates, data, kind):
    """The common part of such a config, and the words that `argument` chooses: (config, head, backbone, data).

    Args:
        heads: {head: its options}.
        rates: {backbone: options of the optimizer}.
        data: {"own" or a dataset: ((height, width), batch size, duration)}.
        kind: of the source, such as "masks" for `masks:PATH`.
    """
    head, backbone, chosen = choose(argument, choices(heads, rates, data))
    (height, width), batch_size, total = data[chosen]
    config = common.base()
    config.objective.head, config.objective.head_options = head, heads[head]
    with config.ignore_type():
        config.model.image_size = height if height == width else (height, width)

    own = chosen == "own"
    config.data.update(source=f"{kind}:PATH", train="train[:80%]", evaluation="train[80%:]")
    if not own:
        config.data.update(source=f"{kind}:{chosen}", train="train", evaluation="val")
        config.data.update(dev_train="train[:80%]", dev_evaluation="train[80%:]")
    config.data.eval_preprocess = f"decode|resize({height}, {width})"

    config.batch_size, config.total = batch_size, total
    config.evaluate = config.checkpoint = "10%" if own else "50%"
    config.keep_best = own  # a dataset is measured on its validation images: nothing is chosen by them
    config.optimizer.update(rates[backbone])
    config.schedule.warmup = "10%"
    config.linear_probe = backbone == "frozen"
    return config, head, backbone, chosen
