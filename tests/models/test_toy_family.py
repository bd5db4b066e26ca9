"""A family is one file. Here it is an MLP-Mixer (arXiv 2105.01601), tokens without attention: with its row in the table
it is built, trained, saved, loaded, transferred, counted, planned, shared and inspected.
"""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.inspection.model_page import inspect_model
from keras_vit.layers import PatchEncoder, PixelNormalization
from keras_vit.models import Classifier, build, families, fields
from keras_vit.models.checks import blocks_to_remat, class_count, float_policy, image_input, model_name, plain_remat
from keras_vit.models.heads.label_head import linear
from keras_vit.planning import dry_run, model_counts
from keras_vit.planning.model_counts import count
from keras_vit.planning.models import count_models
from keras_vit.runs import run
from keras_vit.runs.grid import parse_grid
from keras_vit.sharing.facts import gather
from trainers import config_files

toy = keras.saving.register_keras_serializable("toy")
DATASETS = config_files.packaged("lib.datasets").DATASETS
NAMES = re.compile(r"Mixer-(\d+)/(\d+)")


@toy
@dataclasses.dataclass(frozen=True)
class MixerSpec(families.Spec):
    """Mixer-2/4: two blocks on patches of 4x4 pixels."""

    depth: int = dataclasses.field(metadata=fields.row(fields.POSITIVE, "Number of blocks.", fields.WEIGHTS))
    patch_size: int = dataclasses.field(metadata=fields.row(fields.POSITIVE, "Pixels of a patch."))
    width: int = fields.field(16, fields.POSITIVE, "Size d of a token.", fields.WEIGHTS)
    head_bias: float = fields.field(0.0, fields.NUMBER, "Initial value of the head's bias.", fields.NOTHING)
    mean: float | tuple[float, ...] = fields.field(127.5, fields.PER_CHANNEL, "Mean of the pixels.")
    std: float | tuple[float, ...] = fields.field(127.5, fields.PER_CHANNEL, "Their standard deviation.")

    has_tokens = True

    @property
    def strides(self):
        return ((self.patch_size, self.patch_size),) * self.depth

    @property
    def repeated(self):
        return self.depth

    @property
    def in_words(self):
        return f"{self.depth} mixing blocks of width {self.width}"


@toy
class MixerBlock(keras.layers.Layer):
    """Tokens mix, then channels: (b, n, d) -> (b, n, d)."""

    def build(self, input_shape):
        _, n, d = input_shape
        self.norm, self.tokens, self.channels = (
            keras.layers.LayerNormalization(name="norm"),
            keras.layers.Dense(n, "gelu", name="tokens"),
            keras.layers.Dense(d, "gelu", name="channels"),
        )
        self.norm.build(input_shape)
        self.tokens.build((None, d, n))
        self.channels.build(input_shape)

    def call(self, x):
        x = x + ops.transpose(self.tokens(ops.transpose(self.norm(x), (0, 2, 1))), (0, 2, 1))
        return x + self.channels(x)

    def get_config(self):
        return super().get_config()


@toy
class Mixer(Classifier):
    def __init__(
        self,
        variant,
        image_size=224,
        classes=1000,
        channels=3,
        class_names=None,
        preprocessing=None,
        remat=False,
        name="mixer",
        dtype=None,
        **overrides,
    ):
        spec = MIXER.make_spec(variant, **overrides)
        policy, classes, remat = float_policy(dtype), class_count(classes), plain_remat(remat)
        blocks_to_remat(remat, spec.depth)
        name = model_name(name, "mixer")
        image = image_input(image_size, channels, name, "mixer")
        x = PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(image)
        x = PatchEncoder(spec.patch_size, spec.width, dtype=policy, name="patch_encoder")(x)
        for i in range(spec.depth):
            x = MixerBlock(dtype=policy, name=f"block_{i:02d}")(x)
        x = keras.layers.LayerNormalization(dtype=policy, name="norm")(x)
        features = keras.layers.GlobalAveragePooling1D("channels_last", dtype=policy, name="pool")(x)
        outputs = features if classes is None else linear(features, classes, spec.head_bias, policy)
        super().__init__(image, features, outputs, spec, classes, class_names, preprocessing, remat, name, policy)


