"""A ViT-B/16 training step for a TPU slice, ours against big_vision's and KerasHub's, all compiled by libtpu.

    python -m benchmarks.slices --topology=v5e:4x4 --batch_size=1024 --big_vision=CHECKOUT
    python -m benchmarks.slices --depth=3 --dropout=0

No TPU is used. Needs the extra [plan]; big_vision needs a checkout of its repository and flax, optax, einops; KerasHub
needs keras-hub: use a disposable environment. Missing ones are listed. Each runs its own code on the same work: 224 px,
bfloat16 products, AdamW, gradients clipped at 1, the same dropout, the pre-logits layer, 1,000 classes. About three
minutes each on two cores.
"""

import os
import sys
import time

from trainers import flags

WIDTH, HEADS, MLP, CLASSES, PIXELS = 768, 12, 3072, 1000, 224


def _options(values):
    return {"depth": values.depth, "dropout": float(values.dropout), "batch_size": values.batch_size}


def lower_keras_vit(where, depth, dropout, batch_size):
    """The step of `imagenet_pretrain:B/16`, as `keras-vit plan` compiles it."""
    from keras_vit.planning.slice.program import lowered_step
    from keras_vit.runs.prepare import check, planned_data
    from trainers import config_files

    config = config_files.load_config("imagenet_pretrain:B/16")
    config.update(dtype="mixed_bfloat16", batch_size=batch_size)
    with config.model.unlocked(), config.model.ignore_type():
        config.model.update(depth=depth, dropout=dropout)
    data = planned_data(config.data, config_files.packaged("lib.datasets").DATASETS)
    return lowered_step(check(config).on(*data), where)


def lower_keras_hub(where, depth, dropout, batch_size):
    """The step of KerasHub's ViT classifier with Keras' train_step, data-parallel."""
    import keras
    import keras_hub
    import numpy as np

    from keras_vit.planning.slice.program import devices_of

    mesh = keras.distribution.DeviceMesh((where.chips,), ["batch"], np.array(devices_of(where.name)))
    parallel = keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False)
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.1, global_clipnorm=1.0)
    sizes = {"patch_size": 16, "num_layers": depth, "num_heads": HEADS, "hidden_dim": WIDTH, "mlp_dim": MLP}
    options = {"dropout_rate": dropout, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-6, "dtype": "mixed_bfloat16"}
    backbone = keras_hub.models.ViTBackbone((PIXELS, PIXELS, 3), **sizes, **options)
    model = keras_hub.models.ViTImageClassifier(
        backbone, CLASSES, pooling="token", intermediate_dim=WIDTH, preprocessor=None
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=True)
    shapes = ((batch_size, PIXELS, PIXELS, 3), "float32"), ((batch_size,), "int32")
    model._symbolic_build(data_batch=tuple(keras.KerasTensor(*shape) for shape in shapes))
    keras.distribution.set_distribution(parallel)  # for tracing: its variables are on this machine
    try:
        return _lowered_by_keras(model, shapes, mesh.backend_mesh)
    finally:
        keras.distribution.set_distribution(None)


def _lowered_by_keras(model, shapes, mesh):
    """A built model's train_step, the batch split over a device mesh."""
    import jax

    whole, rows = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("batch",)))
    groups = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=whole) for v in group] for group in groups)
    batch = tuple(jax.ShapeDtypeStruct(*shape, sharding=rows) for shape in shapes)
    results = (None, tuple([whole] * len(group) for group in state))
    return jax.jit(model.train_step, donate_argnums=0, out_shardings=results).lower(state, batch)


def lower_big_vision(where, depth, dropout, batch_size):
    """The step of big_vision's model under optax, as in its train.py, data-parallel."""
    import jax
    import numpy as np
    import optax
    from big_vision.models import vit

    from keras_vit.planning.slice.program import devices_of

    mesh = jax.sharding.Mesh(np.array(devices_of(where.name)), ("data",))
    whole, rows = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in ((), ("data",)))
    sizes = {"variant": "B/16", "depth": depth, "dropout": dropout, "pool_type": "tok", "rep_size": True}
    model = vit.Model(CLASSES, **sizes, dtype_mm="bfloat16")
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1))

    def update(params, state, key, images, labels):
        def loss(params):
            logits, _ = model.apply({"params": params}, images, train=True, rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def spec(sharding):
        return lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    images = jax.ShapeDtypeStruct((batch_size, PIXELS, PIXELS, 3), "float32", sharding=rows)
    labels = jax.ShapeDtypeStruct((batch_size,), "int32", sharding=rows)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    params = jax.eval_shape(lambda key: model.init(key, np.zeros((1, PIXELS, PIXELS, 3), "float32"))["params"], key)
    state = jax.eval_shape(optimizer.init, params)
    params, state, key = jax.tree.map(spec(whole), (params, state, key))
    return jax.jit(update, donate_argnums=(0, 1)).lower(params, state, key, images, labels)


LOWER = {"keras_vit": lower_keras_vit, "big_vision": lower_big_vision, "keras_hub": lower_keras_hub}


def measure(lower, where, options):
    """The compiled step's analysis, planning.slice.plan.Compiled."""
    from keras_vit.planning.slice.plan import measured

    began = time.monotonic()
    return measured(lower(where, **options).compile(), "adamw", time.monotonic() - began)


def table(found, where):
    """A Markdown table of {name: Compiled}, with ratios to big_vision, or to the first without it."""
    base = found.get("big_vision") or next(iter(found.values()))
    head = (
        "| | ms a step, estimated | HBM GB | temporaries GiB | TFLOP | time, HBM, temporaries, FLOPs against the base |"
    )
    lines = [head, "|-" * 6 + "|"]
    for name, c in found.items():
        ratios = (c.cycles / base.cycles, c.hbm / base.hbm, c.temporaries / base.temporaries, c.flops / base.flops)
        cells = (
            f"{1e3 * c.cycles / where.chip.clock:.1f}",
            f"{c.hbm / 1e9:.2f}",
            f"{c.temporaries / 2**30:.2f}",
            f"{c.flops / 1e12:.2f}",
        )
        lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return "\n".join(lines)


def main():
    from keras_vit.io.progress import shown, stage
    from keras_vit.planning.slice.chips import parse_slice
    from keras_vit.planning.slice.program import check_backend

    values = flags.FLAGS
    check_backend()
    where, found = parse_slice(values.topology), {}
    if values.big_vision:
        sys.path.insert(0, values.big_vision)
    with shown():
        for name, lower in LOWER.items():
            try:
                with stage(f"Compiling the step of {name} for {where.name}"):
                    found[name] = measure(lower, where, _options(values))
                print(f"{table(found, where)}\n", flush=True)
            except ImportError as error:
                print(f"{name}: not measured, {error}")
    work = f"ViT-B/16 of {values.depth} blocks, {values.batch_size:,} images on {where.name}, dropout {values.dropout}"
    print(f"{work}: predictions, no TPU was used.")


def run():
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags.string("topology", "v5e:4x4", "The slice.")
    flags.string("big_vision", None, "A checkout of big_vision.")
    flags.integer("batch_size", 1024, "Images of all chips.", lowest=1)
    flags.integer("depth", 12, "Number of blocks.", lowest=1)
    flags.enum("dropout", "0.1", ["0", "0.1"], "Rate of dropout.")
    flags.launch(main)


if __name__ == "__main__":
    run()
