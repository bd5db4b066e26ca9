"""The JAX backend: fit, evaluate and resume as on TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np

import keras_vit
from keras_vit.data import evaluation_batches, from_arrays
from keras_vit.training import Accuracy, AdamW, SoftmaxCrossEntropy

ROOT = pathlib.Path(__file__).resolve().parents[2]
JAX = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}


def train_and_evaluate(path):
    """Four steps from a saved model; returns its weights and measures. Runs on either backend."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (10, 8, 12, 3), dtype="uint8"), np.arange(10) % 5
    model = keras_vit.load(path)
    model.compile(AdamW(1e-3, epsilon=1e-3, decay=0.1, global_clipnorm=1.0), SoftmaxCrossEntropy(), weighted_metrics=[Accuracy()])
    model.fit(x, y, batch_size=5, epochs=2, shuffle=False, verbose=0)
    measures = model.evaluate(evaluation_batches(from_arrays(x, y), "decode", 4), verbose=0, return_dict=True)
    return [np.asarray(w) for w in model.get_weights()], measures


def test_fit_and_evaluate_give_tensorflows_numbers(tiny, tmp_path):
    tiny().save(tmp_path / "m.keras")
    script = (
        f"import sys, json, numpy as np; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        "from test_jax import train_and_evaluate, keras\n"
        "assert keras.backend.backend() == 'jax'\n"
        "weights, measures = train_and_evaluate(sys.argv[1] + '/m.keras')\n"
        "np.savez(sys.argv[1] + '/w.npz', *weights)\n"
        "print(json.dumps({k: float(v) for k, v in measures.items()}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False, env=JAX)
    assert done.returncode == 0, done.stderr[-2000:]
    weights, measures = train_and_evaluate(tmp_path / "m.keras")
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs.keys() == measures.keys()
    for name, value in measures.items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-4)
    for ours, stored in zip(weights, np.load(tmp_path / "w.npz").values()):
        np.testing.assert_allclose(stored, ours, atol=1e-5)


def test_a_run_with_everything_on_resumes_on_jax(tmp_path):
    """Six steps at once, and three then three: the same weights, bit for bit, dropout, mixup and averages included."""
    script = (
        "import sys, numpy as np\n"
        "from trainers import flags, pretrain, session\n"
        "def go(total, workdir):\n"
        "    config = flags.load_config('digits_pretrain')\n"
        "    config.model.update(depth=1, width=16, heads=2, mlp_dim=16, dropout=0.1, drop_path=0.1, remat=True)\n"
        "    config.data.update(train='train[:100]', evaluation='test[:20]')\n"
        "    config.update(total='6 steps', evaluate='3 steps', checkpoint='3 steps', batch_size=8)\n"
        "    config.schedule.warmup = '2 steps'\n"
        "    config.optimizer.ema = 0.9\n"
        "    if total == 3:\n"
        "        from keras_vit.training import loop\n"
        "        original = session.train\n"
        "        session.train = lambda *a, **k: original(*a, **{**k, 'total': 3})\n"
        "    model, _ = session.run(config, workdir, pretrain.build)\n"
        "    if total == 3:\n"
        "        session.train = original\n"
        "    return model\n"
        "a = go(6, sys.argv[1] + '/whole').get_weights()\n"
        "go(3, sys.argv[1] + '/parts')\n"
        "b = go(6, sys.argv[1] + '/parts').get_weights()\n"
        "assert all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(a, b))\n"
        "print('equal')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, env=JAX
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "equal"


def test_this_process_is_on_tensorflow():
    assert keras.backend.backend() == "tensorflow"