def parse(name):
    match = NAMES.fullmatch(name)
    if match is None:
        raise ValueError(f'Unknown Mixer "{name}".{families.variant_hint(name, "Mixer")}')
    return {"depth": int(match[1]), "patch_size": int(match[2])}


def nearest(text):
    match = re.search(r"mixer\D*(\d+)\D+(\d+)", text.lower())
    return match and f"Mixer-{match[1]}/{match[2]}"


MIXER = families.Family(
    name="Mixer",
    title="MLP-Mixer",
    tag="mlp-mixer",
    spec=MixerSpec,
    model=Mixer,
    block=MixerBlock,
    encoded="norm",
    names=NAMES,
    parse=parse,
    nearest=nearest,
    variants=("Mixer-2/4",),
)


@pytest.fixture(autouse=True, scope="module")
def registered():
    families.register(MIXER)
    yield
    del families.FAMILIES["Mixer"]


@pytest.fixture
def config():
    config = config_files.packaged("lib.common").base()
    config.model.update(variant="Mixer-2/4", image_size=8, channels=1, width=32)
    config.data.update(train_preprocess="decode(1)", eval_preprocess="decode(1)|resize(8, 8)", evaluation="test[:40]")
    config.update(batch_size=64, total="30 steps", evaluate="30 steps", checkpoint="30 steps", jit_compile=False)
    config.optimizer.learning_rate = 1e-2
    return config


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    model = build("Mixer-2/4", image_size=(8, 12), classes=5, class_names=list("abcde"))
    for variable in model.trainable_variables:
        variable.assign(variable + np.random.default_rng(0).normal(size=variable.shape) * 0.1)
    return model


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3)).astype("float32")


def test_names_specs_and_fields_lead_to_it(model):
    for variant in ("Mixer-2/4", model.spec, model.spec.to_dict(), MixerSpec):
        assert families.find(variant) is MIXER
    for variant, name in (("B/16", "ViT"), ("R50x1", "BiT")):
        family = families.find(variant)
        spec = family.make_spec(variant)
        assert family.name == families.find(spec.to_dict()).name == families.find(spec).name == name
    for spec in (model.spec, families.find_spec("B/16"), families.find_spec("R50x1"), families.find_spec("Swin-T")):
        assert families.find(dataclasses.asdict(spec)) is families.find(spec)  # as in files of 0.5.0
        assert families.find({"family": families.find(spec).name}) is families.find(spec)
        assert families.find(spec).make_spec(spec.to_dict()) == spec
    with pytest.raises(ValueError, match="Expected the spec of a ViT, got that of a BiT"):
        keras_vit.ViT(families.find_spec("R50x1").to_dict())
    assert isinstance(build("Mixer-1/2", image_size=4, classes=None, width=8), Mixer)
    with pytest.raises(ValueError, match='"mixer_2_4". It is a Mixer: write keras_vit.Mixer."Mixer-2/4"'):
        build("mixer_2_4")
    with pytest.raises(ValueError, match='argument "heads" of a Mixer.*Valid: image_size, .*, depth, patch_size'):
        build("Mixer-2/4", heads=3)


@pytest.mark.extended
def test_a_config_trains_it_and_its_run_is_loaded_and_planned_with(config, tmp_path, eagerly):
    model, measures = run(config, tmp_path / "run")
    assert isinstance(model, Mixer) and measures["top1"] > 0.5
    assert "mixer" in json.loads((tmp_path / "run" / "config.json").read_text())["model_spec"]["name"]
    report = (tmp_path / "run" / "report.html").read_text()
    assert "top-1" in report and "attention" not in report
    loaded = keras_vit.load(tmp_path / "run")
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    config.init = str(tmp_path / "run")
    assert f"8 x 8 px: {model.count_params():,} parameters, all trained, as" in dry_run.plan(config, DATASETS)


