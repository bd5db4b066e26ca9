"""Data for the commands of docs/gallery.md, and their pictures, made smaller.

    python docs/images/gallery.py photos PHOTOS
    python docs/images/gallery.py shapes SHAPES
    python docs/images/gallery.py digits DIGITS
    python docs/images/gallery.py reduce PICTURE.png NAME [LEFT TOP RIGHT BOTTOM]
    python docs/images/gallery.py sheet NAME PICTURE.png...

PHOTOS are scikit-learn's samples, both CC BY 2.0: flower.jpg, flickr.com/photos/vultilion/6056698931, and china.jpg,
flickr.com/photos/danielbuechele/6061409035. SHAPES are 240 drawn images with the boxes of their circles, squares and
triangles, as YOLO writes them. DIGITS are three of scikit-learn's. `reduce` writes docs/images/gallery/NAME.png from a
picture, or the part of it between these pixels; `sheet` from several pictures of one size, three in a row.
"""

import pathlib
import sys

import numpy as np
from PIL import Image, ImageDraw

WIDTH, HEIGHT = 192, 144
NAMES = ("circle", "square", "triangle")


def photos(folder):
    from sklearn.datasets import load_sample_image

    for name in ("flower.jpg", "china.jpg"):
        Image.fromarray(load_sample_image(name)).save(folder / name, quality=95)


def background(rng):
    """A smooth picture of noise."""
    coarse = rng.integers(90, 256, (4, 5, 3)).astype("uint8")
    smooth = np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), "float32")
    return Image.fromarray(np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype("uint8"))


def shape(draw, label, left, top, side, color):
    right, bottom = left + side, top + side
    if label == 0:
        draw.ellipse((left, top, right, bottom), color)
    elif label == 1:
        draw.rectangle((left, top, right, bottom), color)
    else:
        draw.polygon(((left, bottom), (right, bottom), (left + side // 2, top)), color)


def drawn(rng):
    """An image and its lines of labels: class, centre x, centre y, width, height as fractions."""
    image, lines = background(rng), []
    draw = ImageDraw.Draw(image)
    for _ in range(rng.integers(1, 6)):
        label, side = int(rng.integers(3)), int(rng.integers(18, 56))
        left, top = int(rng.integers(0, WIDTH - side)), int(rng.integers(0, HEIGHT - side))
        shape(draw, label, left, top, side, tuple(int(c) for c in rng.integers(0, 160, 3)))
        box = ((left + side / 2) / WIDTH, (top + side / 2) / HEIGHT, side / WIDTH, side / HEIGHT)
        lines.append(" ".join(map(str, (label, *np.round(box, 5)))))
    return image, lines


def shapes(folder):
    rng = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "classes.txt").write_text("\n".join(NAMES) + "\n")
    for i in range(240):
        image, lines = drawn(rng)
        image.save(folder / "images" / f"{i:03d}.png")
        (folder / "labels" / f"{i:03d}.txt").write_text("\n".join(lines) + "\n")


def digits(folder):
    from sklearn.datasets import load_digits

    images = load_digits().images[-360:]
    for i in (3, 41, 86):
        Image.fromarray(np.uint8(images[i] * (255 / 16))).save(folder / f"{i}.png")


def save(image, name):
    """At most 900 pixels wide, in 128 colours."""
    image.thumbnail((900, 4000), Image.Resampling.LANCZOS)
    image = image.quantize(128, kmeans=3, dither=Image.Dither.NONE)
    image.save(pathlib.Path(__file__).parent / "gallery" / f"{name}.png", optimize=True)


def reduce(picture, name, *box):
    image = Image.open(picture).convert("RGB")
    save(image.crop(tuple(map(int, box))) if box else image, name)


def sheet(name, *pictures, columns=3, gap=8):
    images = [Image.open(picture).convert("RGB") for picture in pictures]
    width, height = images[0].width + gap, images[0].height + gap
    whole = Image.new("RGB", (columns * width - gap, -(-len(images) // columns) * height - gap), "white")
    for i, image in enumerate(images):
        whole.paste(image, (i % columns * width, i // columns * height))
    save(whole, name)


def main(kind, *words):
    if kind in ("reduce", "sheet"):
        return {"reduce": reduce, "sheet": sheet}[kind](*words)
    folder = pathlib.Path(words[0])
    folder.mkdir(parents=True, exist_ok=True)
    {"photos": photos, "shapes": shapes, "digits": digits}[kind](folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
