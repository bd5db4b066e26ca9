"""Memory of the contrastive losses on JAX, sharded over devices, as XLA plans it."""

import keras
import numpy as np

from keras_vit.training import SigmoidContrastive, SoftmaxContrastive


def contrastive_memory():
    """[(MiB that a step needs, beyond its arguments, on one device, on each of four)], one per loss."""
    return [memory_of_step(loss()) for loss in (SigmoidContrastive, SoftmaxContrastive)]


def memory_of_step(loss):
    import jax

    from keras_vit.layers.similarity import Similarity

    layer, used = Similarity(), []
    layer.build((None, 8), (None, 8))

    def value(weights, *embeddings):
        logits, _ = layer.stateless_call(weights, [], *embeddings, everywhere=True)
        return keras.ops.mean(loss.call(None, logits))

    for devices in (1, 4):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), "batch")
        whole, rows = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("batch",)))
        weights = [jax.ShapeDtypeStruct((), "float32", sharding=whole)] * 2
        embeddings = [jax.ShapeDtypeStruct((1024, 8), "float32", sharding=rows)] * 2
        step = jax.jit(jax.value_and_grad(value, (0, 1, 2)), out_shardings=(whole, ([whole] * 2, rows, rows)))
        plan = step.lower(weights, *embeddings).compile().memory_analysis()
        used.append(plan.temp_size_in_bytes / 2**20)
    return used
