"""Images with texts as a task: a run on a table that resumes, what it delivers, its evaluator, and what is refused."""

import json

import keras
import numpy as np
import pytest
import short_runs
from ml_collections import ConfigDict

import keras_vit
from keras_vit.data import from_arrays, open_source, training_batches
from keras_vit.data.captions import check_texts
from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.evaluation.retrieval import ranks
from keras_vit.io.tokenizer import Tokenizer
from keras_vit.runs import prepare
from keras_vit.tasks import find_task

pytest.importorskip("tokenizers")
COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250), "white": (250, 250, 250)}
RESIZE = "decode|resize(8, 8)"
TEXT = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "length": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """pairs.jsonl with 16 images of a colour, each with its text; a tokenizer; an image encoder."""
    place, lines = tmp_path_factory.mktemp("pairs"), []
    for i in range(16):
        name, colour = list(COLOURS.items())[i % 4]
        keras.utils.save_img(place / f"{i}.png", np.full((8, 8, 3), colour, "uint8") - i // 4, scale=False)
        lines.append(json.dumps({"image": f"{i}.png", "text": f"a {name} card"}))
    (place / "pairs.jsonl").write_text("\n".join(lines))
    Tokenizer.train([f"a {name} card" for name in COLOURS], 280, 6).save(place)
    keras.utils.set_random_seed(1)
    keras_vit.ViT("B/4", image_size=8, classes=None, pool="gap", **short_runs.SMALL).save(place / "image.keras")
    return place


def small(folder, **options):
    """A config of the table with a frozen image encoder."""
    config = short_runs.small("image_text", "lit", init=str(folder / "image.keras"))
    config.update(batch_size=8, evaluate="4 steps")
    config.model.update(channels=3, image_size=8, patch_size=4)
    config.data.update(source=f"jsonl:{folder}/pairs.jsonl", train="train[:12]", evaluation="train[12:]")
    config.data.update(train_preprocess=RESIZE, eval_preprocess=RESIZE)
    config.loss.name = "sigmoid"
    config.objective.update(tokenizer=str(folder), text_options=TEXT)
    with config.unlocked():
        config.update_from_flattened_dict(options)
    return config


def task_of(config):
    task = find_task("image_text")(config)
    task.check_config()
    return task


@pytest.fixture(scope="module")
def made(folder):
    """(task, source, dual encoder) of the config, untrained."""
    config = small(folder)
    task, source = task_of(config), open_source(config.data.source, "train")
    return task, source, task.model(source).dual_encoder


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    config = small(folder, **{"optimizer.name": "muon", "loss.name": "softmax"})
    return short_runs.whole_and_resumed(config, tmp_path_factory.mktemp("runs"))


@pytest.mark.extended
def test_a_run_resumes_bit_for_bit(done):
    assert done.resumed == done.state


@pytest.mark.extended
def test_a_run_delivers_the_pair_with_its_tokenizer_and_the_image_encoder_as_it_was(done, folder):
    model = keras_vit.load(done.folder)
    assert type(model) is keras_vit.DualEncoder and model.tokenizer.length == 6
    for ours, theirs in zip(model.image_encoder.get_weights(), keras_vit.load(folder / "image.keras").get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    assert set(done.measures) >= {"image_to_text_recall1", "texts"} and "texts found, recall at 1" in done.page
    assert done.records[-1]["val_pair_accuracy"] >= 0


@pytest.mark.extended
def test_both_encoders_go_on_from_a_pair(done, folder):
    config = small(folder, init=str(done.folder), **{"loss.name": "softmax"})
    config.objective = ConfigDict({"text": None, "frozen": False})
    task, source = task_of(config), open_source(config.data.source, "train")
    model = task.model(source)
    np.testing.assert_array_equal(
        model.dual_encoder.encode_text("a red card"), keras_vit.load(done.folder).encode_text("a red card")
    )
    assert model.dual_encoder.image_encoder.trainable_weights
    config.loss.name = "sigmoid"
    with pytest.raises(ValueError, match="differs from the config: set --config.loss.name=softmax"):
        task.model(source)


def tokens_of_a_batch(task, source):
    (_, ids), _ = next(training_batches(source, RESIZE, 16, select=task.select).as_numpy_iterator())
    return {row.tobytes() for row in ids}


@pytest.mark.extended
def test_texts_become_token_ids(made):
    task, source, model = made
    known = model.tokenizer([f"a {name} card" for name in COLOURS])
    assert tokens_of_a_batch(task, source) == {row.tobytes() for row in known}
    assert model.image_encoder.trainable_weights == [] and model.text_encoder.trainable_weights


@pytest.mark.extended
def test_class_names_in_templates_are_texts(made, folder):
    source = from_arrays(np.zeros((8, 8, 8, 3), "uint8"), np.arange(8) % 2, class_names=("red", "blue"))
    task = task_of(small(folder, **{"objective.templates": ("a {}", "{} card")}))
    task.check_model(made[2], source)
    known = made[2].tokenizer(["a red", "red card", "a blue", "blue card"])
    assert tokens_of_a_batch(task, source) == {row.tobytes() for row in known}
    with pytest.raises(ValueError, match='"red" and "blue" have the same token ids'):
        task_of(small(folder)).check_model(made[2], source)  # "This is a photo of" fills the six tokens


def test_retrieval_counts_equal_texts_and_images_once():
    images, texts = np.eye(3), np.array([[0.9, 0, 0.1], [0.1, 0.2, 0], [0, 0.5, 0.5]])
    pairs = np.array([[0, 0], [1, 1], [2, 2], [1, 2]])
    assert ranks(images, texts, pairs).tolist() == [0, 0, 0]
    assert ranks(texts, images, pairs[:, ::-1]).tolist() == [0, 0, 0]
    assert ranks(images, texts, pairs[:3]).tolist() == [0, 1, 0]
    assert ranks(images, np.ones((3, 3)), pairs[:3]).tolist() == [2, 2, 2]  # ties count against the query


@pytest.mark.extended
@pytest.mark.usefixtures("eagerly")
def test_the_evaluator_takes_texts_and_classes(made):
    _, source, model = made

    def make(**options):
        return make_evaluator("retrieval", {"preprocess": RESIZE, **options})

    found = make().prepare(Setting(model, batch_size=8, source=source))().measures
    assert (found["texts"], found["images"], found["examples"]) == (4, 16, 16)
    assert "image_to_text_recall5" not in found and 0 <= found["text_to_image_recall10"] <= 1  # of 4 texts, 16 images
    classes = from_arrays(np.zeros((2, 8, 8, 3), "uint8"), np.arange(2), class_names=("red", "blue"))
    with pytest.raises(ValueError, match="two different images and two different texts or more, got 1 and 2"):
        make(templates="label").prepare(Setting(model, batch_size=2, source=classes))()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 1}, r"--config.batch_size=1: image_text learns by comparing"),
        ({"micro_batches": 2}, r"--config.micro_batches=2: .* undivided"),
        ({"loss.name": "sigmoidal"}, 'Unknown loss "sigmoidal". Did you mean "sigmoid"'),
        ({"init": None}, "A frozen image encoder with random weights gives no useful features"),
        ({"objective.text": "SigLIP"}, 'Unknown text encoder "SigLIP"'),
        ({"objective.templates": "a photo"}, 'Unknown templates "a photo"'),
    ],
)
def test_configs_that_would_learn_nothing_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        prepare.check(small(folder, **options))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a red card"] * 4, 'All texts of jsonl:.* are "a red card": there is nothing to learn'),
        (["a red card", "", "x", "y"], 'line 2: expected the text in column "text"'),
        (["word " * 6 + end for end in "abcd"], "have the same token ids: the tokenizer does not know"),
    ],
)
def test_texts_that_teach_nothing_are_refused(made, folder, tmp_path, texts, words):
    rows = [{"image": f"{folder}/{i}.png", "text": text} for i, text in enumerate(texts)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=words):
        check_texts(open_source(f"jsonl:{tmp_path}/pairs.jsonl", "train"), made[2].tokens)


def test_a_tokenizer_that_does_not_fit_is_refused(folder):
    config = small(folder, **{"objective.text_options": {**TEXT, "vocabulary": 100}})
    with pytest.raises(ValueError, match="a vocabulary of 100 is smaller than the tokenizer's, 2"):
        task_of(config).model(None)
    with pytest.raises(ValueError, match="Texts need a tokenizer: set --config.objective.tokenizer"):
        task_of(small(folder)).select({})
