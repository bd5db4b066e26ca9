"""Training on a CPU repeats to the bit: no sum of gradients is left to the order in which threads come to it."""

import os
import subprocess
import sys

import pytest

# argv: whether the order is fixed. Prints how many additions in place the optimized graph of a step of ViT-Ti/16 at 96 px holds.
SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
import keras_vit
from keras_vit.training.determinism import fix_order_of_sums
from tensorflow.python.eager import context
if sys.argv[1] == "fixed":
    fix_order_of_sums()
model = keras_vit.ViT("Ti/16", image_size=96, classes=10)
x, y = tf.zeros((64, 96, 96, 3), "uint8"), tf.zeros((64,), "int32")
@tf.function
def gradients(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
    return tape.gradient(loss, [v.value for v in model.trainable_variables])
context.context().enable_graph_collection()
gradients(x, y)
graphs = [g.post_optimization_graph for g in context.context().export_run_metadata().function_graphs]
print(sum(node.op == "AssignAdd" for graph in graphs for node in graph.node))
"""


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_no_gradients_are_added_in_place(order):
    """With `free` it shows that TensorFlow would: the graph holds the additions that make training vary."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, order], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    additions = int(done.stdout.splitlines()[-1])
    assert additions == 0 if order == "fixed" else additions > 0
