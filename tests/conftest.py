"""What the tests share: quiet TensorFlow, the shared data's place, small models and arrays."""

import collections
import contextlib
import gc
import inspect
import multiprocessing.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tiny products gain nothing by threads, and several files of tests run at a time.
# As keras_vit/environment.py, and some tests import TensorFlow first.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Programs that run for a few steps: compiling them is most of the time, optimizing them most of compiling.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import keras
import numpy as np
import pytest
import quick_tensorflow

import keras_vit
from trainers import flags

gc.disable()  # until the tests begin: what is collected stays
ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("KERAS_VIT_TEST_DATA", ROOT.parent / "shared" / "data"))


def pytest_configure(config):
    """Temporary files go into a folder that ends with the session: TensorFlow's autograph leaves its sources behind in
    workers, which end without running exit handlers. pytest's own folders stay where they are.
    """
    if not hasattr(config, "workerinput"):  # the controller, or the only process
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="keras_vit_tests_")
        tempfile.tempdir = None  # read TMPDIR again
        os.environ["KERAS_VIT_TEST_SESSION"] = str(os.getpid())
        # Each program is compiled once in a session: runs that resume, and other processes, find it here.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder + "/jax")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        # After what multiprocessing removes at exit from a folder of its own in this one.
        multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)
    if keras.backend.backend() == "tensorflow":
        quick_tensorflow.without_optimizing()
        quick_tensorflow.without_records()
        quick_tensorflow.with_batches_of_slices()
    quick_tensorflow.without_collecting()
    quick_tensorflow.with_remembered_signatures()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Models and graphs are many objects that live as long as their test: looking through them again and again took a
    tenth of the time.
    """
    gc.freeze()
    gc.get_freeze_count = lambda: 1  # not 0; counting takes a tenth of a second
    gc.set_threshold(100_000, 10, 8)
    gc.enable()


def pytest_unconfigure(config):
    if "interpreters" in sys.modules:
        sys.modules["interpreters"].stop()


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--since", help="of the tests marked release, run those whose code has changed since this commit")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config, items):
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: run with --slow")
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(skip)
    if (since := config.getoption("--since")) and (changed := _changed(since)) is not None:
        left_out = [item for item in items if _is_unchanged(item, changed)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    _longest_first(items)


def _changed(since):
    """The files that differ from those of a commit; None for one that is not known here, so that all tests run."""
    command = ["git", "diff", "--name-only", since, "--"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.splitlines() if found.returncode == 0 else None


def _is_unchanged(item, changed):
    """Whether a test is marked release, and neither it nor what it names is among the changed files."""
    marker = item.get_closest_marker("release")
    if marker is None:
        return False
    path = item.path.relative_to(ROOT)
    own = path if path.parent.name == "tests" else path.parent  # with the programs that its processes run
    paths = (str(own), "setup.cfg", "tests/conftest.py", "tests/interpreters.py", *marker.args)
    return not any(name.removeprefix("keras_vit/").startswith(path) for name in changed for path in paths)


def _longest_first(items):
    """Files that take long come first, as far as the tiers of their tests tell: a worker left alone with one at the end
    would make the others wait.
    """
    seconds = collections.Counter()
    for item in items:
        longer = {"processes", "release"} & {*item.keywords}
        seconds[item.path] += 8 if longer else 2 if "extended" in item.keywords else 0.3
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same seeds and the float32 policy, and leaves the policy so."""
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True, scope="module")
def collected():
    """What a file of tests leaves is collected once, and what then still lives is kept out of later collections: a
    tenth of the time.
    """
    yield
    keras.backend.clear_session(free_memory=False)
    _forget_what_tensorflow_keeps()
    gc.collect()
    gc.freeze()


def _forget_what_tensorflow_keeps():
    """TensorFlow keeps its kernels, one for each variable that there was, and the function of each custom gradient that
    was ever traced, and with it the whole graph: 8 MB for each `fit` of a small model.
    """
    if keras.backend.backend() == "tensorflow":
        from tensorflow.python.eager import context
        from tensorflow.python.framework import ops

        context.context().clear_kernel_cache()

        kept = ops.gradient_registry._registry
        for name in [name for name in kept if name.startswith("CustomGradient-")]:
            del kept[name]
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def _eagerly():
    import tensorflow as tf
    from small_models import run_eagerly

    before = tf.config.functions_run_eagerly()
    run_eagerly(True)
    yield run_eagerly
    run_eagerly(before)


