"""The preprocessing with which a model is evaluated by default."""


def default_preprocessing(model) -> str:
    """The model's own text, or else big_vision's for its size: a resize to 8/7 of it (256 for 224) and a central
    crop.
    """
    if getattr(model, "preprocessing", None):
        return model.preprocessing
    height, width, channels = model.input_shape[1:]
    larger = [round(side * 8 / 7) for side in (height, width)]
    resize = f"resize({larger[0]})" if height == width else f"resize({larger[0]}, {larger[1]})"
    return f"decode({channels})|{resize}|central_crop({height}, {width})"
