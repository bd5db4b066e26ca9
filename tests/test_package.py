"""The package as a whole: imports go one way, nothing heavy is loaded, setup.cfg lists the tree, the wheel works
anywhere.
"""

import ast
import collections
import configparser
import functools
import graphlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import import_counts
import pytest

from keras_vit.version import DISTRIBUTION, __version__

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Which other rooms each room may import: io <- data, layers, optim, distribution <- fit <- models <- what models answer
# <- the rest.
_LEARNT = "classification segmentation depth detection instances pretraining image_text"
ALLOWED = {
    "io": "",
    "data": "io",
    "layers": "io",
    "distribution": "io",
    "optim": "io layers",
    "fit": "io layers distribution optim",
    "models": "io layers fit",
    "prediction": "io data layers fit",
    "classification": "io layers fit models prediction",
    "segmentation": "io data layers fit models prediction",
    "depth": "io data layers fit models prediction segmentation",
    "detection": "io data layers fit models prediction classification segmentation",
    "instances": "io data layers fit models prediction segmentation detection",
    "pretraining": "io layers fit models classification",
    "image_text": "io layers fit models prediction classification",
    "answers": "io data layers fit models prediction classification segmentation depth detection instances",
    "training": f"optim fit prediction {_LEARNT}",  # the public names of what trains
    "checkpoints": f"io layers fit models {_LEARNT}",
    "inspection": f"io data layers fit models {_LEARNT} answers",
    "serving": f"io data layers fit models prediction {_LEARNT} answers checkpoints inspection",
    "evaluation": f"io data distribution fit models prediction {_LEARNT} answers inspection",
    "inference": f"io data fit models prediction {_LEARNT} answers serving evaluation",
    "tasks": f"io data layers optim fit models {_LEARNT} answers checkpoints inspection evaluation",
    "runs": f"io data layers distribution optim fit models {_LEARNT} checkpoints inspection evaluation tasks",
    "planning": f"io data layers distribution optim fit models {_LEARNT} checkpoints inspection evaluation tasks runs",
    "sharing": f"io models {_LEARNT} answers checkpoints inspection serving evaluation tasks runs planning",
}
# The doors: methods that users expect on a model, and what they import from above when called.
DOORS = {
    ("fit/model.py", "keras_vit.serving.export"): "Model.export",
    ("fit/model.py", "keras_vit.checkpoints.load"): "Model.from_preset",
    ("fit/model.py", "keras_vit.prediction.images"): "Model.preprocess",
    ("fit/model.py", "keras_vit.classification.classify"): "Model.classify",
    ("models/classifier.py", "keras_vit.classification.classify"): "its type",
    ("segmentation/segmentation_model.py", "keras_vit.depth.depth_model"): "files of depth from before DepthModel",
    ("models/multi_model.py", "keras_vit.answers.several"): "MultiModel.answer",
    ("checkpoints/save.py", "keras_vit.sharing"): "save to hf://",
}
ALLOWED = {room: set(rooms.split()) for room, rooms in ALLOWED.items()}


def python(script, *arguments, flags=(), check=True, env=None, **options):
    """A script that has run in a separate process."""
    command = [sys.executable, *flags, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check, env=env or os.environ, **options)


@functools.cache
def nodes(path):
    """What a file imports, and its texts."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def imports(path):
    """The modules that a file imports."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (
                (f"keras_vit.{alias.name}" for alias in node.names) if node.module == "keras_vit" else [node.module]
            )


def is_door(place, module):
    """Whether an import is a door. Names in models/ of public classes that live above are doors, too."""
    above = place == "models/__init__.py" and module.startswith(tuple(f"keras_vit.{room}." for room in _LEARNT.split()))
    return above or any((place, each) in DOORS for each in (module, module.rpartition(".")[0]))


def all_imports():
    """(place of a file in the package, its room or None, a module that it imports) of the whole package."""
    for path in (ROOT / "keras_vit").rglob("*.py"):
        parts = path.relative_to(ROOT / "keras_vit").parts
        for module in imports(path):
            yield "/".join(parts), parts[0] if len(parts) > 1 else None, module


@pytest.mark.extended
def test_imports_go_one_way():
    doors = set()
    for path, room, module in all_imports():
        if is_door(path, module):
            doors.add((path, module))
            continue
        assert module.split(".")[0] not in ("trainers", "benchmarks", "configs"), f"{path} imports {module}"
        if room and module.startswith("keras_vit.") and module != "keras_vit.version":  # which imports nothing
            assert module.split(".")[1] in ALLOWED[room] | {room}, f"{path} imports {module}"
        assert not room or module != "keras_vit", f"{path} imports the package as a whole"
    assert set(DOORS) <= doors


def test_the_rules_allow_no_circle():
    order = list(ALLOWED)
    for i, room in enumerate(order):
        assert ALLOWED[room] <= set(order[:i]), room


def imported(path, modules):
    """The modules among `modules` that a file imports, at its top or inside a function, or names in a string, as for
    importlib.import_module. Naming a package means its __init__.py.
    """
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("keras_vit."):
            yield node.value


