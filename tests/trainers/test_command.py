"""The command: its verbs, what help costs and says, mistyped words, completion, and which configs there are."""

import ast
import os
import re
import subprocess
import sys

import pytest
from interpreters import ROOT, ran

from keras_vit.runs.grid import at, parse_grid
from keras_vit.version import __version__
from trainers import command, completion, config_files


def test_every_binary_is_a_verb():
    binaries = {path.stem for path in (ROOT / "trainers").glob("*.py") if "\ndef run():" in path.read_text()}
    assert binaries == set(map(command.verb_module, command.VERBS))
    assert not binaries & sys.stdlib_module_names  # `python trainers/classify.py` would import ours for Python's own


def test_help_lists_the_verbs_with_what_they_do_and_an_example(monkeypatch, capsys):
    for argv in ([], ["--help"], ["-h"], ["help"]):
        monkeypatch.setattr(sys, "argv", ["/usr/bin/keras-vit", *argv])
        command.main()
        printed = capsys.readouterr().out
        assert re.findall(r"^  (\w+) +[A-Z][\w-]+s ", printed, re.MULTILINE) == list(command.VERBS)
        assert "keras-vit finetune --data=PHOTOS --init=deit/tiny" in printed
    monkeypatch.setattr(sys, "argv", ["/somewhere/trainers/__main__.py"])
    command.main()
    assert "python -m trainers finetune --data=PHOTOS" in capsys.readouterr().out


def test_the_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keras-vit", "--version"])
    command.main()
    assert capsys.readouterr().out == f"keras_vit {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["finetun"], 'keras-vit: there is no verb "finetun". Did you mean "finetune"?'),
        (["eval"], 'Did you mean "evaluate"?'),
        (["--config=digits_pretrain"], "the verb comes first, and --config=digits_pretrain after it"),
    ],
)
def test_unknown_verbs_name_the_nearest(words, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["keras-vit", *words])
    with pytest.raises(SystemExit, match=re.escape(message)):
        command.main()


@pytest.mark.processes
def test_help_of_the_installed_command_imports_no_engine_and_shows_defaults():
    for verb, (printed, code) in zip(
        command.VERBS, ran(*(("/bin/keras-vit", verb, "--help") for verb in command.VERBS))
    ):
        assert code == 0 and "heavy: []" in printed, printed
        assert f"keras-vit {verb}" in printed and "python -m" not in printed, printed
        shown = re.findall(r"^  --\w+: (.*)$", printed, re.MULTILINE)
        assert all(re.search("default|required", text) for text in shown), printed
        assert shown or verb == "classify"


@pytest.mark.processes
def test_the_commands_answers_without_an_engine():
    finetune = ("keras-vit", "finetune", "--config=digits_finetune")
    pretrain = ("keras-vit", "pretrain", "--config=digits_pretrain", "--workdir=x")
    export = ("keras-vit", "export", "--model=x", "--output=y", "--format=timm")
    answers = {
        (*finetune, "--help"): "--config.optimizer.learning_rate=",
        ("keras-vit", "finetune", "--config.seed=1", "--help"): "--workdir: The run's directory",
        ("keras-vit", "probe", "--help"): "--batch_size: Images per batch. (default: 64)",
        ("keras-vit", "probe", "--version"): f"keras_vit {__version__}",
        (*finetune, "--workdr=x"): 'no flag --workdr. Did you mean "--workdir"?',
        (*finetune, "--weight_decay=1"): 'Did you mean "--config.optimizer.weight_decay"?',
        (
            "keras-vit",
            "finetune",
            "--config=digits_finetune.py",
        ): 'config file "digits_finetune.py". Did you mean "digits_finetune"?',
        ("keras-vit", "pretrain", "--config=augreg:mediun1"): 'Did you mean "medium1"?',
        ("keras-vit", "export", "--output=x"): "--model must be given.",
        (*export, "--top_k=3"): "--top_k is for --format=tf_saved_model",
        (*pretrain, "--runs=0"): "flag --runs=0: 0 is not a positive integer",
        (*pretrain, "--examples=100"): "--examples is for --dry_run, and would be ignored.",
        (*pretrain, "--tpu=name"): "--tpu is for --strategy=tpu, and would be ignored.",
        (*pretrain, "nonsense"): 'Unexpected argument "nonsense"',
        ("keras-vit", "pretrain", "--config="): "Give --config=NAME, e.g. --config=digits_pretrain (recipes: augreg,",
        ("keras-vit", "pretrain", "--config=digits_pretrain"): "--workdir=FOLDER is missing",
        ("keras-vit", "probe", "--model=x", "--methods=knn", "--shots=1"): "--shots is for --methods=few_shot",
        ("keras-vit", "infer", "x"): 'Did you mean "predict"?',
        (*finetune, "--config.batch_size=abc"): "batch_size=abc: 'abc' is not an integer.",
        ("keras-vit", "prepare", "--data=x"): 'there is no flag --data. Did you mean "--source"?',
        ("keras-vit", "configs"): "folder_finetune       Fine-tunes",
        ("keras-vit", "configs", "digits_pretrain"): "keras-vit pretrain --config=digits_pretrain",
        ("keras-vit", "configs", "digits_pretrai"): 'Did you mean "digits_pretrain"',
        ("keras-vit", "models", "deit/tiny*"): "deit/tiny            224   5,717,416",
        ("keras-vit", "completion", "bash"): "complete -o default",
        ("keras-vit", "completion", "fish"): "completion takes one shell, bash or zsh, got fish",
        ("keras-vit", "completion", "words", "bash", "keras-vit finetune --work"): "--workdir=",
        ("keras-vit", "completion", "words", "zsh", "keras-vit finetune --dry"): "--dry_run \n",
    }
    for (words, expected), (printed, _) in zip(answers.items(), ran(*answers), strict=True):
        assert expected in printed and "Traceback" not in printed and "heavy: []" in printed, (words, printed)


