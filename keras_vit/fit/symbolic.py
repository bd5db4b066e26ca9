"""The graph behind symbolic tensors."""

from collections.abc import Collection, Iterable

import keras


def producing_node(tensor: keras.KerasTensor):
    """The node that made a symbolic tensor; None for one that nothing made."""
    history = getattr(tensor, "_keras_history", None)
    operation = history and history.operation
    return operation and operation._inbound_nodes[history.node_index]


def nodes(outputs: Iterable[keras.KerasTensor], known: Collection[int] = ()) -> list:
    """The nodes behind symbolic tensors, each after those that it reads, up to the tensors whose `id` is known."""
    found, waiting = {}, [(tensor, False) for tensor in reversed(list(outputs))]
    while waiting:
        tensor, is_read = waiting.pop()
        node = producing_node(tensor)
        if id(tensor) in known or node is None:
            continue
        if is_read:
            found[node] = None
        elif node not in found:
            waiting += [(tensor, True), *((each, False) for each in reversed(node.input_tensors))]
    return list(found)


def sources(outputs: Iterable[keras.KerasTensor]) -> list[keras.KerasTensor]:
    """The inputs of the graph behind symbolic tensors; Keras' get_source_inputs looks at each way through sums anew."""
    outputs = list(outputs)
    used = [*outputs, *(tensor for node in nodes(outputs) for tensor in node.input_tensors)]
    made_by = {id(tensor): (tensor, producing_node(tensor)) for tensor in used}
    return [tensor for tensor, node in made_by.values() if node is None or not node.input_tensors]
