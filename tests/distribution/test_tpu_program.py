"""TPUStrategy's program for a step: what it contains, that it compiles for a TPU, and that four replicas of it do one
device's step.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from benchmarks import tpu_program
from benchmarks.strategies import limit
from benchmarks.tpu_program import REPLICAS, lower
from keras_vit.fit.stepping.feeding import Topology, check_scope, feed, find_topology
from keras_vit.training import Accuracy, AdamW, Mixup, SoftmaxCrossEntropy

# These tests start no processes, but compile whole programs, which takes as long.
pytestmark = pytest.mark.release("fit", "layers", "models", "optim", "distribution", "benchmarks/tpu_program.py")

BATCH = 8  # per replica
IMAGES = tf.TensorSpec((BATCH, 8, 12, 3), "uint8")
LABELS = tf.TensorSpec((BATCH,), "int32")
WEIGHTS = tf.TensorSpec((BATCH,), "float32")
# Custom calls that the TPU compiler inserts itself.
INTERNAL = {"AllocateBuffer", "AssumeGatherIndicesInBound", "X64Combine", "X64SplitHigh", "X64SplitLow"}


def compiled(mixing=Mixup(0.2, 5), **kwargs):  # noqa: B008
    """A tiny ViT with everything that a step can do, except as the arguments say."""
    keras.utils.set_random_seed(0)
    options = {"dropout": 0.1, "drop_path": 0.1, **kwargs}
    model = keras_vit.ViT("Ti/4", image_size=(8, 12), depth=1, width=16, heads=2, mlp_dim=32, classes=5, **options)
    head = model.get_layer("head").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape))  # zero otherwise
    # A large epsilon: otherwise Adam takes a whole step where rounding decides the sign of a gradient.
    optimizer = AdamW(1e-2, epsilon=1e-3, decay=0.1, global_clipnorm=1.0, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, SoftmaxCrossEntropy(), metrics=[Accuracy()], weighted_metrics=[Accuracy(name="weighted")])
    model.micro_batches = 2
    model.mixing = mixing
    optimizer.build(model.trainable_variables)
    model._count_examples()
    model._symbolic_build(data_batch=(tf.zeros(IMAGES.shape), tf.zeros(BATCH, "int32"), tf.zeros(BATCH)))
    return model


def made(**kwargs):
    """(the strategy, a model compiled in its scope)."""
    strategy = tpu_program.tpu_strategy()
    with strategy.scope():
        return strategy, compiled(**kwargs)


@pytest.fixture(scope="module")
def replicated():
    """(the strategy, its model) for tests that lower nothing."""
    return made()


@pytest.fixture(scope="module")
def steps():
    """The programs of a training and of an evaluation step in bfloat16, and the model in its strategy."""
    strategy, model = made(dtype="mixed_bfloat16")
    programs = {"train": lower(strategy, model.train_step, IMAGES, LABELS)}
    programs["test"] = lower(strategy, model.test_step, IMAGES, LABELS, WEIGHTS)
    return programs, model


def ops(text):
    """The names of the ops of a StableHLO module, with repetitions."""
    return re.findall(r'^ *(?:%.*? = )?"?([a-z]+\.[\w-]+)', text, re.MULTILINE)


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_step_is_static_and_does_not_involve_the_host(steps, name):
    text = steps[0][name].text
    names = set(ops(text))
    assert {op for op in names if not op.startswith("stablehlo.")} == {"func.func"}  # nothing that XLA does not know
    assert not re.search("infeed|outfeed|send|recv|custom_call|callback|host", text, re.IGNORECASE)
    assert not re.search(r"tensor<[^>]*[?*]|bounds|dynamic_shape|dimension_size", text)
    assert not {
        op
        for op in names
        if "dynamic" in op and op not in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")
    }
    assert "tensor<8x8x12x3xui8>" in text.split("->")[0]  # the images are transferred as bytes


def test_replicas_meet_once_for_the_gradients_and_once_for_the_count_of_steps(steps):
    programs, model = steps
    names = ops(programs["train"].text)
    # Twice that with a sum after clipping.
    assert names.count("stablehlo.cross-replica-sum") == len(model.trainable_variables)
    assert names.count("stablehlo.all_to_all") == 1  # TPUStrategy's broadcast of what only the first replica may write
    assert names.count("stablehlo.while") == 1  # over the micro-batches
    groups = set(re.findall(r"replica_groups = dense<(.*?)>", programs["train"].text))
    assert groups == {"[[0, 1, 2, 3]]"}
    # The counts of an evaluation step are summed when they are read, outside.
    assert not re.search("replica_groups|cross-replica|all_", programs["test"].text)


def test_a_step_returns_the_state_that_it_changes(steps):
    programs, model = steps
    program = programs["train"]
    changing = [v for v in model.optimizer.variables if v is not model.optimizer._learning_rate]
    changing += [*model.trainable_variables, *model.metrics_variables]
    seeds = program.places(v for v in model.non_trainable_variables if "seed" in v.path)
    assert len(program.places(changing)) == len(changing) and len(seeds) == 2  # before the block, and in it
    assert sorted(program.updated) == sorted(program.places(changing) + seeds)
    assert sorted(programs["test"].updated) == sorted(programs["test"].places(model.metrics_variables))


def test_tensorflow_for_tpus_lowers_with_the_kernels_of_tpus(steps):
    if not tpu_program.has_tpu_kernels():
        pytest.skip("needs tensorflow-tpu: make test-tpu-program")
    algorithms = set(re.findall(r"rng_bit_generator.*algorithm = +(\w+)", steps[0]["train"].text))
    assert algorithms == {"DEFAULT"}  # the chip's own; kernels for CPUs use Philox or ThreeFry


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_step_compiles_for_a_tpu(steps, name):
    pytest.importorskip("libtpu")
    programs, model = steps
    executable = tpu_program.compile_for("v5e:2x2", programs[name])
    hlo = executable.hlo_modules()[0].to_string()
    assert not re.search(r"\b(infeed|outfeed|send|recv|send-done|recv-done)\(|\[<=|dynamic-dimension", hlo)
    assert set(re.findall(r'custom_call_target="(.*?)"', hlo)) <= INTERNAL
    # The sums of all gradients travel together.
    assert len(re.findall(r" all-reduce(?:-start)?\(", hlo)) == (name == "train")
    cost, memory = executable.cost_analysis(), executable.get_compiled_memory_stats()
    cost = cost[0] if isinstance(cost, list) else cost
    print(f"\n{name}: {cost['flops'] / 1e6:.2f} MFLOP, {cost['bytes accessed'] / 2**20:.2f} MiB accessed, {memory}")
    # Two per weight of a product and token; the backward pass twice that. Training counts the loop over micro-batches
    # once.
    products = [v for v in model.trainable_variables if v.path.endswith("kernel") and "head" not in v.path]
    tokens = BATCH * 7 if name == "test" else BATCH // 2 * 7
    least = 2 * tokens * sum(np.prod(v.shape) for v in products) * (1 if name == "test" else 3)
    assert 0.8 * least < cost["flops"] < 5 * least
    assert memory.host_temp_size_in_bytes == memory.host_argument_size_in_bytes == 0
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 4096  # what is updated, is updated in place
    assert memory.temp_size_in_bytes < 16 * 2**20


def test_metrics_are_summed_over_replicas_where_they_are_read(replicated):
    strategy, model = replicated
    tracker = model._loss_tracker
    for i in range(REPLICAS):
        tracker.total.value.values[i].assign(8.0 * (i + 1))
        tracker.count.value.values[i].assign(8.0)
    with strategy.scope():
        result = tf.function(model.get_metrics_result, autograph=False)()
    assert float(result["loss"]) == 2.5


def data(seed=0):
    """(images, labels, weights) of all replicas, (REPLICAS, BATCH, ...)."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (REPLICAS, *IMAGES.shape), dtype="uint8")
    weights = np.ones((REPLICAS, BATCH), "float32")
    weights[-1, 3:] = 0  # the last batch of an evaluation is padded
    return images, rng.integers(0, 5, (REPLICAS, BATCH)).astype("int32"), weights