@pytest.mark.processes
def test_a_backend_that_is_not_ours_is_one_sentence():
    for backend in ("torch", "numpy", "openvino", "tensorflo"):
        [(printed, code)] = ran(("keras-vit", "evaluate", "--model=x"), KERAS_BACKEND=backend)
        sentence = f'Error: keras_vit runs on the TensorFlow and JAX backends of Keras, and this is "{backend}": set'
        assert code == 1 and printed.startswith(sentence) and "Traceback" not in printed, printed


# Runs the command after hiding libraries, named by the first argument.
_WITHOUT = """
import importlib.machinery as machinery, sys
find, hidden = machinery.PathFinder.find_spec, sys.argv.pop(1).split(",")
machinery.PathFinder.find_spec = lambda name, *a: None if name.split(".")[0] in hidden else find(name, *a)
import keras_vit_command
keras_vit_command.main()
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("hidden", "words", "message"),
    [
        ("tensorflow,jax", "classify x a.jpg", "needs TensorFlow or JAX, and neither is installed: {}[cpu]"),
        (
            "tensorflow,jax",
            "plan --config=mae --topology=v5e:4x4",
            "Not installed: TensorFlow, JAX.* Run: {}[cpu,plan]",
        ),
        ("jax,libtpu", "plan --config=mae --topology=v5e:4x4", "Not installed: JAX, libtpu.* Run: {}[cpu,plan]"),
        ("tensorflow", "prepare --source=x --output=y", "This needs TensorFlow, on the JAX backend too.*: {}[cpu]"),
    ],
)
def test_a_missing_engine_says_what_to_install(hidden, words, message):
    command_line = [sys.executable, "-c", _WITHOUT, hidden, *words.split()]
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    done = subprocess.run(command_line, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    said = message.replace("{}[", re.escape('pip install "keras-vision-transformers[')).replace("]", r"\]")
    assert done.returncode == 1 and re.search(f'Error: .*{said}"', done.stderr), done.stderr


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [
        ("bash", "keras-vit fin", ["finetune "]),
        ("bash", "keras-vit finetune --config=digits", ["digits_finetune ", "digits_pretrain "]),
        ("zsh", "keras-vit finetune --config=digits", ["--config=digits_finetune ", "--config=digits_pretrain "]),
        ("bash", "keras-vit finetune --config=paper_finetune:L/16,pe", ["L/16,pets "]),
        ("zsh", "keras-vit  pretrain --config=digits_pretrain --config.optimizer.ema", ["--config.optimizer.ema="]),
        ("bash", "keras-vit configs digits_f", ["digits_finetune "]),
        ("bash", "keras-vit classify expor", []),
    ],
)
def test_words_that_complete_a_line(shell, line, expected):
    assert completion.words(shell, line) == expected


@pytest.mark.processes
def test_bash_completes(tmp_path):
    """The printed function, with the words that bash itself makes of a line, and a program in the command's place."""
    (tmp_path / "keras-vit").write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom keras_vit_command import"
        " main\nmain()\n"
    )
    (tmp_path / "keras-vit").chmod(0o755)
    script = (
        completion._SCRIPTS["bash"]
        + "\nCOMP_LINE='keras-vit finetune --config=digits_f and more' COMP_POINT=36\n_keras_vit\n"
        'printf "<%s>" "${COMPREPLY[@]}"; complete -p keras-vit\n'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("<digits_finetune >") and "_keras_vit keras-vit" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.learning_rate=1", 'no "learning_rate" there. Did you mean "optimizer.learning_rate"?'),
        ("--config.batchsize=1", 'no "batchsize" there. Did you mean "batch_size"'),
        ("--config.optimizer.batch_size=1", 'Did you mean "batch_size"?'),
        ("--config.optimiser.name=x", 'no "optimiser" there. Did you mean "optimizer"'),
        ("--config.name=x", 'Did you mean "loss.name" or "optimizer.name"?'),
        ("--config.drop_path=0.1", 'no "drop_path" there. Did you mean "model.drop_path"'),
        ("--config.model.learning_rate=1", 'a model has no "learning_rate". Did you mean "optimizer.learning_rate"?'),
        ("--config.batch_size.x=1", 'no "x" there'),
        ("--config.model.depth", "has no value. Write --config.model.depth=VALUE"),
        ("--config.optimizer=adamw", "--config.optimizer is a section. Set its keys: --config.optimizer.beta_2"),
        ("--config.evals.few_shot=digits", "Set its keys: --config.evals.few_shot.source="),
        ("--config.evals.knn=None", 'no evaluator "knn" to leave out'),
        ("--config.mixup=off", "Write --config.mixup=None."),
        ("--config.init=none", "Write --config.init=None."),
        ("--config.model.head_dim=off", "Write --config.model.head_dim=None."),
        ("--config.batch_size=None", "--config.batch_size=None: this cannot be off. It is 64."),
        ("--config.data.source=None", "this cannot be off. It is 'digits'."),
    ],
)
def test_a_key_or_value_in_a_wrong_place_is_told_the_right_one(argument, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config_files.apply_overrides([argument], config_files.load_config("digits_finetune"))


def test_an_evaluator_is_left_out_by_none():
    config = config_files.load_config("mae")
    arguments = ["--config.evals.knn.every=5 steps", "--config.evals.knn=None", "--config.total=9 steps"]
    assert config_files.apply_overrides(arguments, config) == ["--config.total=9 steps"]
    assert list(config.evals) == ["reconstructions"]
    with pytest.raises(ValueError, match=re.escape("--config.evals.reconstructions=None")):
        config_files.apply_overrides(["--config.evals.reconstructions=5"], config)


@pytest.mark.parametrize("recipe", ["instances", "segmentation:camvid"])
def test_images_are_square_or_not_whatever_the_recipes_are(recipe):
    for text, size in (("(192, 256)", (192, 256)), ("224", 224)):
        config = config_files.load_config(recipe)
        assert config_files.apply_overrides([f"--config.model.image_size={text}"], config) == []
        assert config.model.image_size == size
    for text in ("(192,)", "12.5", "large", "(0, 4)"):
        with pytest.raises(ValueError, match=re.escape(f"{text}: expected pixels, such as 224, or (height, width)")):
            config_files.apply_overrides([f"--config.model.image_size={text}"], config_files.load_config(recipe))


def test_a_value_may_be_an_argument_of_its_own():
    config = config_files.load_config("digits_finetune")
    given = "--config.mixup None --config.model.depth 3 --config.seed 5 --config.data.cache --runs=2".split()
    assert config_files.apply_overrides(given, config) == ["--config.seed=5", "--config.data.cache", "--runs=2"]
    assert config.mixup is None and config.model.depth == 3


def test_the_sweeps_in_help_and_in_the_docs_work():
    pages = [ROOT / "trainers" / "shared_flags.py", *(ROOT / "docs").glob("*.md")]
    config = config_files.load_config("digits_pretrain")
    grids = {
        grid: parse_grid(grid, config) for page in pages for grid in re.findall(r'--sweep="([^"]+)"', page.read_text())
    }
    assert len(grids) > 1
    [shown] = [grid for text, grid in grids.items() if "mixup" in text]
    assert {at(config, point).mixup for point in shown.points()} == {None, 0.2}


def test_the_rooms_that_the_command_line_loads_by_path_import_no_other():
    """See trainers/without_engine.py."""
    places = {
        place
        for path in (ROOT / "trainers").glob("*.py")
        for place in re.findall(r'package_module\("([\w.]+)"\)', path.read_text())
    }
    assert places
    for place in places:
        tree = ast.parse((ROOT / "keras_vit" / f"{place.replace('.', '/')}.py").read_text())
        names = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        names += [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        assert not [name for name in names if name.startswith("keras")], place