def test_a_plan_and_a_sweep_know_its_fields(config):
    text = dry_run.plan(config, DATASETS)
    spec = MIXER.make_spec("Mixer-2/4", width=32)
    rows = model_counts.layer_counts(spec, 8, 10, 1)
    assert f"Mixer-2/4 8 x 8 px: {model_counts.parameters(rows):,} parameters, all trained" in text
    assert "FLOP per image forward" in text
    assert parse_grid("model.width=16,32", config).points() == [{"model.width": 16}, {"model.width": 32}]
    with pytest.raises(ValueError, match='Unknown argument "heads" of a Mixer'):
        config.model.heads = 3
        dry_run.plan(config, DATASETS)


@pytest.mark.extended
def test_a_keras_file_holds_it_and_no_exchange_format_does(model, images, tmp_path):
    keras_vit.save(model, tmp_path / "m.keras")
    loaded = keras_vit.load(tmp_path / "m.keras")
    assert isinstance(loaded, Mixer) and loaded.spec == model.spec and loaded.class_names == tuple("abcde")
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), model.predict(images, verbose=0))
    for format, path in (("google", "m.npz"), ("timm", "m"), ("huggingface", "m")):
        with pytest.raises(ValueError, match=f'format "{format}" cannot express this .*Mixer.*format="keras"'):
            keras_vit.save(model, tmp_path / path, format)
    headed = model.with_head(keras.layers.Dense(2, name="two"), on="feature_map")
    keras_vit.save(headed, tmp_path / "headed.keras")
    again = keras_vit.load(tmp_path / "headed.keras")
    np.testing.assert_array_equal(again.predict(images, verbose=0), headed.predict(images, verbose=0))


@pytest.mark.extended
def test_it_is_transferred(model, images):
    headless = keras_vit.checkpoints.transfer(model, head="drop")
    features = keras_vit.Model(model.input, model.features)
    np.testing.assert_array_equal(headless.predict(images, verbose=0), features.predict(images, verbose=0))
    other = keras_vit.checkpoints.transfer(model, classes=3, head="reset", channels=1)
    assert (other.classes, other.channels, other.spec.head_bias) == (3, 1, 0.0) and other.has_zero_head()
    with pytest.raises(ValueError, match="depth=3: the weights fix depth=2.*can change: .*patch_size.*keras_vit.Mix"):
        keras_vit.checkpoints.transfer(model, depth=3)
    with pytest.raises(ValueError, match="The weights do not fit the new model"):
        keras_vit.checkpoints.transfer(model, image_size=(12, 12))


def test_it_is_counted_without_a_formula(model):
    rows = {row.name: row for row in count(model)}
    n, d = 6, 16
    assert model_counts.parameters(rows.values()) == model.count_params()
    assert rows["block_00"].flops == 2 * n * d * (n + d)
    [counted] = count_models("Mixer*")
    assert counted.name == "Mixer-2/4" and counted.image_size == (224, 224)


def test_its_maps_have_the_strides_of_its_spec(model):
    for i, (height, width) in enumerate(model.spec.strides):
        assert model.feature_map(i).shape[1:3] == (8 // height, 12 // width)
    assert keras_vit.models.tokens(model) is model.get_layer("norm").output


def test_its_page_says_what_it_does_not_have(model, images):
    parts = inspect_model(model, images, ["1", "2", "3", "4"])
    text = "".join(part.body for part in parts)
    for sentence in ("A Mixer has no attention, and so no rollout", "2 rows of 3, one for each 4x4 pixels", "Grad-CAM"):
        assert sentence in text
    with pytest.raises(ValueError, match='"mixer" has no attention: it is a Mixer'):
        keras_vit.inspection.attention_maps(model, images)
    with pytest.raises(ValueError, match="has no position embeddings: it is a Mixer"):
        keras_vit.inspection.patch_positions(model)


def test_its_card_says_what_it_is(model):
    facts = gather(model, "hf://anna/mixer", "mit", None, None, {})
    assert facts.is_plain and facts.family is MIXER and facts.architecture == "2 mixing blocks of width 16"