def test_masks_differ_between_replicas(steps):
    """All replicas see the same batch: their metrics differ by their masks alone, and their weights do not differ."""
    pytest.importorskip("jax")
    program, model = steps[0]["train"], steps[1]
    run = tpu_program.on_cpus(program)
    same = [np.repeat(part[:1], REPLICAS, axis=0) for part in data()[:2]]
    numbered, unnumbered = run(range(REPLICAS), *same), run([0] * REPLICAS, *same)
    [loss] = program.places([model._loss_tracker.total])
    assert len(set(numbered[loss].tolist())) == REPLICAS and len(set(unnumbered[loss].tolist())) == 1
    assert numbered[loss][0] == unnumbered[loss][0]
    metrics = program.places(model.metrics_variables)
    for i, values in enumerate(numbered):
        assert i in metrics or all(np.array_equal(values[0], v) for v in values[1:])  # seeds included


def compare(program, after, mine, theirs, **tolerance):
    """Compares the values after a program with the variables of the model on one device."""
    places = program.places(mine)
    assert len(places) == len(mine) == len(theirs)
    for i, ours, expected in zip(places, mine, theirs):
        np.testing.assert_allclose(after[i], np.broadcast_to(expected, after[i].shape), err_msg=ours.path, **tolerance)


def compare_counts(program, after, model, one):
    """Compares the metrics, summed over replicas, with those of the model on one device."""
    sums = [values.sum(axis=0, keepdims=True) for values in after]
    compare(program, sums, model.metrics_variables, one.metrics_variables, rtol=1e-5)


