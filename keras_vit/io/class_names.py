"""Class names of well-known data sets, in the order of their labels: ImageNet-1k, CIFAR-10, CIFAR-100 and COCO."""

import collections
import functools
import importlib.resources

_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""
# COCO's numbers of its 80 classes, from 1, leave gaps: detectors have an output for these, and for 0.
NO_CLASS = "N/A"
_COCO = """
N/A, person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, N/A, stop sign,
parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, N/A, backpack, umbrella, N/A,
N/A, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
surfboard, tennis racket, bottle, N/A, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange,
broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, N/A, dining table, N/A, N/A, toilet,
N/A, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, N/A, book, clock,
vase, scissors, teddy bear, hair drier, toothbrush
"""
# Words for classes that share their only one.
_APART = {"n02012849": "crane (bird)", "n03126707": "crane (machine)"}


@functools.cache
def _imagenet() -> tuple[tuple[str, str], ...]:
    """(synset, words joined by ", ") of each class."""
    text = importlib.resources.files(__package__).joinpath("imagenet_classes.txt").read_text(encoding="utf-8")
    rows = [line.partition(" ") for line in text.splitlines() if not line.startswith("#")]
    return tuple((synset, words) for synset, _, words in rows)


def synsets() -> tuple[str, ...]:
    """ImageNet-1k's synsets, n01440764..."""
    return tuple(synset for synset, _ in _imagenet())


def imagenet_names() -> tuple[str, ...]:
    """ImageNet-1k's 1000 names, each once: the first word of the class, such as "tabby", with the second in brackets if
    another class shares it: "maillot (tank suit)".
    """
    counts = collections.Counter(words.split(", ")[0] for _, words in _imagenet())
    names = []
    for synset, words in _imagenet():
        first, *others = words.split(", ")
        shared = counts[first] > 1 and others
        names.append(_APART.get(synset, f"{first} ({others[0]})" if shared else first))
    return tuple(names)


# {name for `class_names`: a function that returns the names}.
DATA_SETS = {
    "imagenet": imagenet_names,
    "cifar10": lambda: tuple(_CIFAR10.split()),
    "cifar100": lambda: tuple(_CIFAR100.split()),
    "coco": lambda: tuple(name.strip() for name in _COCO.split(",")),
}
