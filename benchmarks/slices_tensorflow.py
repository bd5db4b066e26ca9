"""A ViT-B/16 training step as tf.distribute.TPUStrategy runs it per chip, compiled by libtpu, and its time by part.

    make .venv-tpu/installed
    .venv-tpu/bin/python -m benchmarks.slices_tensorflow
    .venv-tpu/bin/python -m benchmarks.slices_tensorflow --depth=3 --dropout=0

No TPU is used. The environment has TensorFlow with TPU op kernels, and jax, whose client compiles. The work is that of
`benchmarks.slices`: the step of `imagenet_pretrain:B/16`, in bfloat16. A program has four chips, v5e:2x2; a chip's work
does not depend on their number.
"""

import os
import re
import time

from trainers import flags

TOPOLOGY = "v5e:2x2"


def lowered_step(depth, dropout, per_chip):
    """The Program of one chip's step of `per_chip` images."""
    import tensorflow as tf

    from benchmarks import tpu_program
    from keras_vit.runs.optimizer import make_optimizer
    from keras_vit.runs.prepare import check, planned_data
    from trainers import config_files

    config = config_files.load_config("imagenet_pretrain:B/16")
    config.update(dtype="mixed_bfloat16", batch_size=per_chip * tpu_program.REPLICAS)
    with config.model.unlocked(), config.model.ignore_type():
        config.model.update(depth=depth, dropout=dropout)
    prepared = check(config).on(*planned_data(config.data, config_files.packaged("lib.datasets").DATASETS))
    strategy = tpu_program.tpu_strategy()
    with strategy.scope():
        model = prepared.task.model(prepared.train)
        prepared.compile(model, make_optimizer(prepared.resolved))
        model._count_examples()
        images, labels = tf.TensorSpec((per_chip, 224, 224, 3), "uint8"), tf.TensorSpec((per_chip,), "int32")
        model._symbolic_build(data_batch=(tf.zeros(images.shape), tf.zeros(labels.shape, labels.dtype)))
    return tpu_program.lower(strategy, model.train_step, images, labels, names=True)


def op_name(name):
    """TensorFlow's name of an op from jax's: "gradient_tape/vit_1/block_00_1/mlp_1/out_1/MatMul/MatMul".

    It identifies the parts of a step.
    """
    name = re.sub(r"(?<!block)_\d+(?=/|$)", "", name).lower().replace("/moments", "/norm/moments")
    return "step/" + name.replace("gradient_tape", "transpose(step)", 1)


class _Readable:
    """A client's executable with the methods of jax's compiled programs."""

    def __init__(self, executable):
        self._executable = executable

    def as_text(self):
        return re.sub(
            r'op_name="([^"]*)"',
            lambda found: f'op_name="{op_name(found[1])}"',
            self._executable.hlo_modules()[0].to_string(),
        )

    def memory_analysis(self):
        return self._executable.get_compiled_memory_stats()

    def cost_analysis(self):
        cost = self._executable.cost_analysis()
        return cost[0] if isinstance(cost, list) else cost


def measure(depth, dropout, per_chip):
    """The compiled step's analysis, planning.slice.plan.Compiled."""
    from benchmarks import tpu_program
    from keras_vit.io.progress import stage
    from keras_vit.planning.slice.plan import measured

    began = time.monotonic()
    with stage(f"Lowering a step of {per_chip} images a chip"):
        program = lowered_step(depth, dropout, per_chip)
    with stage(f"Compiling it for {TOPOLOGY}"):
        executable = tpu_program.compile_for(TOPOLOGY, program)
    return measured(_Readable(executable), "adamw", time.monotonic() - began)


def main():
    from benchmarks.slices import table
    from benchmarks.tpu_program import REPLICAS, has_tpu_kernels
    from keras_vit.io.progress import shown
    from keras_vit.planning.slice.chips import parse_slice
    from keras_vit.planning.slice.plan import Plan
    from keras_vit.planning.slice.plan_text import where as parts

    values, where = flags.FLAGS, parse_slice(TOPOLOGY)
    with shown():
        compiled = measure(values.depth, float(values.dropout), values.per_chip)
    plan = Plan(where, values.per_chip * REPLICAS, steps=0, examples=0, model_parallel=None, compiled=compiled)
    print(f"{table({'TPUStrategy': compiled}, where)}\n\n{parts(plan)}\n")
    kernels = "TPUs" if has_tpu_kernels() else "CPUs, for want of tensorflow-tpu"
    work = f"ViT-B/16 of {values.depth} blocks, {values.per_chip} images a chip, dropout {values.dropout}"
    print(f"{work}, lowered by the op kernels of {kernels}: predictions, no TPU was used.")


def run():
    os.environ["TPU_LIBRARY_PATH"] = "none"  # TensorFlow would load jax's libtpu, which is not built for it
    flags.integer("per_chip", 64, "Images of a chip.", lowest=1)
    flags.integer("depth", 12, "Number of blocks.", lowest=1)
    flags.enum("dropout", "0.1", ["0", "0.1"], "Rate of dropout.")
    flags.launch(main)


if __name__ == "__main__":
    run()
