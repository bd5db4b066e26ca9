"""Training on a CPU is reproducible bit for bit: no sum of gradients depends on the order in which threads finish."""

import pytest
from interpreters import Interpreter

pytestmark = pytest.mark.processes


def additions_in_place(compiled):
    """The number of in-place additions in the optimized graph of a step of ViT-Ti/16 at 96 px, with parts compiled by
    XLA or not, as on machines with a GPU; a smaller model has none.
    """
    import tensorflow as tf
    from quick_tensorflow import without_optimizing
    from tensorflow.python.eager import context

    import keras_vit
    from keras_vit.layers import backend, normalization

    backend.compiles_parts = normalization.compiles_parts = lambda: compiled
    without_optimizing(False)
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
    context.context().disable_graph_collection()
    return sum(node.op == "AssignAdd" for graph in graphs for node in graph.node)


def fix():
    from keras_vit.runs.loop.train import fix_order_of_sums

    fix_order_of_sums()


def test_no_gradients_are_added_in_place():
    """Without the fix they are: the graph has the additions that make training vary."""
    with Interpreter() as interpreter:
        assert interpreter.run(additions_in_place, False) > 0
        interpreter.run(fix)
        assert [interpreter.run(additions_in_place, compiled) for compiled in (False, True)] == [0, 0]
