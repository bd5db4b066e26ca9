"""The optimizer and learning-rate schedule of a resolved config."""

from keras_vit.io.suggest import check_known
from keras_vit.optim import AdamW, Lookahead, Momentum, Muon, RectifiedAdam, StochasticWeightAveraging, WarmupSchedule

# name: (class, the keys of config.optimizer that it takes as arguments)
OPTIMIZERS = {
    "adamw": (AdamW, ("beta_2",)),
    "radam": (RectifiedAdam, ("beta_2",)),
    "momentum": (Momentum, ("momentum",)),
    "muon": (Muon, ("momentum", "beta_2")),
}
# Keys that only some optimizers read, with the defaults of configs/lib/common.py.
_OPTIONS = {"beta_2": 0.999, "momentum": 0.9, "lookahead_rate": 0.5}


def unread(name, lookahead):
    """The keys of config.optimizer that the optimizer `name` ignores, given the section's `lookahead`."""
    _, keys = OPTIMIZERS.get(name, (None, tuple(_OPTIONS)))  # unknown in another version's config.json
    read = {*keys, "lookahead_rate"} if lookahead else {*keys}
    return set(_OPTIONS) - read


def check_options(options):
    """Refuses unknown optimizers, two kinds of averages, an invalid decay of averages, and options without effect.

    Raises:
        ValueError: with these, and the valid names or defaults.
    """
    check_known(options.name, "optimizer", OPTIMIZERS)
    if options.ema and options.swa is not None:
        raise ValueError(
            f"optimizer.ema={options.ema} and optimizer.swa={options.swa}: a run has only one kind of averaged weights."
            " Set one of them to None."
        )
    if options.ema is not None and not 0 <= options.ema < 1:
        raise ValueError(
            f"--config.optimizer.ema={options.ema}: expected a number from 0 to below 1, such as 0.9999, the share that"
            " the averaged weights keep in a step; or None for no averages."
        )
    ignored = [
        key
        for key in sorted(unread(options.name, options.lookahead))
        if options.get(key, _OPTIONS[key]) != _OPTIONS[key]
    ]
    if ignored:
        what = f"{options.name} without lookahead" if "lookahead_rate" in ignored else options.name
        fix = ", ".join(f"--config.optimizer.{key}={_OPTIONS[key]} (it is {options[key]!r})" for key in ignored)
        raise ValueError(f"The optimizer {what} does not use some options of the config. Set {fix}.")


def make_schedule(resolved):
    """The learning rate as a function of the step."""
    o, s = resolved["optimizer"], resolved["schedule"]
    return WarmupSchedule(o["learning_rate"], resolved["total"], s["warmup"], s["decay"], cooldown=s["cooldown"])


def make_decay(resolved):
    """The weight decay: a number, or a cosine over the run from weight_decay to weight_decay_final."""
    o = resolved["optimizer"]
    if o.get("weight_decay_final") is None:
        return o["weight_decay"]
    return WarmupSchedule(o["weight_decay"], resolved["total"], final=o["weight_decay_final"])


def make_optimizer(resolved):
    """The optimizer with its wrappers, from checked options; ValueError if averaging begins after the run's end."""
    o, total = resolved["optimizer"], resolved["total"]
    if o["swa"] is not None and o["swa"] >= total:
        raise ValueError(f"optimizer.swa begins at step {o['swa']} of {total}: choose an earlier one, such as 75%.")
    averages = {"use_ema": bool(o["ema"]), "ema_momentum": o["ema"] or 0.99}
    optimizer_class, keys = OPTIMIZERS[o["name"]]
    optimizer = optimizer_class(
        make_schedule(resolved),
        decay=make_decay(resolved),
        layer_decay=o["layer_decay"] or None,
        head_rate=o.get("head_rate"),
        global_clipnorm=o["clip_norm"] or None,
        **{key: o[key] for key in keys},
        **({} if o["lookahead"] else averages),
    )
    if o["lookahead"]:
        optimizer = Lookahead(optimizer, o["lookahead"], o["lookahead_rate"], **averages)
    return optimizer if o["swa"] is None else StochasticWeightAveraging(optimizer, o["swa"])
