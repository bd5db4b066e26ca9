"""The card: every fact in it is that of the model and of its run's files, its front matter is what the hub reads, and
no path is in it.
"""

import json
import re
import shutil
import types

import keras
import numpy as np
import pytest
import yaml
from hub_stand_in import serving
from small_models import detecting, every_weight, segmenting

import keras_vit
from keras_vit.planning.model_counts import forward_flops
from keras_vit.sharing import share, write_folder
from keras_vit.sharing.card import OWN_WORDS_END, _classes, own_words
from keras_vit.sharing.data_names import find_data, model_name, on_the_hub
from keras_vit.sharing.published_run import read_run
from keras_vit.sharing.shared_folder import check_output

ADDRESS = "hf://anna/digits"


def front_matter_of(text):
    """(the YAML of a card, parsed, the text below it)."""
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    """What is shared of the finished run."""
    folder = tmp_path_factory.mktemp("shared") / "digits"
    write_folder(keras_vit.load(finished), folder, ADDRESS, "Apache-2.0", run=finished)
    return folder


@pytest.mark.extended
def test_the_front_matter_holds_the_measures_of_the_runs_files(folder, finished):
    front, _ = front_matter_of((folder / "README.md").read_text())
    assert front["license"] == "apache-2.0" and front["library_name"] == "keras-vision-transformers"
    assert front["pipeline_tag"] == "image-classification" and {"keras", "transformers"} <= set(front["tags"])
    [index] = front["model-index"]
    own, knn = index["results"]
    evaluation = json.loads((finished / "evaluation.json").read_text())
    measured = {metric["name"]: metric["value"] for metric in own["metrics"]}
    titles = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "loss": "loss", "ece": "expected calibration error"}
    assert {title: evaluation[key] for key, title in titles.items()}.items() <= measured.items()
    assert own["dataset"] == {"type": "digits", "name": "scikit-learn's digits", "split": "test[:48]"}
    assert knn["dataset"]["split"] == "test[:32]"
    top1 = json.loads((finished / "knn.json").read_text())["top1"]
    assert {"type": "accuracy", "value": top1, "name": "knn: top-1 accuracy"} in knn["metrics"]


@pytest.mark.extended
def test_the_text_says_what_the_model_is_and_how_it_was_trained(folder, finished):
    model = keras_vit.load(finished)
    _, body = front_matter_of((folder / "README.md").read_text())
    evaluation = json.loads((finished / "evaluation.json").read_text())
    counted = f"{model.count_params():,}"
    flops = forward_flops(model.spec, 8, 1, 10)
    for row in (
        f"| parameters | {counted} |",
        f"| FLOPs of one image | {flops:,} (2 per multiply-add) |",
        "| image size | 8 x 8 pixels, 1 channel |",
        "| architecture | 1 block of width 32 with 2 heads, patches of 4 x 4 pixels |",
        f"| top-1 accuracy | {100 * evaluation['top1']:.2f}% |",
        "| started from | random weights |",
        "| steps | 6 |",
        "| optimizer | adamw |",
        "| label smoothing | 0.1 |",
        "`decode(1)|resize(8, 8)`",
        'keras_vit.load("hf://anna/digits")',
        'SiglipForImageClassification.from_pretrained("anna/digits")',
    ):
        assert row in body, row
    recalls = evaluation["per_class"]
    assert re.search(rf"\| 3 \| 3 \| {recalls[3]:.1%} \|", body)


@pytest.mark.extended
def test_its_pictures_are_there_and_named_in_the_text(folder):
    _, body = front_matter_of((folder / "README.md").read_text())
    named = re.findall(r'<img src="([^"]+)"', body)
    assert set(named) == {"pictures/loss.png", "pictures/accuracy.png", "pictures/calibration.png"}
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in named)
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", "model.keras", "model.safetensors", "config.json", "preprocessor_config.json", "pictures")
    }