# Words of what a ViT answers or shows, and of its training data; a mask is one of tokens, a box none.
_OF_ANSWERS = re.compile(
    r"segmentation|detection|\bbox(es)?\b|caption|tokenizer|figure|matplotlib|\bPNG\b", re.IGNORECASE
)


def test_a_reader_of_the_vit_needs_few_files():
    names = import_counts.closure("keras_vit.models.vit")
    assert len(names) <= 35 and import_counts.lines(names) <= 6000
    rooms = {name.split(".")[1] for name in names}
    assert rooms == {"fit", "io", "layers", "models"}
    found = {name: _OF_ANSWERS.search(import_counts.modules()[name].read_text()) for name in names}
    assert {name: match[0] for name, match in found.items() if match} == {}


def test_importing_the_package_reads_few_files():
    assert len(import_counts.closure("keras_vit", packages=True)) <= 150


@pytest.mark.extended
def test_no_modules_import_each_other_in_a_circle():
    """Not even inside functions, where a circle would hide, but for the doors."""
    paths = {}
    for path in (ROOT / "keras_vit").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in paths.items():
        place = path.relative_to(ROOT / "keras_vit").as_posix()
        found = {module for module in imported(path, paths) if not is_door(place, module)}
        graph[name] = found & set(paths) - {name}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_inside_data_imports_go_one_way():
    """ops <- sources <- records; what opens and batches sources stands above all three."""
    above = {"open", "batches", "beam_records"}
    below = {"ops": above | {"scan", "sources", "records"}, "records": above}
    below["sources"] = below["records"] | {"records", "scan"}
    for place, above in below.items():
        for path in (ROOT / "keras_vit" / "data" / place).rglob("*.py"):
            parts = {module.split(".")[2] for module in imports(path) if module.startswith("keras_vit.data.")}
            assert not parts & above, f"{path} imports {parts & above}"


def test_every_room_has_its_rule():
    rooms = {p.parent.name for p in (ROOT / "keras_vit").glob("*/__init__.py")}
    assert rooms == set(ALLOWED)


def test_configs_import_only_ml_collections_and_their_lib():
    for path in (ROOT / "configs").rglob("*.py"):
        assert all(module.split(".")[0] == "ml_collections" for module in imports(path)), path


def test_layers_and_models_use_keras_alone_but_for_the_backend_module():
    for room in ("layers", "models"):
        for path in (ROOT / "keras_vit" / room).glob("*.py"):
            used = {module.split(".")[0] for module in imports(path)}
            assert path.name == "backend.py" or not used & {"tensorflow", "jax", "torch"}, path


def test_setup_lists_every_package():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    tree = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "keras_vit").rglob("__init__.py")}
    for mapped in ("trainers", "configs"):
        tree |= {
            f"keras_vit.{'.'.join(p.parent.relative_to(ROOT).parts)}" for p in (ROOT / mapped).rglob("__init__.py")
        }
    assert listed == tree


def test_extras_refer_to_this_distribution():
    setup = (ROOT / "setup.cfg").read_text()
    assert f"\nname = {DISTRIBUTION}\n" in setup
    assert set(re.findall(r"^    (keras-[\w-]+)\[", setup, re.MULTILINE)) == {DISTRIBUTION}


def test_the_citation_has_the_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.processes
def test_nothing_heavy_is_imported_and_a_run_imports_its_own_task_and_evaluators_alone():
    script = (
        "import sys, keras\n"
        "loaded = set(sys.modules)\n"
        "import keras_vit\n"
        "heavy = 'tensorflow_datasets matplotlib sklearn ml_collections pandas scipy tensorboard'.split()\n"
        "print([m for m in heavy if m in set(sys.modules) - loaded])\n"
        "from keras_vit import runs, tasks\n"
        "tasks.find_task('classification')\n"
        "unasked = ('keras_vit.planning', 'keras_vit.tasks.dino', 'keras_vit.evaluation.knn')\n"
        "print([m for m in unasked if m in sys.modules])\n"
        "print(keras_vit.evaluation.find_evaluator('knn').__name__, tasks.SelfDistillation.__name__)\n"
    )
    assert python(script).stdout.split("\n")[:3] == ["[]", "[]", "NearestNeighbours SelfDistillation"]


@pytest.mark.processes
def test_without_an_engine_the_error_names_the_extras():
    """A process that can see keras_vit but neither TensorFlow nor JAX."""
    script = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('tensorflow', 'jax') else find(name, *a)\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import keras_vit\n"
    )
    done = python(script, check=False)
    assert done.returncode != 0
    for extra in (f'pip install "{DISTRIBUTION}[cpu]"', "[gpu]", "[tpu]", "[jax]"):
        assert extra in done.stderr


