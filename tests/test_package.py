"""The package as a whole: imports go one way, nothing heavy is loaded, setup.cfg lists the tree, the wheel works
anywhere.
"""

import ast
import configparser
import graphlib
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Which other rooms each room may import: io <- data, layers, optim, distribution <- training <- models <- the rest.
ALLOWED = {
    "io": set(),
    "data": {"io"},
    "layers": {"io"},
    "distribution": {"io"},
    "optim": {"io", "layers"},
    "training": {"io", "data", "layers", "optim", "distribution"},
    "models": {"io", "layers", "training"},
    "checkpoints": {"io", "layers", "models", "training"},
    "inspection": {"io", "data", "layers", "models", "training"},
    "serving": {"io", "checkpoints", "data", "inspection", "layers", "models", "training"},
    "evaluation": {"io", "data", "distribution", "inspection", "models", "training"},
    "inference": {"io", "data", "evaluation", "models", "serving", "training"},
    "tasks": {"io", "checkpoints", "data", "evaluation", "inspection", "layers", "models", "optim", "training"},
    "runs": {
        "io",
        "checkpoints",
        "data",
        "distribution",
        "evaluation",
        "inspection",
        "models",
        "optim",
        "tasks",
        "training",
    },
    "planning": {
        "io",
        "checkpoints",
        "data",
        "distribution",
        "evaluation",
        "inspection",
        "layers",
        "models",
        "optim",
        "runs",
        "tasks",
        "training",
    },
    "sharing": {"io", "checkpoints", "evaluation", "inspection", "models", "planning", "runs", "serving", "tasks"},
}


def imports(path):
    """The modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (
                (f"keras_vit.{alias.name}" for alias in node.names) if node.module == "keras_vit" else [node.module]
            )


def room_imports():
    """(file, its room, a module of this package that it imports) of the whole package."""
    for path in (ROOT / "keras_vit").rglob("*.py"):
        parts = path.relative_to(ROOT / "keras_vit").parts
        for module in imports(path):
            yield path, parts[0] if len(parts) > 1 else None, module


def test_imports_go_one_way():
    for path, room, module in room_imports():
        assert module.split(".")[0] not in ("trainers", "benchmarks", "configs"), f"{path} imports {module}"
        if room and module.startswith("keras_vit.") and module != "keras_vit.version":  # which imports nothing
            assert module.split(".")[1] in ALLOWED[room] | {room}, f"{path} imports {module}"
        assert not room or module != "keras_vit", f"{path} imports the package as a whole"


def test_the_rules_allow_no_circle():
    order = list(ALLOWED)
    for i, room in enumerate(order):
        assert ALLOWED[room] <= set(order[:i]), room


def imported(path, modules):
    """The modules among `modules` that a file imports, at its top or inside a function, or names in a string, as for
    importlib.import_module. Naming a package means its __init__.py.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("keras_vit."):
            yield node.value


def test_no_modules_import_each_other_in_a_circle():
    """Not even inside functions, where a circle would hide."""
    paths = {}
    for path in (ROOT / "keras_vit").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {name: set(imported(path, paths)) & set(paths) - {name} for name, path in paths.items()}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_inside_data_imports_go_one_way():
    """ops <- sources <- records; what opens and batches sources stands above all three."""
    below = {"ops": {"open", "batches", "beam", "scan", "sources", "records"}, "records": {"open", "batches", "beam"}}
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


@pytest.mark.processes
def test_import_loads_nothing_heavy():
    heavy = ("tensorflow_datasets", "matplotlib", "sklearn", "ml_collections", "pandas", "scipy", "tensorboard")
    before = "import sys, keras\nloaded = set(sys.modules)\n"
    script = f"{before}import keras_vit\nprint([m for m in {heavy} if m in set(sys.modules) - loaded])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


@pytest.mark.processes
def test_a_run_imports_its_own_task_and_evaluators_alone():
    script = (
        "import sys, keras_vit\n"
        "from keras_vit import runs, tasks\n"
        "tasks.find_task('classification')\n"
        "unasked = ('keras_vit.planning', 'keras_vit.tasks.dino', 'keras_vit.evaluation.knn')\n"
        "print([m for m in unasked if m in sys.modules])\n"
        "print(keras_vit.evaluation.find_evaluator('knn').__name__, tasks.SelfDistillation.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.split("\n")[:2] == ["[]", "NearestNeighbours SelfDistillation"]


@pytest.mark.processes
def test_without_an_engine_the_error_names_the_extras(tmp_path):
    """A process that can see keras_vit but neither TensorFlow nor JAX."""
    script = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('tensorflow', 'jax') else find(name, *a)\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import keras_vit\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode != 0
    for extra in ("tensorflow", "[cpu]", "[gpu]", "[tpu]", "[jax]"):
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
model.fit(images, np.arange(8) % 3, batch_size=4, verbose=0)
model.save("mine.keras")
keras_vit.save(model, "mine.npz")
for path in ("mine.keras", "mine.npz"):
    loaded = keras_vit.load(path, dtype="mixed_bfloat16")
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), model.predict(images, verbose=0))
assert not any(name.startswith("tensorflow") for name in sys.modules)
"""
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.processes
def test_the_wheel_holds_trainers_configs_and_scripts(tmp_path):
    """Built from a copy, so that the checkout stays clean; installed into an empty folder and run from another."""
    import shutil
    import zipfile

    pytest.importorskip("setuptools", minversion="77")
    ignore = shutil.ignore_patterns(".git", ".venv*", "build", "*.egg-info", "__pycache__", "shared")
    shutil.copytree(ROOT, tmp_path / "source", ignore=ignore)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=tmp_path / "source", check=True, env=os.environ)
    wheel = next(tmp_path.glob("keras_vit-*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "keras_vit/checkpoints/fetch/catalogue.csv",
        "keras_vit/inspection/page.html",
        "keras_vit/trainers/pretrain.py",
        "keras_vit/configs/digits_pretrain.py",
        "keras_vit/configs/lib/common.py",
        "keras_vit/py.typed",
        "keras_vit_command.py",
    ):
        assert name in names
    assert not [n for n in names if n.startswith(("trainers/", "configs/", "tests/"))]
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import keras_vit_command, sys; sys.argv[0] = 'keras-vit-pretrain'\n"
        "keras_vit_command.main(); assert 'site' in sys.modules['keras_vit'].__file__\n"
    )
    arguments = [
        "--config=digits_pretrain",
        f"--workdir={tmp_path / 'run'}",
        "--config.total=2 steps",
        "--config.batch_size=8",
    ]
    arguments += ["--config.model.depth=1", "--config.jit_compile=False"]
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-I", "-c", script, str(tmp_path / "site"), *arguments]
    done = subprocess.run(
        command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / "model.keras").exists()


def test_no_pickle_and_no_lambda_layers():
    for path in [*ROOT.glob("keras_vit/**/*.py"), *ROOT.glob("trainers/*.py"), *ROOT.glob("configs/**/*.py")]:
        text = path.read_text()
        assert "import pickle" not in text and "layers.Lambda(" not in text and "allow_pickle=True" not in text, path