@pytest.mark.extended
def test_a_run_directory_is_its_own_run(finished, monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    with serving(monkeypatch, tmp_path / "cache") as hub:
        assert share(finished, ADDRESS, "mit", private=True) == f"{hub.address}/anna/digits"
    repository = hub.repositories["anna/digits"]
    assert repository.private and "pictures/loss.png" in repository.files
    assert b"top-1 accuracy" in repository.files["README.md"]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["model.keras", "model.safetensors"])
def test_each_file_of_weights_loads_as_an_equal_model(folder, finished, name):
    images = np.random.default_rng(0).uniform(0, 255, (3, 8, 8, 1)).astype("float32")
    np.testing.assert_array_equal(keras_vit.load(folder / name)(images), keras_vit.load(finished)(images))


@pytest.mark.extended
def test_names_of_files_on_this_machine_are_left_out(finished, tmp_path):
    """A run on a folder, from and taught by models on the disk: none of their paths is in any file."""
    run = tmp_path / "secret-project"
    shutil.copytree(finished, run)
    config = json.loads((run / "config.json").read_text())
    config["data"]["source"] = config["evals"]["knn"]["source"] = "folder:/data/patients/scans?resize=1"
    config |= {
        "init": "../models/anna/best",
        "objective": {"teacher": "/models/anna/teacher.keras"},
        "task": "/home/anna/own.py:Own",
    }
    config["data"]["exclude"] = "~/patients/who.txt"
    config["data"]["train_preprocess"] = "decode(1)|mask_by('/data/patients/mask.png')"
    (run / "config.json").write_text(json.dumps(config))
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation |= {"data": config["data"]["source"], "preprocess": config["data"]["train_preprocess"]}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    folder = tmp_path / "shared"
    write_folder(keras_vit.load(run), folder, ADDRESS, "mit", run=run)
    front, body = front_matter_of((folder / "README.md").read_text())
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert not re.search(
            rb"secret-project|patients|anna/(best|teacher|own)|own\.py|" + str(tmp_path).encode(), data
        ), path
    assert front["model-index"][0]["results"][0]["dataset"]["type"] == "imagefolder"
    assert "| started from | the author's own model |" in body and "| taught by | the author's own model |" in body
    assert "| task | Own |" in body and "training preprocessing" not in body


@pytest.mark.extended
@pytest.mark.parametrize("where", ["class names", "preprocessing"])
def test_a_name_of_a_file_within_the_model_is_refused(finished, tmp_path, where):
    run, model = tmp_path / "run", keras_vit.load(finished)
    shutil.copytree(finished, run)
    config = json.loads((run / "config.json").read_text())
    (run / "evaluation.json").write_text("{}")
    if where == "class names":
        model.class_names = tuple(f"{run}/{i}" for i in range(10))
    else:
        config["data"]["eval_preprocess"] = model.preprocessing = (
            "decode(1)|mask_by('/data/patients/mask.png')|resize(8, 8)"
        )
        (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="the name of a local file"):
        write_folder(model, tmp_path / "shared", ADDRESS, "mit", run=run)
    assert not (tmp_path / "shared").exists()


def test_names_in_any_script_and_with_marks_are_shown_as_they_are(tmp_path):
    names = ("a | b", "<b>*猫*</b>", "`x`_y_")
    model = every_weight(classes=3)
    model.class_names = names
    write_folder(model, tmp_path / "shared", ADDRESS, "mit")
    _, body = front_matter_of((tmp_path / "shared" / "README.md").read_text("utf-8"))
    assert [row for row in body.splitlines() if re.match(r"\| \d \|", row)] == [
        r"| 0 | a \| b |",
        r"| 1 | \<b\>\*猫\*\</b\> |",
        r"| 2 | \`x\`\_y\_ |",
    ]
    assert "No measures are available." in body and "## Training" not in body
    model.class_names = None
    write_folder(model, tmp_path / "shared", ADDRESS, "mit")
    _, body = front_matter_of((tmp_path / "shared" / "README.md").read_text("utf-8"))
    assert "The classes have no names." in body and "| class |" not in body


