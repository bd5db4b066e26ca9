"""A trained model made ready for another task: another resolution, another head."""

from keras_vit.checkpoints.resample import resample_positions
from keras_vit.models import ViT, make_spec

HEADS = ("keep", "reset", "drop")


def _key(variable, model):
    """A weight's path without the model's own name, so that two models compare."""
    path = variable.path
    return path[len(model.name) + 1 :] if path.startswith(f"{model.name}/") else path


def _config(model, image_size, classes, class_names, head, changes):
    """The constructor's arguments of the model that is to be made."""
    if head not in HEADS:
        raise ValueError(f'Unknown head "{head}". Valid: {", ".join(HEADS)}.')
    if head != "reset" and classes is not None and classes != model.classes:
        raise ValueError(f'head="{head}" cannot have {classes} classes: the model has {model.classes}. Use head="reset".')
    config = model.get_config()
    config["image_size"] = image_size or model.image_size
    if head == "reset":
        if classes is None:
            raise ValueError('head="reset" needs classes, the number of the new task\'s.')
        # The paper's transfer: the hidden layer goes with the head; one zero-initialised linear layer comes.
        changes = {"pre_logits": None, "head_bias": 0.0, **changes}
        config.update(classes=classes, class_names=class_names, preprocessing=None)
    elif head == "drop":
        config.update(classes=None, class_names=None)
    config["dtype"] = changes.pop("dtype", config["dtype"])
    for name in ("remat", "preprocessing", "name"):
        config[name] = changes.pop(name, config[name])
    config["variant"] = make_spec(config["variant"], **changes)
    return config


def transfer(model, image_size=None, classes=None, class_names=None, head="keep", resample="google", **changes):
    """Returns a new ViT with `model`'s weights.

    Args:
        model: a ViT.
        image_size: pixels, a number or (height, width); positions are resampled, the patch size stays. None for the model's.
        classes, class_names: of the new head.
        head: "keep"; "reset" for a new zero head (the old one goes, pre_logits too); "drop" for none: features come out.
        resample: a method of resample.resample_positions.
        **changes: ViT's arguments that leave the weights' shapes alone: dropout, drop_path, gelu, remat, dtype...

    Raises:
        ValueError: if weights would be left without values, or values without a weight, listing them.
    """
    new = ViT(**_config(model, image_size, classes, class_names, head, dict(changes)))
    fresh = ("head/",) if head == "reset" else ()
    dropped = {"keep": (), "reset": ("head/", "pre_logits/"), "drop": ("head/",)}[head]
    source = {_key(v, model): v for v in model.weights}
    target = {_key(v, new): v for v in new.weights}
    missing = [k for k in target if k not in source and not k.startswith(fresh)]
    unexpected = [k for k in source if k not in target and not k.startswith(dropped)]
    wrong = []
    for key, variable in target.items():
        if key not in source or (fresh and key.startswith(fresh)):
            continue
        value = source[key].numpy()
        if key == "position_embedding/embedding":
            value = resample_positions(value, model.grid, new.grid, int(new.spec.class_token), resample)
        if value.shape != tuple(variable.shape):
            wrong.append(f"{key}: {value.shape} to {tuple(variable.shape)}")
            continue
        variable.assign(value)
    if missing or unexpected or wrong:
        raise ValueError(
            f"The weights do not fit the new model. Without values: {missing}; left over: {unexpected}; other shapes: {wrong}."
        )
    return new
