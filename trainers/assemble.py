"""Optimizer, loss and metrics of a resolved config."""

from keras_vit.training import (
    AdamW,
    Cutmix,
    Lookahead,
    Mixup,
    MixupOrCutmix,
    Momentum,
    RectifiedAdam,
    StochasticWeightAveraging,
    WarmupSchedule,
)
from keras_vit.training.losses import LOSSES, Accuracy, balanced_class_weights

# name: (class, the keys of a config's optimizer that are arguments of this class)
OPTIMIZERS = {
    "adamw": (AdamW, ("beta_2",)),
    "radam": (RectifiedAdam, ("beta_2",)),
    "momentum": (Momentum, ("momentum",)),
}


def make_schedule(plain):
    """The learning rate of a resolved config: a function of the step."""
    o, s = plain["optimizer"], plain["schedule"]
    return WarmupSchedule(o["learning_rate"], plain["total"], s["warmup"], s["decay"], cooldown=s["cooldown"])


def make_optimizer(plain):
    """The optimizer of a resolved config.

    Raises:
        ValueError: for an unknown name, or averages that exclude each other or begin behind the end.
    """
    o, total = plain["optimizer"], plain["total"]
    swa, k = o.get("swa", ""), o.get("lookahead", 0)
    if o["name"] not in OPTIMIZERS:
        raise ValueError(f'Unknown optimizer "{o["name"]}". Valid: {", ".join(OPTIMIZERS)}.')
    if o["ema"] and swa != "":
        raise ValueError(
            f"optimizer.ema={o['ema']} and optimizer.swa={swa}: a run has one kind of averaged weights. Set one of them."
        )
    if swa != "" and swa >= total:
        raise ValueError(f"optimizer.swa begins at step {swa} of {total}: choose an earlier one, such as 75%.")
    rate = make_schedule(plain)
    averages = {"use_ema": bool(o["ema"]), "ema_momentum": o["ema"] or 0.99}
    kind, keys = OPTIMIZERS[o["name"]]
    optimizer = kind(
        rate,
        decay=o["weight_decay"],
        layer_decay=o["layer_decay"] or None,
        global_clipnorm=o["clip_norm"] or None,
        **{key: o[key] for key in keys},
        **({} if k else averages),
    )
    if k:
        optimizer = Lookahead(optimizer, k, o["lookahead_rate"], **averages)
    return optimizer if swa == "" else StochasticWeightAveraging(optimizer, swa)


def class_weights(text, source):
    """A weight a class from "", "balanced" or "1,2.5,1"; None for "".

    Raises:
        ValueError: for other text, or another number of weights than classes.
    """
    if not text:
        return None
    if text == "balanced":
        return balanced_class_weights(source.class_counts())
    try:
        weights = [float(number) for number in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(source.class_names):
        raise ValueError(f'class_weights="{text}": expected "balanced" or {len(source.class_names)} numbers, one a class.')
    return weights


def make_loss(plain, source):
    """The loss of a resolved config."""
    options = plain["loss"]
    if options["name"] not in LOSSES:
        raise ValueError(f'Unknown loss "{options["name"]}". Valid: {", ".join(LOSSES)}.')
    weights = class_weights(options["class_weights"], source)
    return LOSSES[options["name"]](label_smoothing=options["label_smoothing"], class_weights=weights)


def make_mixing(plain, classes):
    """The mixing of a resolved config, for label rows (b, classes); None for none. With both, each batch has one of them."""
    mixup, cutmix, seed = plain["mixup"], plain.get("cutmix", 0.0), plain["seed"]
    if mixup and cutmix:
        return MixupOrCutmix(mixup, cutmix, classes, seed)
    if cutmix:
        return Cutmix(cutmix, classes, seed)
    return Mixup(mixup, classes, seed) if mixup else None


def prepare(model, plain, source):
    """Compiles the model for the resolved config and builds its optimizer."""
    metrics = [Accuracy()] + ([Accuracy(k=5, name="top5")] if model.classes > 5 else [])
    model.mixing = make_mixing(plain, model.classes)
    loss, optimizer = make_loss(plain, source), make_optimizer(plain)
    model.micro_batches = plain["micro_batches"]
    model.compile(
        optimizer,
        loss,
        weighted_metrics=metrics,
        jit_compile=plain["jit_compile"],
        steps_per_execution=plain["steps_per_execution"],
    )
    model.optimizer.build(model.trainable_variables)
