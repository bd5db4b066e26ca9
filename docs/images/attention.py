"""Draws attention.png, what a model looks at on two photographs: python docs/images/attention.py deit/tiny

The argument is what keras_vit.load takes: a run directory, a file, a published name; attention.png in the docs is of DeiT-Ti/16. From left to
right: the photograph, the attention rollout through all blocks, and the heads of a block in the middle, from the class token.

The photographs are scikit-learn's samples, cropped, both CC BY 2.0: flower.jpg, flickr.com/photos/vultilion/6056698931, and china.jpg,
flickr.com/photos/danielbuechele/6061409035.
"""

import pathlib
import sys

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_image

import keras_vit
from keras_vit.inspection import attention_maps, attention_weights

BOXES = {"flower.jpg": (120, 20, 520, 420), "china.jpg": (110, 20, 510, 420)}
HEADS = 3


def photographs(height, width):
    """The two photographs, (2, height, width, 3) uint8."""
    crops = (Image.fromarray(load_sample_image(name)).crop(box) for name, box in BOXES.items())
    return np.stack([np.asarray(crop.resize((width, height), Image.Resampling.BICUBIC)) for crop in crops])


def stretched(maps):
    """Maps (..., h, w), each stretched to run from 0 to 1."""
    low, high = maps.min(axis=(-2, -1), keepdims=True), maps.max(axis=(-2, -1), keepdims=True)
    return (maps - low) / (high - low)


def head_maps(model, images):
    """The class token's attention to the patches in the block in the middle, (b, k, h, w)."""
    block = model.spec.depth // 2
    weights = attention_weights(model, images, blocks=[block])[block]  # (b, k, n, n)
    return weights[:, :HEADS, 0, model.spec.prefix :].reshape(len(images), -1, *model.grid)  # (b, k, h, w)


def draw(path, images, rows, depth):
    """Writes the picture: in each row a photograph and maps (h, w) over it."""
    titles = ["photograph", "rollout, all blocks", *(f"block {depth // 2}, head {i}" for i in range(1, HEADS + 1))]
    figure = Figure(figsize=(2 * len(titles), 2.1 * len(images)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(images), len(titles), squeeze=False)
    height, width = images.shape[1:3]
    for row, (image, maps) in enumerate(zip(images, rows)):
        for column, axis in enumerate(axes[row]):
            axis.axis("off")
            axis.imshow(image)
            if column:
                extent = (-0.5, width - 0.5, height - 0.5, -0.5)
                axis.imshow(maps[column - 1], cmap="inferno", alpha=0.65, extent=extent, interpolation="bilinear", vmin=0, vmax=1)
            if not row:
                axis.set_title(titles[column], fontsize=9)
    figure.savefig(path, dpi=80)


def main():
    model = keras_vit.load(sys.argv[1])
    images = photographs(*model.image_size)
    rollout, heads = stretched(attention_maps(model, images)), stretched(head_maps(model, images))
    rows = [[rollout[i], *heads[i]] for i in range(len(images))]
    draw(pathlib.Path(__file__).with_name("attention.png"), images, rows, model.spec.depth)


if __name__ == "__main__":
    main()
