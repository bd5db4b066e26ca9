"""Where a forward pass and a training step spend their time on a CPU, by kind of operation, by TensorFlow's profiler.

    python -m benchmarks.where --variant=B/16 --batch_size=8

One operation runs at a time, on all cores, so that the parts add up to the whole. Each part is the median over steps. A
bias and GELU fused into a product count as the product's.
"""

import collections
import glob
import re
import statistics
import tempfile

from trainers import flags

# A node's kind is the first row that matches its name with its operation,
# "vit/block_00/mlp/hidden/BiasAdd:_MklNativeFusedMatMul". Names of gradients begin with gradient_tape/. Attention's
# products, softmax and copies bear only the block's name.
KINDS = {
    "optimizer": r"(^|/)(adamw|momentum|muon|rectified_adam)(_\d+)?/",
    "products of attention": r":.*BatchMatMul",
    "products of dense layers and patches": r":.*(MatMul|Conv2D)",
    "layer normalisation": r"norm(_gradient)?(_\d+)?/",
    "GELU": r"(?i)gelu",
    "compiled by XLA: GELU and layer normalisation": r"CpuExecutable::",
    "softmax": r":.*Softmax|gradient_tape/[^/]+/block_\d+_?\d*/(mul|sub|Sum)(_\d+)?:",
    "gradients of biases": r"BiasAddGrad",
    "copies of heads": r":.*Transpose",
    "casts": r":.*Cast",
    "sums": r":(AddN|AddV2|Add|Sum|AssignAdd)$",
    "the rest": r"",
}
_AROUND = r"^(TFE_|Eager|KernelAndDevice|ExecutorState|__inference|on_|<lambda>|FunctionRun|ParallelFor|[A-Z]\w+$)"


def kind_of(name: str) -> str:
    """A node's kind: a key of KINDS."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, name))


def shares(seconds: list[dict[str, float]]) -> dict[str, float]:
    """{kind: its share of a step}, largest first, from {node: seconds} of several steps."""
    by_kind = collections.defaultdict(list)
    for step in seconds:
        sums = collections.Counter({kind: 0.0 for kind in KINDS})
        for name, taken in step.items():
            sums[kind_of(name)] += taken
        for kind, taken in sums.items():
            by_kind[kind].append(taken)
    medians = {kind: statistics.median(taken) for kind, taken in by_kind.items()}
    whole = sum(medians.values())
    return {kind: taken / whole for kind, taken in sorted(medians.items(), key=lambda row: -row[1]) if taken > 0}


def traced(function) -> dict[str, float]:
    """{node with its operation: seconds} of one call."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        with tf.profiler.experimental.Profile(folder, options):
            function()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        with open(path, "rb") as file:
            space = xplane_pb2.XSpace.FromString(file.read())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if ":" in name and not re.search(_AROUND, name):
                    found[name] += 1e-12 * event.duration_ps
    return dict(found)


def main():
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    from benchmarks.model import best_product, compiled_model, model_steps
    from keras_vit.models import make_spec
    from keras_vit.planning.model_counts import forward_flops

    values = flags.FLAGS
    spec = make_spec(values.variant)
    found, speeds = {}, {}
    for dtype in values.dtypes.split(","):
        limit = best_product("bfloat16" if "bfloat16" in dtype else "float32")
        steps = dict(
            zip(("forward", "training"), model_steps(compiled_model(spec, values.image_size, dtype), values.batch_size))
        )
        for (name, step), passes in zip(steps.items(), (1, 3)):
            step(), step()
            nodes = [traced(step) for _ in range(values.repeats)]
            found[f"{dtype}, {name}"] = shares(nodes)
            seconds = statistics.median(sum(each.values()) for each in nodes)
            rate = passes * values.batch_size * forward_flops(spec, values.image_size) / seconds
            speeds[f"{dtype}, {name}"] = f"{1e3 * seconds:.0f} ms, {rate / limit():.2f}"
    print(f"{values.variant}, batch {values.batch_size}, {values.image_size} px: percent of the time of a step\n")
    print(markdown(found, speeds))


def markdown(found: dict[str, dict[str, float]], speeds: dict[str, str]) -> str:
    """A table, one row per kind and one column per entry of `found`, {column: shares}; `speeds` is the first row."""
    kinds = sorted(KINDS, key=lambda kind: -sum(column.get(kind, 0) for column in found.values()))
    rows = [["", *found], ["-"] * (len(found) + 1), ["whole, of the products' rate", *speeds.values()]]
    rows += [[kind, *(f"{100 * column.get(kind, 0):.1f}" for column in found.values())] for kind in kinds]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def run():
    flags.string("variant", "B/16", "Size and patch size.")
    flags.integer("image_size", 224, "Pixels.", lowest=1)
    flags.integer("batch_size", 8, "Images a step.", lowest=1)
    flags.string("dtypes", "float32,mixed_bfloat16", "Keras dtype policies, joined by commas.")
    flags.integer("repeats", 5, "Steps; medians are reported.", lowest=1)
    flags.launch(main)


if __name__ == "__main__":
    run()