def test_a_folder_keeps_your_own_words_and_is_replaced_only_if_it_is_ours(tmp_path):
    folder = tmp_path / "shared"
    write_folder(every_weight(), folder, ADDRESS, "mit")
    path = folder / "README.md"
    path.write_text(path.read_text().replace(OWN_WORDS_END, f"Not for mushrooms.\n{OWN_WORDS_END}"))
    write_folder(every_weight(), folder, ADDRESS, "apache-2.0")
    assert own_words(path.read_text(), "") == "Not for mushrooms." and "license: apache-2.0" in path.read_text()
    path.write_text("# Somebody else's")
    with pytest.raises(ValueError, match="other files, which would be lost: README.md, config.json, model.keras"):
        check_output(folder)
    path.unlink()
    (folder / "model.keras").unlink()
    with pytest.raises(ValueError, match="other files, which would be lost: config.json, model.safetensors"):
        check_output(folder)


@pytest.mark.extended
def test_a_run_that_has_not_ended_is_refused(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    assert read_run(run).config["total"] == 6
    (run / "lock.json").write_text("{}")
    with pytest.raises(ValueError, match="in use by a training run"):
        read_run(run)
    (run / "lock.json").unlink()
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"total": 12}))  # it is extended
    with pytest.raises(ValueError, match="is at step 6 of 12: .*--config.total=6, then share it"):
        read_run(run)
    for file in run.glob("checkpoints/*"):
        file.unlink()
    (run / "metrics.jsonl").unlink()
    assert read_run(run).records == []  # how far it is cannot be told


def test_a_model_that_no_other_library_knows_is_shared_as_keras_alone(tmp_path):
    model = keras_vit.ViT(
        "Ti/8", image_size=16, classes=None, depth=1, width=32, heads=2, mlp_dim=64, positions="rope2d"
    )
    headed = model.with_head(keras.layers.Dense(2))
    for shared, task in ((model, "image-feature-extraction"), (headed, None)):
        folder = tmp_path / str(task)
        write_folder(shared, folder, ADDRESS, "mit")
        front, body = front_matter_of((folder / "README.md").read_text())
        assert {path.name for path in folder.iterdir()} == {"README.md", "model.keras"}
        assert front.get("pipeline_tag") == task and "PyTorch" not in body and "classify" not in body


def test_a_model_of_one_class_does_not_tell_classes_apart(tmp_path):
    model = keras_vit.ViT("Ti/8", image_size=16, depth=1, width=16, heads=2, mlp_dim=16, classes=1)
    write_folder(model, tmp_path / "one", ADDRESS, "mit", untrained=True)
    assert "It returns the probability of one class." in (tmp_path / "one" / "README.md").read_text()


def _estimating():
    return keras_vit.DepthModel("Ti/8", "linear", image_size=16, depth=1, width=16, heads=2, mlp_dim=16)


def _joined():
    model = segmenting()
    return keras_vit.MultiModel(model.get_encoder(), {"street": model})


@pytest.mark.parametrize(
    ("model", "task", "classes", "code"),
    [
        (detecting, "object-detection", "finds objects of 3 classes", "model.detect("),
        (segmenting, "image-segmentation", "gives every pixel one of 3 classes", "model.segment("),
        (_estimating, "depth-estimation", "It gives every pixel a metric depth.", "model.estimate("),
        (_joined, None, "Its part street gives every pixel one of 3 classes.", "model.answer("),
    ],
)
def test_a_model_with_a_head_is_shared_with_its_task(tmp_path, model, task, classes, code):
    write_folder(model(), tmp_path / "shared", ADDRESS, "mit")
    front, body = front_matter_of((tmp_path / "shared" / "README.md").read_text())
    assert front.get("pipeline_tag") == task and classes in body and code in body
    assert "classify" not in body and "get_encoder" not in body


