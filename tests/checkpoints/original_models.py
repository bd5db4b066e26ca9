"""The original libraries' models and their outputs for arrays sampled by name, for originals.py."""

import functools
import json
import pathlib
import re
import tempfile

import numpy as np
import sampled
from original_resampling import import_big_vision, library, rounded

HALF, IMAGENET = ([127.5] * 3, [127.5] * 3), ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])


def inputs(image, statistics):
    """The pixels as the original model takes them, channels last."""
    return ((sampled.pixels(*image) - np.array(statistics[0])) / np.array(statistics[1])).astype("float32")


def golden(by, form, image, scale, shapes, values, statistics=HALF, config=None, load=None, outputs="logits"):
    """A golden's fields, in the order they are written."""
    fields = {"library": by, "format": form, "config": config, "scale": scale}
    fields.update(mean=rounded(statistics[0]), std=rounded(statistics[1]), image_size=list(image), load=load or {})
    shapes = {name: list(shape) for name, shape in shapes.items()}
    return {**fields, "shapes": shapes, "outputs": outputs, "values": rounded(np.asarray(values))}


def flax_outputs(model, images, scale, call, on_disk=None, jit=True):
    """Shapes on disk and outputs; on_disk gives a parameter's name and shape in files where they differ."""
    import jax
    from flax import traverse_util

    # Only shapes are needed: initialising the large models for real takes minutes.
    tree = jax.eval_shape(lambda: model.init(jax.random.PRNGKey(0), images, **call))["params"]
    shapes, params = {}, {}
    for name, leaf in traverse_util.flatten_dict(tree, sep="/").items():
        file_name, file_shape = on_disk(name, leaf.shape) if on_disk else (name, leaf.shape)
        shapes[file_name] = file_shape
        params[name] = sampled.sample(file_name, file_shape, scale).reshape(leaf.shape)
    apply = functools.partial(model.apply, **call)
    return shapes, (jax.jit(apply) if jit else apply)({"params": traverse_util.unflatten_dict(params, sep="/")}, images)


def before_linen(name, shape):
    """The name and shape in the first published files: siblings counted together, group norms of rank four."""
    for new, old in ("LayerNorm_1/", "LayerNorm_2/"), ("Attention_0/", "Attention_1/"), ("MlpBlock_0/", "MlpBlock_3/"):
        name = name.replace(new, old)
    return name, (1, 1, 1, *shape) if re.search(r"(^|/)gn", name) else shape


def vision_transformer(image, classes, scale, config=None, old=False, **settings):
    """A model of vit_jax, from one of its configurations or from the fields of a small one."""
    from ml_collections import ConfigDict
    from vit_jax import models_vit
    from vit_jax.configs import models

    settings = {**(models.MODEL_CONFIGS[config].to_dict() if config else {}), **settings}
    model = models_vit.VisionTransformer(num_classes=classes, **ConfigDict(settings))
    shapes, values = flax_outputs(model, inputs(image, HALF), scale, dict(train=False), before_linen if old else None)
    return golden(
        library("flax", "jax", source="google-research/vision_transformer"), "google", image, scale, shapes, values
    )


def big_vision(image, classes, scale, module="vit", load=None, call=None, **arguments):
    """A model of big_vision.models; `call` holds the further arguments of its call."""
    model = import_big_vision(f"models.{module}").Model(classes, **arguments)
    # A resampled patch kernel is computed with numpy from the values, so that model is not compiled.
    shapes, (values, _) = flax_outputs(model, inputs(image, HALF), scale, call or {}, jit=not call)
    return golden(
        library("flax", "jax", source="google-research/big_vision"), "google", image, scale, shapes, values, load=load
    )


def torch_outputs(model, images):
    """What the model answers to images with channels last."""
    import torch

    with torch.no_grad():
        return model.eval()(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous())


def sampled_tensors(shapes, scale):
    """One tensor for each name and shape."""
    import torch

    return {name: torch.from_numpy(sampled.sample(name, shape, scale)) for name, shape in shapes.items()}


def sampled_outputs(model, images, scale):
    """Shapes of the state dict's entries, and the outputs for sampled values."""
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    model.load_state_dict(sampled_tensors(shapes, scale))
    return shapes, torch_outputs(model, images)


def timm_model(image, classes, scale, architecture, build=None, **arguments):
    """One of timm's architectures, or the model that `build` makes where timm's function fixes too large widths."""
    import timm

    make = functools.partial(build, image) if build else functools.partial(timm.create_model, architecture)
    model = make(num_classes=classes, **arguments)
    published = timm.get_pretrained_cfg(architecture).to_dict()
    keys = ("interpolation", "crop_pct", "mean", "std", "first_conv", "classifier")
    settings = {"input_size": [3, *image], "num_classes": classes, **{key: published[key] for key in keys}}
    config = {"architecture": architecture, "num_classes": classes, "num_features": model.num_features}
    config.update(global_pool=getattr(model, "global_pool", "avg"), pretrained_cfg=settings, model_args=arguments)
    statistics = [255 * np.array(published[key]) for key in ("mean", "std")]
    shapes, values = sampled_outputs(model, inputs(image, statistics), scale)
    return golden(library("timm", "torch"), "timm", image, scale, shapes, values, statistics, config)


