"""The reference of the Python API: a page for each public module, with an entry for each name in its `__all__`."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from docstrings import markdown

MODULES = {  # A name is documented in the first module that has it.
    "keras_vit": "The names that most programs need",
    "keras_vit.models": "Models, encoders and specs",
    "keras_vit.checkpoints": "Load, save, transfer and resample checkpoints",
    "keras_vit.training": "The training model, losses and mixing",
    "keras_vit.optim": "Optimizers, wrappers and schedules",
    "keras_vit.layers": "Layers",
    "keras_vit.data": "Sources, batches and preprocessing",
    "keras_vit.distribution": "Strategies",
    "keras_vit.answers": "What a model's outputs mean",
    "keras_vit.evaluation": "Evaluators and their functions",
    "keras_vit.inspection": "Attention, filters, class maps",
    "keras_vit.serving": "Exports, engines and the HTTP service",
    "keras_vit.inference": "Prediction on large data",
    "keras_vit.sharing": "Model cards and uploads",
    "keras_vit.tasks": "What a run learns",
    "keras_vit.runs": "Training runs from configs",
}


def _definition(value):
    """The syntax tree of a function; None without one, as for a dataclass' constructor."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None


def signature(function: Any, skip_first: bool = False) -> str:
    """A function's arguments and result as its source has them, "(path: str, classes: int = 10) -> Model"."""
    node = _definition(function)
    if not isinstance(node, ast.FunctionDef):
        return ""
    if skip_first:
        group = node.args.posonlyargs or node.args.args
        del group[:1]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def _fields(cls):
    """A dataclass' constructor, "(kind: str, x_label: str = '')"."""
    node = _definition(cls)
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item)]
    return f"({', '.join(_field(item) for item in fields)})"


def _field(item):
    default = item.value
    if isinstance(default, ast.Call):  # dataclasses.field(default=..., default_factory=..., metadata=...)
        given = {word.arg: word.value for word in default.keywords}
        made = ast.Constant(...) if "default_factory" in given else None
        default = given.get("default", default.args[0] if default.args else made)
    return f"{item.target.id}: {ast.unparse(item.annotation)}" + (f" = {ast.unparse(default)}" if default else "")


def _members(cls) -> Iterator[tuple[str, str, Any]]:
    """(kind, name, member) of the public methods and properties that the class adds or documents."""
    for name, member in vars(cls).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        inherited = any(hasattr(base, name) for base in cls.__mro__[1:])
        if name.startswith("_") or not inspect.isfunction(function) or (inherited and not function.__doc__):
            continue
        if name in ("call", "build", "get_config", "compute_output_shape", "from_config", "compute_output_spec"):
            continue  # of every Keras layer
        yield "property" if isinstance(member, property) else "method", name, function


def _directive(kind, head, body, colons, *options):
    fence = ":" * colons
    return "\n".join([f"{fence}{{py:{kind}}} {head}", *options, "", body, fence])


def _of_class(module, name, cls):
    constructor = vars(cls).get("__init__")
    has_source = inspect.isfunction(constructor) and isinstance(_definition(constructor), ast.FunctionDef)
    if has_source:
        arguments = signature(constructor, skip_first=True).removesuffix(" -> None")
    else:
        arguments = _fields(cls) if "__dataclass_fields__" in vars(cls) else ""
    body = [markdown(inspect.getdoc(cls) if cls.__doc__ else "")]
    if has_source and constructor.__doc__:
        body.append(markdown(inspect.getdoc(constructor)))
    for kind, member, function in _members(cls):
        shown = signature(function, skip_first=True) if kind == "method" else ""
        body.append(_directive(kind, member + shown, markdown(inspect.getdoc(function) or ""), 3))
    return _directive("class", name + arguments, "\n\n".join(body), 4, f":module: {module}")


def entry(module: str, name: str, value: Any) -> str:
    """The Markdown of one public name."""
    if inspect.isclass(value):
        return _of_class(module, name, value)
    if inspect.isroutine(value):
        return _directive(
            "function", name + signature(value), markdown(inspect.getdoc(value) or ""), 3, f":module: {module}"
        )
    keys = f"Keys: {', '.join(f'`{key}`' for key in value)}." if isinstance(value, dict) and value else ""
    return _directive("data", name, f"`{type(value).__name__}`. {keys}", 3, f":module: {module}")


def names() -> dict[tuple[str, str], str]:
    """{(module, public name): the module with its entry}."""
    homes, found = {}, {}
    for module in MODULES:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            value = getattr(loaded, name)
            if inspect.ismodule(value):
                continue  # a page
            key = id(value) if inspect.isclass(value) or inspect.isroutine(value) else (module, name)
            found[module, name] = homes.setdefault(key, module)
    return found


def _alphabetical(name):
    return name.lower().strip("_")


def pages() -> dict[str, str]:
    """{path below docs/: Markdown} of the reference of the Python API."""
    homes, written = names(), {}
    for module in MODULES:
        loaded = importlib.import_module(module)
        own = sorted((name for at, name in homes if at == module and homes[at, name] == module), key=_alphabetical)
        other = sorted((name, home) for (at, name), home in homes.items() if at == module and home != module)
        parts = [f"# {module}", f":::{{py:module}} {module}\n:::", markdown(inspect.getdoc(loaded))]
        if other:
            links = ", ".join(f"{{py:obj}}`{name} <{home}.{name}>`" for name, home in other)
            parts.append(f"Documented elsewhere: {links}.")
        for name in own:
            parts.append(entry(module, name, getattr(loaded, name)))
        written[f"reference/api/{module}.md"] = "\n\n".join(parts) + "\n"
    rows = "\n".join(f"- [{module}](api/{module}.md): {title}" for module, title in MODULES.items())
    toctree = "\n".join(["```{toctree}", ":hidden:", *(f"api/{module}" for module in MODULES), "```"])
    written["reference/api.md"] = f"# Python API\n\nEvery public name, by module:\n\n{rows}\n\n{toctree}\n"
    return written
