"""Types: every public function has them, the typed keyword arguments are the specs' fields, and a checker finds a
user's mistakes.

`make test` runs the checker over the package itself.
"""

import inspect
import pathlib
import typing

import pytest

import keras_vit
from keras_vit.models import BiT, ViT, families
from keras_vit.models.overrides import Answers, Arguments, BiTOverrides, Changes, ViTOverrides

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = "checkpoints data distribution evaluation inspection layers models optim runs serving tasks training".split()


def functions_of(value):
    """(name, function) of a public function, or of a class' constructor and those of its methods that no base class
    has.
    """
    if inspect.isfunction(value):
        yield value.__name__, value
    for name, member in vars(value).items() if inspect.isclass(value) else ():
        inherited = any(hasattr(base, name) for base in value.__mro__[1:])
        if name != "__init__" and (name.startswith("_") or inherited):
            continue
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(member):
            yield f"{value.__name__}.{name}", member


@pytest.mark.parametrize("room", ["keras_vit", *(f"keras_vit.{room}" for room in ROOMS)])
def test_every_public_function_is_annotated(room):
    module = keras_vit if room == "keras_vit" else getattr(keras_vit, room.partition(".")[2])
    found = [pair for name in module.__all__ for pair in functions_of(getattr(module, name))]
    assert found
    for name, function in found:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
        assert [p.name for p in parameters if p.annotation is p.empty] == [], name
        assert name.endswith("__init__") or "return" in function.__annotations__, name


def test_the_typed_arguments_are_those_of_the_models():
    constructors = set(inspect.signature(ViT).parameters) - {"variant", "overrides"}
    assert constructors == set(inspect.signature(BiT).parameters) - {"variant", "overrides"}
    assert set(Arguments.__annotations__) == {*families.fields(), *constructors}
    assert set(Changes.__annotations__) == set(Arguments.__annotations__) - {"image_size", "classes", "class_names"}


def test_keyword_arguments_are_typed_wherever_they_are_handed_on():
    for function, arguments in (
        (ViT.__init__, ViTOverrides),
        (BiT.__init__, BiTOverrides),
        (keras_vit.models.make_spec, ViTOverrides),
        (keras_vit.models.make_bit_spec, BiTOverrides),
        (keras_vit.models.build, Arguments),
        (keras_vit.load, Answers),
        (keras_vit.checkpoints.transfer, Changes),
    ):
        [kind] = [p.annotation for p in inspect.signature(function).parameters.values() if p.kind is p.VAR_KEYWORD]
        assert kind == f"Unpack[{arguments.__name__}]" or typing.get_args(kind) == (arguments,), function


USUAL = """
import keras
import numpy as np
import keras_vit
from keras_vit import BiT, ViT, ViTSpec

images, labels = np.zeros((8, 32, 32, 3), "uint8"), np.zeros(8, "int64")
spec = ViTSpec(patch_size=(4, 4), depth=2, width=16, mlp_dim=32, heads=2)
model = ViT("Ti/4", image_size=32, classes=10, depth=2, dropout=0.1, pool="gap", mean=(120.0, 115.0, 100.0), remat=[0])
others: list[keras_vit.Model] = [ViT(spec, image_size=(32, 64)), BiT("R50x1", classes=None, head_bias=-6.9)]
loaded = keras_vit.load("augreg/B_16-i21k", image_size=384, classes=10, head="reset", dropout=0.1, dtype="float32")
with keras_vit.strategy("mirrored").scope():
    optimizer = keras_vit.training.AdamW(1e-4, decay=0.1, global_clipnorm=1.0)
    model.compile(optimizer, keras_vit.training.SoftmaxCrossEntropy())
model.mixing = keras_vit.training.Mixup(0.2, classes=10)
model.fit(images, labels, batch_size=4, epochs=1, callbacks=[keras.callbacks.EarlyStopping()])
headed = model.with_head(keras.layers.Dense(3), class_names=["a", "b", "c"])
smaller = keras_vit.checkpoints.transfer(model, image_size=64, classes=3, head="reset", drop_path=0.1)
source = keras_vit.data.open_source("digits", "train")
print(source.name, source.size, source.class_names, model.spec.depth, model.image_size[0], model.grid)
maps = keras_vit.inspection.attention_maps(model, images)
names = [name.upper() for name in keras_vit.list_models()]
keras_vit.save(headed, "model.keras")
keras_vit.export(smaller, "exported", top_k=3)
"""
# A line, and what the checker says to it.
WRONG = {
    'ViT("B/16", num_classes=10)': 'Unexpected keyword argument "num_classes" for "ViT"',
    'ViT("B/16", dept=3)': 'Unexpected keyword argument "dept" for "ViT"',
    'ViT("B/16", depth="3")': 'Argument "depth" to "ViT" has incompatible type "str"',
    'BiT("R50x1", depth=3)': 'Unexpected keyword argument "depth" for "BiT"',
    'keras_vit.load("x.npz", droput=0.1)': 'Unexpected keyword argument "droput" for "load"',
    "keras_vit.exprot": 'Module has no attribute "exprot"',
    'keras_vit.strategy("tpu", model_parallel="2")': (
        'Argument "model_parallel" to "strategy" has incompatible type "str"'
    ),
}


@pytest.mark.extended
def test_a_checker_takes_a_usual_script_and_finds_mistakes(tmp_path, monkeypatch):
    api = pytest.importorskip("mypy.api")
    usual, wrong = tmp_path / "usual.py", tmp_path / "wrong.py"
    usual.write_text(USUAL)
    wrong.write_text("import keras_vit\nfrom keras_vit import BiT, ViT\n" + "\n".join(WRONG))
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    options = ["--config-file", str(ROOT / "setup.cfg"), "--cache-dir", str(ROOT / ".mypy_cache")]
    printed, errors, _ = api.run([*options, str(usual), str(wrong)])
    lines = [line for line in printed.splitlines() if ": error: " in line]
    assert not errors and len(lines) == len(WRONG), printed + errors
    for number, (line, expected) in enumerate(zip(lines, WRONG.values()), 3):
        assert f"wrong.py:{number}: " in line and expected in line, line
