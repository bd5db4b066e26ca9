"""Helpers of originals.py for writing goldens, and the golden of resampling: a position table and a patch kernel."""

import importlib.metadata
import importlib.util
import json
import sys
import types

import numpy as np
import sampled

POSITION_GRIDS = ((5, 6), (2, 3))
KERNEL_SIZES = ((4, 4), (12, 12), (5, 7))


def library(*names, source=""):
    """A golden's first field: the libraries that computed it, with their versions."""
    return ", ".join(
        [source] * bool(source) + [f"{name} {importlib.metadata.version(name).split('+')[0]}" for name in names]
    )


def write(path, fields):
    """JSON with one line for each top-level key."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in fields.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def rounded(values):
    """Nested lists of floats with 7 significant digits."""
    return [rounded(row) for row in values] if np.ndim(values) else float(f"{float(values):.7g}")


def import_big_vision(name):
    """One of big_vision's modules, with stand-ins for TensorFlow if that is not installed.

    The stand-ins are a module for files, which is not used here, and tf.image.resize, bilinear and without
    antialiasing.
    """
    import flax.io  # noqa: F401 - it looks for the real TensorFlow, and does without it

    def resize(images, size, method):
        import torch

        channels_first = torch.from_numpy(np.moveaxis(np.asarray(images, "float32"), -1, 1))
        return torch.nn.functional.interpolate(channels_first, [int(side) for side in size], mode=method).movedim(1, -1)

    made = {}
    if not importlib.util.find_spec("tensorflow"):
        made = {part: types.ModuleType(part) for part in ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")}
        made["tensorflow"].constant, made["tensorflow"].image = np.asarray, types.SimpleNamespace(resize=resize)
        made["tensorflow.io"].gfile = made["tensorflow.io.gfile"]
    sys.modules.update(made)
    try:
        return importlib.import_module(f"big_vision.{name}")
    finally:
        for part in made:  # einops, for one, would take a module of this name for the real one
            del sys.modules[part]


def resampled_positions(table, grid):
    """The table's positions after that of the class token, resampled by each library."""
    import jax
    import scipy.ndimage
    import torch
    from timm.layers import resample_abs_pos_embed

    positions = table[0, 1:].reshape(*grid, -1)

    def timm_way(size, **how):
        return resample_abs_pos_embed(torch.from_numpy(table), size, grid, **how)[0]

    def torch_way(size):
        channels_first = torch.from_numpy(positions).permute(2, 0, 1)[None]
        return torch.nn.functional.interpolate(channels_first, size, mode="bicubic")[0].permute(1, 2, 0)

    ways = {
        "timm": timm_way,
        "timm_bilinear": lambda size: timm_way(size, interpolation="bilinear", antialias=False),
        "torch_bicubic": torch_way,
        "jax_linear": lambda size: jax.image.resize(positions, (*size, positions.shape[-1]), "linear"),
        "scipy_zoom": lambda size: scipy.ndimage.zoom(positions, (size[0] / grid[0], size[1] / grid[1], 1), order=1),
    }
    # The class token's position stays as it was; here are the others, by row and column.
    return {
        way: {
            f"{h}x{w}": rounded(np.asarray(resample((h, w))).reshape(-1, 4)[-h * w :].reshape(h, w, 4))
            for h, w in POSITION_GRIDS
        }
        for way, resample in ways.items()
    }


def resampled_kernel(kernel):
    """The kernel's first output and input channel resampled by each library."""
    import torch
    from timm.layers import resample_patch_embed

    flexi = import_big_vision("models.proj.flexi.vit")

    def timm_way(size):
        return resample_patch_embed(torch.from_numpy(kernel).permute(3, 2, 0, 1), size).permute(2, 3, 1, 0)

    # timm with bilinear interpolation and without antialiasing gives what big_vision gives.
    ways = {"big_vision": lambda size: flexi.resample_patchemb(kernel, size), "timm": timm_way}
    return {
        way: {f"{h}x{w}": rounded(np.asarray(resample((h, w)))[..., 0, 0]) for h, w in KERNEL_SIZES}
        for way, resample in ways.items()
    }


def write_resampling(path):
    """Position tables, (height, width, channels), and patch kernels, (height, width)."""
    kernel, table = sampled.sample("kernel", (8, 8, 3, 4), 1.0), sampled.sample("positions", (1, 13, 4), 1.0)
    fields = {"library": library("timm", "torch", "jax", "scipy", source="google-research/big_vision")}
    fields["positions"] = {"shape": [1, 13, 4], "scale": 1.0, "grid": [3, 4], "prefix": 1}
    fields["resampled_positions"] = resampled_positions(table, (3, 4))
    fields["kernel"] = {"shape": [8, 8, 3, 4], "scale": 1.0, "channels": "[:, :, 0, 0]"}
    write(path, {**fields, "resampled_kernel": resampled_kernel(kernel)})