@pytest.mark.extended
def test_a_model_of_pre_training_is_shared_with_its_encoder(tmp_path):
    sizes = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 64}
    model = keras_vit.MaskedAutoencoder(
        "Ti/8", image_size=16, decoder_depth=1, decoder_width=32, decoder_heads=2, **sizes
    )
    write_folder(model, tmp_path / "shared", ADDRESS, "mit")
    front, body = front_matter_of((tmp_path / "shared" / "README.md").read_text())
    assert front["pipeline_tag"] == "image-feature-extraction" and "model.get_encoder()" in body
    assert f"| parameters | {model.count_params():,} |" in body
    assert isinstance(keras_vit.load(tmp_path / "shared"), keras_vit.MaskedAutoencoder)


def test_what_transformers_cannot_express_is_shared_for_timm(tmp_path):
    model = every_weight(qk_norm=True)
    write_folder(model, tmp_path / "shared", ADDRESS, "mit")
    front, body = front_matter_of((tmp_path / "shared" / "README.md").read_text())
    assert "timm" in front["tags"] and 'timm.create_model("hf-hub:anna/digits", pretrained=True)' in body


@pytest.mark.parametrize(
    ("source", "split", "expected"),
    [
        ("cifar10:3.0.2", "train[:90%]", ("cifar10", "uoft-cs/cifar10", "train[:90%]", True)),
        ("imagenet2012?id=file_name", "validation", ("imagenet2012", "ILSVRC/imagenet-1k", "validation", True)),
        ("folder:photos", "train", ("the author's own images", "imagefolder", "train", False)),
        ("csv:gs://bucket/table.csv", "../other", ("the author's own images", "csv", None, False)),
        ("boxes:me/cells?classes=3", "val", ("the author's own images", "imagefolder", "val", False)),
        ("instances:me/cells", "val", ("the author's own images", "imagefolder", "val", False)),
        ("masks:streets", "train", ("the author's own images", "imagefolder", "train", False)),
        ("eurosat", "test", ("eurosat", "eurosat", "test", True)),
    ],
)
def test_data_is_named_by_what_anybody_knows(source, split, expected):
    data = find_data(source, split)
    assert (data.name, data.kind, data.split, data.public) == expected


def test_models_are_named_by_what_anybody_can_load():
    assert (
        model_name("deit/tiny") == "deit/tiny (Apache-2.0)"
        and on_the_hub("deit/tiny") == "timm/deit_tiny_patch16_224.fb_in1k"
    )
    assert model_name("runs/mine") == "the author's own model" and on_the_hub("runs/mine") is None
    assert on_the_hub("hf://anna/flowers@v2/model.safetensors") == "anna/flowers" and on_the_hub(None) is None


def test_what_evaluate_wrote_says_what_was_measured_on(tmp_path):
    for source, named in (("cifar10", "cifar10"), ("folder:/home/me/secret", "the author's own images")):
        (tmp_path / "evaluation.json").write_text(json.dumps({"data": source, "split": "test[:48]", "top1": 0.5}))
        evaluation = read_run(tmp_path).evaluation
        assert (evaluation.data.name, evaluation.data.split, evaluation.measures) == (named, "test[:48]", {"top1": 0.5})


@pytest.mark.parametrize(
    ("rows", "head", "first"),
    [
        ([{"name": "sky", "iou": 0.5, "share": None}], "| class | name | iou | share |", "| 0 | sky | 50.0% | - |"),
        ([{"name": "sky", "ap": 0.25, "objects": 7}], "| class | name | ap | objects |", "| 0 | sky | 25.0% | 7 |"),
        ([0.75], "| class | name | recall |", "| 0 | sky | 75.0% |"),
    ],
)
def test_classes_are_listed_with_the_scores_of_any_task(rows, head, first):
    run = types.SimpleNamespace(evaluation=types.SimpleNamespace(details={"per_class": rows}))
    model = {"classes": 1, "class_names": ["sky"], "activation": "softmax"}
    lines = _classes(types.SimpleNamespace(model=model, run=run))
    assert head in lines and first in lines
