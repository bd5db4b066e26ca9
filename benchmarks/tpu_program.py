"""A replica's program under tf.distribute.TPUStrategy without a TPU: lowered, compiled, and run on CPU devices.

    strategy = tpu_strategy()
    with strategy.scope(): model = ...
    program = lower(strategy, model.train_step, images, labels)  # TensorSpecs of one replica's batch

The strategy is TensorFlow's own, as are its variables, its sums over replicas and the replica's number, an argument of
the program; only the variables' placement and the start of replicas are replaced. TensorFlow's MLIR bridge to XLA
lowers it, with TPU op kernels if tensorflow-tpu is installed, otherwise those of CPUs. jax, imported only for that,
compiles the result.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import re

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import tpu_strategy as tf_tpu_strategy
from tensorflow.python.tpu import tpu_function, tpu_replication, tpu_system_metadata

REPLICAS = 4
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_TYPES = {"float32": "f32", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "ui8", "bool": "i1"}


def has_tpu_kernels():
    """Whether this TensorFlow lowers with TPU op kernels."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("tensorflow-tpu"))
    return False


class _Machine:
    """TPUStrategy's resolver: one host with `REPLICAS` chips."""

    def get_tpu_system_metadata(self):
        devices = tuple(tf.config.LogicalDevice(_CPU.replace("CPU:0", f"TPU:{i}"), "TPU") for i in range(REPLICAS))
        return tpu_system_metadata.TPUSystemMetadata(REPLICAS, 1, REPLICAS, None, devices)


class _Replica(tpu_replication.TPUReplicateContext):
    """One replica's context in TPUStrategy.run, without the op attributes that a later graph rewrite would read."""

    def __init__(self):
        super().__init__("replica", REPLICAS, None)

    def get_replicated_var_handle(self, name, handle_id, vars_, is_mirrored=False, is_packed=False):
        return vars_[0].handle

    def AddOp(self, op):
        pass

    def AddInnerOp(self, op):
        pass

    def AddValue(self, val):
        return val

    def EnterGradientColocation(self, op, gradient_uid):
        pass

    def ExitGradientColocation(self, op, gradient_uid):
        pass


def tpu_strategy():
    """A tf.distribute.TPUStrategy of `REPLICAS` replicas whose variables are on the CPU."""
    strategy = tf.distribute.TPUStrategy(_Machine())
    strategy._enable_packed_variable_in_eager_mode = False
    strategy.extended._tpu_devices[:] = _CPU
    strategy.extended._host_device = _CPU
    return strategy


@dataclasses.dataclass(frozen=True)
class Program:
    """One replica's program.

    Attributes:
        text: StableHLO. Arguments: replica number, batch, values of `handles`; results: new values.
        handles: of the variables.
        updated: for each result, the index in `handles` of the variable that it updates.
    """

    text: str
    handles: tuple
    updated: tuple

    def values(self):
        """The variables' current values."""
        types = [tf.as_dtype(h._handle_data.shape_and_type[0].dtype) for h in self.handles]
        return [tf.raw_ops.ReadVariableOp(resource=h, dtype=t).numpy() for h, t in zip(self.handles, types)]

    def places(self, variables):
        """Indices of Keras variables in `handles`, without those that the program does not use."""
        numbers = {id(handle): i for i, handle in enumerate(self.handles)}
        handles = [id(v.value.values[0].handle) for v in variables]
        return [numbers[handle] for handle in handles if handle in numbers]


def lower(strategy, step, *batch, names=False):
    """The Program of `step`, (batch,) -> anything, in a replica; `batch` are tf.TensorSpecs. `names` keeps op names."""

    def program(replica, *batch):
        context = _Replica()
        context.Enter()
        try:
            with tpu_function.tpu_shard_context(REPLICAS), tf_tpu_strategy._TPUReplicaContext(strategy, replica):
                step(batch)
        finally:
            context.Exit()

    function = tf.function(program, autograph=False).get_concrete_function(tf.TensorSpec((), "int32"), *batch)
    module = tf.mlir.experimental.convert_function(
        function, pass_pipeline="tf-standard-pipeline", show_debug_info=names
    )
    text = tf.mlir.experimental.run_pass_pipeline(
        _with_main(module, function), ",".join(_passes()), show_debug_info=names
    )
    text = re.sub(r"attributes \{tf\.versions.*\}\} \{", "{", text)  # of the module; unknown to jax
    arguments = re.findall(r"%arg(\d+): tensor<[^>]*>( \{tf\.aliasing_output = (\d+))?", text.split("->", 1)[0])
    results = {int(result): int(i) - 1 - len(batch) for i, updated, result in arguments if updated}
    return Program(text, tuple(function.captured_inputs), tuple(results[i] for i in range(len(results))))