@pytest.fixture
def eagerly():
    """TensorFlow functions run eagerly: tracing is most of what a run of a few steps takes. Call it with False to trace
    again.
    """
    yield from _eagerly()


@pytest.fixture(scope="module")
def eager_module():
    """As `eagerly`, for a file of tests and its fixtures."""
    yield from _eagerly()


@pytest.fixture
def without_values():
    """A context in which models are made whose variables never get values: G/14's are 7 GB."""

    @contextlib.contextmanager
    def context():
        with keras.StatelessScope():
            yield
            keras.backend.clear_session(
                free_memory=False
            )  # with it goes the list of variables that the scope's end would give values

    return context


@pytest.fixture
def photos(tmp_path):
    """A folder of 20 JPEGs in two classes that differ in brightness."""
    import tensorflow as tf

    rng, folder = np.random.default_rng(0), tmp_path / "photos"
    for i in range(20):
        name = ("dark", "light")[i % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 90, (40, 50, 3)) + 160 * (i % 2)
        (folder / name / f"{i:02d}.jpg").write_bytes(tf.io.encode_jpeg(pixels.astype("uint8")).numpy())
    return folder


@pytest.fixture(scope="session")
def large_jpeg(tmp_path_factory):
    """A grey JPEG of 8000 x 4400 pixels, which training decodes at half of its sides."""
    image = pytest.importorskip("PIL.Image")
    path = tmp_path_factory.mktemp("large") / "large.jpg"
    image.new("L", (8000, 4400), 128).save(path)
    return path


@pytest.fixture(scope="session")
def shared_data():
    """The folder of shared data; its tests are skipped without it, and fail where KERAS_VIT_REQUIRE_TEST_DATA is
    set.
    """
    if not DATA.is_dir():
        message = f"no shared data in {DATA}: set KERAS_VIT_TEST_DATA"
        if os.environ.get("KERAS_VIT_REQUIRE_TEST_DATA"):
            pytest.fail(message)
        pytest.skip(message)
    return DATA


@pytest.fixture(scope="session")
def of_deit():
    """Arguments of `load` for what the file shared/data/deit_tiny, timm's names without a config, does not show."""
    constants = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
    return {"heads": 3, "norm_first": True, "mlp_activation": "gelu", "pool": "token", "epsilon": 1e-6, **constants}


@pytest.fixture(scope="session")
def openvino():
    """OpenVINO, imported as the package does; tests are skipped without it."""
    from keras_vit.serving.openvino_engine import import_openvino

    try:
        return import_openvino()
    except ImportError:
        pytest.skip("needs OpenVINO")


@pytest.fixture(scope="session")
def tiny():
    """Makes a tiny ViT: tiny(pool="gap", ...), the same at each call; its head is random, so that outputs differ."""

    def make(variant="Ti/4", image_size=(8, 12), channels=3, classes=5, **kwargs):
        keras.utils.set_random_seed(0)
        size = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32, **kwargs}
        model = keras_vit.ViT(variant, image_size=image_size, channels=channels, classes=classes, **size)
        rng = np.random.default_rng(0)
        if classes is not None:
            head = model.get_layer("head")
            head.kernel.assign(rng.normal(size=head.kernel.shape))
        return model

    return make


@pytest.fixture
def pixels():
    """Random uint8 images (b, 8, 12, 3)."""
    return np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), dtype="uint8")


def defaults_of(binary):
    """{flag: default} of a module of trainers/, as its `run` defines them."""
    defaults = {}

    def defined(name, default=None, *_, **__):
        defaults[name] = default

    with pytest.MonkeyPatch.context() as patch:
        for kind in ("string", "path", "integer", "number", "boolean", "enum"):
            patch.setattr(flags, kind, defined)
        patch.setattr(flags, "strings", lambda name, help_text: defined(name, []))
        patch.setattr(flags.flags, "register_multi_flags_validator", lambda *_: None)
        patch.setattr(flags, "only_with", lambda *_: None)
        patch.setattr(flags, "launch", lambda *_, **__: None)
        binary.run()
    return defaults


@pytest.fixture
def binary(monkeypatch, capsys):
    """binary(module, words..., flag=value...): runs a binary of trainers/ in this process, the other flags at their
    defaults; returns what it prints.
    """

    def ran(module, *words, **given):
        defaults = defaults_of(module)
        assert given.keys() <= {*defaults, "config"}, given
        monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**{**defaults, **given}))
        module.main(*[list(map(str, words))] * len(inspect.signature(module.main).parameters))
        return capsys.readouterr().out

    return ran