@pytest.mark.processes
def test_on_jax_models_train_on_arrays_and_travel_without_tensorflow(tmp_path):
    """A process that can see JAX and Keras, but not TensorFlow."""
    script = f"""
import importlib.machinery as machinery, sys
find = machinery.PathFinder.find_spec
hidden = ("tensorflow", "tensorflow_datasets")
machinery.PathFinder.find_spec = lambda name, *a: None if name.split(".")[0] in hidden else find(name, *a)
sys.path.insert(0, {str(ROOT)!r})
import keras_vit, numpy as np
model = keras_vit.ViT("Ti/4", image_size=8, classes=3, depth=1, width=16, heads=2, mlp_dim=32, dtype="mixed_bfloat16")
model.compile(keras_vit.training.AdamW(1e-3), keras_vit.training.SoftmaxCrossEntropy())
images = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3), dtype="uint8")
model.fit(images, np.arange(8) % 3, batch_size=8, verbose=0)
for path in ("mine.keras", "mine.npz"):
    keras_vit.save(model, path)
    loaded = keras_vit.load(path, dtype="mixed_bfloat16")
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
assert loaded.predict(images, verbose=0).shape == (8, 3)
uses = (
    lambda: keras_vit.export(model, "mine.onnx"),
    lambda: model.export("mine"),
    lambda: model.classify(images),
    lambda: keras_vit.data.open_source,
    lambda: keras_vit.evaluation.knn_scores,
    lambda: __import__("keras_vit.inspection.model_page"),
)
for use in uses:
    try:
        use()
    except ImportError as error:
        assert 'needs TensorFlow' in str(error) and "keras-vision-transformers[cpu]" in str(error), error
    else:
        raise AssertionError("worked without TensorFlow")
assert not any(name.startswith("tensorflow") for name in sys.modules)
"""
    done = python(script, cwd=tmp_path, check=False, env={**os.environ, "KERAS_BACKEND": "jax"})
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.processes
def test_the_wheel_holds_trainers_configs_and_scripts(tmp_path):
    """Built from a copy, so that the checkout stays clean; unpacked into an empty folder and run from another."""
    pytest.importorskip("setuptools", minversion="77")
    for name in ("keras_vit", "trainers", "configs"):
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / "source")
    build = f"pip wheel --quiet --no-deps --no-build-isolation -w {tmp_path} ."
    subprocess.run([sys.executable, "-m", *build.split()], cwd=tmp_path / "source", check=True, env=os.environ)
    wheel = zipfile.ZipFile(next(tmp_path.glob("keras_vision_transformers-*.whl")))
    names = set(wheel.namelist())
    assert names > {
        "keras_vit/checkpoints/fetch/catalogue.csv",
        "keras_vit/io/imagenet_classes.txt",
        "keras_vit/planning/counts.csv",
        "keras_vit/inspection/page.html",
        "keras_vit/trainers/pretrain.py",
        "keras_vit/configs/digits_pretrain.py",
        "keras_vit/configs/lib/common.py",
        "keras_vit/py.typed",
        "keras_vit_command.py",
    }
    assert not [name for name in names if name.startswith(("trainers/", "configs/", "tests/"))]
    wheel.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import keras_vit_command, sys; sys.argv[0] = 'keras-vit'\n"
        "keras_vit_command.main(); assert 'site' in sys.modules['keras_vit'].__file__\n"
    )
    arguments = (str(tmp_path / "site"), "pretrain", "--config=digits_pretrain", "--dry_run", "--config.model.depth=1")
    done = python(script, *arguments, flags=("-I",), cwd=tmp_path / "elsewhere", check=False)
    assert done.returncode == 0 and "parameters, all trained" in done.stdout, done.stderr[-2000:]


def test_no_pickle_and_no_lambda_layers():
    for path in [*ROOT.glob("keras_vit/**/*.py"), *ROOT.glob("trainers/*.py"), *ROOT.glob("configs/**/*.py")]:
        text = path.read_text()
        assert "import pickle" not in text and "layers.Lambda(" not in text and "allow_pickle=True" not in text, path


def test_modules_of_tests_have_names_of_their_own():
    """The folders of tests are no packages: of two modules with one name, only one could be imported."""
    names = collections.Counter(path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []


# Questions about the kind of a model, in what stands above the answers.
_QUESTIONS = re.compile(
    r"isinstance\([^()]*\b(\w+Model|Classifier|ViT|BiT|Swin|DualEncoder|TextEncoder|Masked\w+)\b"
    r"|takes_texts\("
    r"|\"(classes|masks|objects|instances|depth|pixels|features|embeddings)\" (not )?in \w+(\.\w+)?\.answers"
)
_ABOVE_ANSWERS = "keras_vit/serving keras_vit/inference keras_vit/inspection keras_vit/sharing trainers"


def test_what_stands_above_the_answers_asks_no_model_what_it_is():
    """`export` asks for models of texts, and a page of class maps for models that return features."""
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for room in _ABOVE_ANSWERS.split()
        for path in (ROOT / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if _QUESTIONS.search(line) and not line.lstrip().startswith("def ")
    ]
    assert len(found) <= 2, "\n".join(found)