def _passes():
    """From TensorFlow's functions over variables to StableHLO over values."""
    tpu = has_tpu_kernels()
    kernels = f"device-type=XLA_{'TPU' if tpu else 'CPU'}_JIT prefer-tf2xla={str(tpu).lower()}"
    yield from (
        "inline",
        "tf-shape-inference",
        "tf-functional-control-flow-to-regions",
        "inline",
        "symbol-dce",
        "canonicalize",
    )
    yield from ("func.func(tf-drop-while-shape-invariant)", "func.func(tf-device-decompose-resource-ops)")
    yield from ("tf-promote-resources-to-args", "symbol-dce", "tf-shape-inference", "canonicalize")
    yield from (
        f"xla-legalize-tf{{{kernels} use-tf2xla-fallback=true legalize-chlo=true}}",
        "canonicalize",
        "hlo-legalize-to-stablehlo",
    )


def _with_main(module, function):
    """The module plus a `main` that calls its first function, with the variables' shapes and types."""
    name = re.search(r"func\.func @(\w+)", module).group(1)
    outer_types, inner_types, casts, values = [], [], [], []
    captured = {id(inner): outer for outer, inner in function.graph.captures}
    for i, tensor in enumerate(function.inputs):
        if tensor.dtype == tf.resource:
            variable = captured[id(tensor)]._handle_data.shape_and_type[0]
            outer_types.append(
                f"tensor<!tf_type.resource<{_type(tf.as_dtype(variable.dtype), [d.size for d in variable.shape.dim])}>>"
            )
            inner_types.append("tensor<*x!tf_type.resource>")
            casts.append(f'%cast{i} = "tf.Cast"(%arg{i}) : ({outer_types[-1]}) -> {inner_types[-1]}\n')
            values.append(f"%cast{i}")
        else:
            outer_types.append(_type(tensor.dtype, tensor.shape))
            inner_types.append(outer_types[-1])
            values.append(f"%arg{i}")
    head = ", ".join(f"%arg{i}: {t}" for i, t in enumerate(outer_types))
    call = f"func.call @{name}({', '.join(values)}) : ({', '.join(inner_types)}) -> ()\n"
    main = f"func.func @main({head}) {{\n{''.join(casts)}{call}return\n}}\n"
    return module.replace(f"func.func @{name}", f"{main}func.func private @{name}", 1)


def _type(dtype, shape):
    """A tensor's type in MLIR."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{_TYPES[dtype.name]}>"


def _compile(text, client, devices, loaded):
    """`text` compiled by one of jax's clients, one replica per device."""
    from jax._src.interpreters import mlir
    from jaxlib import _jax, xla_client
    from jaxlib.mlir import ir

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = len(devices), 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(len(devices))[:, None])
    if loaded:  # to run once or twice: optimizing would take longer
        debug = options.executable_build_options.debug_options
        debug.xla_backend_optimization_level, debug.xla_llvm_disable_expensive_passes = 0, True
    with mlir.make_ir_context():
        return (client.compile_and_load if loaded else client.compile)(
            ir.Module.parse(text), _jax.DeviceList(tuple(devices)), options
        )


def compile_for(topology, program):
    """`program` compiled for a TPU topology ("v5e:2x2"), a replica per chip: has cost_analysis() and hlo_modules()."""
    # Otherwise libtpu queries and locks the machine's metadata; jax would take the path for libtpu's.
    os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    os.environ.pop("TPU_LIBRARY_PATH", None)
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    assert len(devices) == REPLICAS
    return _compile(program.text, devices[0].client, devices, loaded=False)


def on_cpus(program):
    """`program` compiled for one CPU device per replica; they sum as TPUs do.

    Returns:
        (replica numbers (REPLICAS,), batch arrays (REPLICAS, b, ...)) -> values after the step, one array (REPLICAS,
        ...) per variable of the program. It starts from the variables' current values and does not change them.
    """
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jaxlib import xla_client

    client = xla_client.make_cpu_client(num_devices=REPLICAS)
    executable = _compile(program.text, client, client.devices(), loaded=True)
    mesh = Mesh(np.array(client.devices()), "replica")

    def spread(parts):
        """(REPLICAS, b, ...) -> (REPLICAS b, ...), a part per device. Replica numbers differ but pass as replicated."""
        parts = [jax.device_put(part, device) for part, device in zip(parts, client.devices())]
        numbers = not parts[0].ndim
        shape = () if numbers else (REPLICAS * parts[0].shape[0], *parts[0].shape[1:])
        sharding = NamedSharding(mesh, PartitionSpec() if numbers else PartitionSpec("replica"))
        return jax.make_array_from_single_device_arrays(shape, sharding, parts)

    def run(replicas, *batch):
        values = [np.stack([value] * REPLICAS) for value in program.values()]
        with jax.enable_x64(True):
            arguments = [spread(a) for a in (np.asarray(replicas, "int32"), *batch, *values)]
            results = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
        for i, parts in zip(program.updated, results):
            values[i] = np.stack([np.asarray(part) for part in parts])
        return values

    return run