def hybrid(image, num_classes, layers, width_factor, **arguments):
    """As timm's hybrids."""
    from timm.layers import HybridEmbed, StdConv2dSame
    from timm.models import ResNetV2, VisionTransformer

    settings = dict(layers=layers, width_factor=width_factor, num_classes=0, global_pool="", stem_type="same")
    backbone = ResNetV2(preact=False, conv_layer=functools.partial(StdConv2dSame, eps=1e-8), **settings)
    embed = functools.partial(HybridEmbed, backbone=backbone)
    return VisionTransformer(img_size=image, num_classes=num_classes, embed_layer=embed, **arguments)


def bit(image, num_classes, **sizes):
    """As timm's BiT models."""
    from timm.layers import StdConv2d
    from timm.models import ResNetV2

    return ResNetV2(
        num_classes=num_classes, stem_type="fixed", conv_layer=functools.partial(StdConv2d, eps=1e-8), **sizes
    )


def bit_npz(image, classes, scale, **sizes):
    """BiT under the names of its authors' .npz files, read by timm."""
    model = bit(image, classes, **sizes)
    state = {bit_name(name): value for name, value in model.state_dict().items()}
    shapes = {name: (value.permute(2, 3, 1, 0) if value.ndim == 4 else value).shape for name, value in state.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder, "bit.npz"))
        np.savez(path, **{name: sampled.sample(name, shape, scale) for name, shape in shapes.items()})
        model.load_pretrained(path)
    values = torch_outputs(model, inputs(image, HALF))
    return golden(library("timm", "torch"), "google", image, scale, shapes, values)


def bit_name(name):
    """The .npz name of a timm parameter; a unit's layers a, b and c are a convolution and the norm before it."""
    *path, last = name.split(".")
    kind = {"weight": "gamma", "bias": "beta"}[last]
    if path[0] != "stages":
        return {
            "head": "resnet/head/conv2d/" + last.replace("weight", "kernel"),
            "norm": f"resnet/group_norm/{kind}",
            "stem": "resnet/root_block/standardized_conv2d/kernel",
        }[path[0]]
    unit = f"resnet/block{int(path[1]) + 1}/unit{int(path[3]) + 1:02d}"
    layer = "a/proj" if path[4] == "downsample" else "abc"[int(path[4][-1]) - 1]
    return f"{unit}/{layer}/" + (f"group_norm/{kind}" if "norm" in path[4] else "standardized_conv2d/kernel")


def huggingface_state(image, classes, scale, model, statistics=HALF, **arguments):
    """transformers' classifiers, by the names of their state_dict(), which has no config.json."""
    import transformers

    kind = getattr(transformers, model)
    made = kind(kind.config_class(num_labels=classes, **arguments))
    shapes, answer = sampled_outputs(made, inputs(image, statistics), scale)
    load = {"heads": arguments["num_attention_heads"]} if "num_attention_heads" in arguments else {}
    by = library("transformers", "torch")
    return golden(by, "huggingface", image, scale, shapes, answer.logits, statistics, load=load)


def huggingface(image, classes, scale, model, outputs="logits", prefix="", statistics=HALF, **arguments):
    """transformers, through a file that it saves and loads; `prefix` is put before the names."""
    import transformers
    from safetensors.torch import load_file, save_file

    kind = getattr(transformers, model)
    arguments.update(dict(num_labels=classes) if outputs == "logits" else {})
    with tempfile.TemporaryDirectory() as folder:
        kind(kind.config_class(**arguments)).save_pretrained(folder)
        path = pathlib.Path(folder, "model.safetensors")
        shapes = {prefix + name: tensor.shape for name, tensor in load_file(path).items()}
        save_file(sampled_tensors(shapes, scale), path, {"format": "pt"})
        loaded, report = kind.from_pretrained(folder, output_loading_info=True)
        config = json.loads(pathlib.Path(folder, "config.json").read_text())
    if any(report.get(key) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise RuntimeError(f"{model} did not load the sampled file: {report}")
    answer = torch_outputs(loaded, inputs(image, statistics))
    values = answer.logits if outputs == "logits" else answer.pooler_output
    return golden(
        library("transformers", "torch"),
        "huggingface",
        image,
        scale,
        shapes,
        values,
        statistics,
        config,
        outputs=outputs,
    )


def lucidrains(image, classes, scale, **arguments):
    """vit_pytorch.ViT."""
    import vit_pytorch

    model = vit_pytorch.ViT(image_size=image, num_classes=classes, **arguments)
    (shapes, values), load = sampled_outputs(model, inputs(image, HALF), scale), {"heads": arguments["heads"]}
    return golden(library("vit-pytorch", "torch"), "vit_pytorch", image, scale, shapes, values, load=load)


def own(image, classes, scale, case):
    """A model with custom names (own_models.py), and the rules that read it."""
    import own_models

    cls, rules, told = own_models.CASES[case]
    model = cls(image, classes, patch=4, width=16, depth=2, heads=4, mlp_dim=32)
    shapes, values = sampled_outputs(model, inputs(image, IMAGENET), scale)
    load = {"heads": 4, "names": rules, "norm_first": True, "epsilon": 1e-5, "mlp_activation": "gelu", **told}
    return golden(library("torch"), "own", image, scale, shapes, values, IMAGENET, load=load)