def state(model):
    """The variables that training changes."""
    return [v for v in model.optimizer.variables if v is not model.optimizer._learning_rate] + model.trainable_variables


def test_the_replicas_together_do_one_devices_step():
    """Against the same step on the whole batch at once; in float32 and without random numbers, which differ between
    kernels.
    """
    pytest.importorskip("jax")
    certain = {"dropout": 0.0, "drop_path": 0.0, "mixing": None}
    (strategy, model), one, other = made(**certain), compiled(**certain), compiled(**certain)
    images, labels, weights = data()
    whole = [tf.constant(part.reshape(-1, *part.shape[2:])) for part in (images, labels, weights)]
    program = lower(strategy, model.test_step, IMAGES, LABELS, WEIGHTS)
    after = tpu_program.on_cpus(program)(range(REPLICAS), images, labels, weights)
    one.test_step(whole)
    compare_counts(program, after, model, one)

    one.reset_metrics()
    program = lower(strategy, model.train_step, IMAGES, LABELS)
    after = tpu_program.on_cpus(program)(range(REPLICAS), images, labels)
    one.train_step(whole[:2])
    compare_counts(program, after, model, one)
    other.train_step([part[::-1] for part in whole[:2]])  # what another order of summation does
    rounding = max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b in zip(state(one), state(other)))
    compare(program, after, state(model), state(one), atol=limit(rounding, 2e-6))


def test_the_input_of_a_tpu_has_fixed_shapes(replicated):
    """Arrays to evaluate are padded with weight 0; ragged datasets, uneven batches and training on part of a batch are
    refused.
    """
    _, model = replicated
    x, y = np.zeros((20, 8, 12, 3), "uint8"), np.zeros(20, "int32")
    model.compile(model.optimizer, SoftmaxCrossEntropy(), weighted_metrics=[Accuracy()])
    assert find_topology(model) == Topology(replicas=REPLICAS, workers=1, local=REPLICAS, full=True)
    ready = feed(model, x, y, batch_size=8)
    assert len(ready.x) == len(ready.y) == 24 and ready.weights.tolist() == [1.0] * 20 + [0.0] * 4
    with pytest.raises(ValueError, match="full batches of 8, got 20 examples"):
        feed(model, x, y, batch_size=8, training=True)
    with pytest.raises(ValueError, match="cannot be shared evenly by 4 replicas: use a batch size of 4 or 8"):
        feed(model, x, y, batch_size=6)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    with pytest.raises(ValueError, match="A TPU needs batches of one fixed size"):
        feed(model, dataset.batch(8))
    assert feed(model, fixed := dataset.batch(8, drop_remainder=True)).x is fixed


def test_a_tpu_strategy_compiles_by_itself(replicated):
    _, model = replicated
    model.jit_compile = True
    check_scope(model)
    assert model.jit_compile is False
