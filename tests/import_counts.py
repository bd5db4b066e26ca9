"""What importing a module reads of this package, counted without running it.

    python tests/import_counts.py keras_vit.models.vit

prints the files and lines, then a line for each file. Imports outside functions count, as Python runs them at import,
but not those for type checkers. The `__init__.py` of the packages on the way count for `keras_vit` itself, which runs
them, and not for a module, which a reader opens without them.
"""

import ast
import functools
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "keras_vit"


def name_of(path: pathlib.Path) -> str:
    """The dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    """{dotted name: file} of the package."""
    return {name_of(path): path for path in (ROOT / PACKAGE).rglob("*.py")}


def _statements(body):
    """The import statements that run at import."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            negated = isinstance(node.test, ast.UnaryOp)
            yield from _statements(node.body if negated else node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))


@functools.cache
def imported(name: str) -> set[str]:
    """The modules of the package that a module imports."""
    found = set()
    for node in _statements(ast.parse(modules()[name].read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else node.module)
    return found & modules().keys()


def _packages(name):
    parts = name.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts))}


def closure(name: str, packages: bool = False) -> set[str]:
    """The modules that importing `name` reads, itself included; with `packages` also the packages they are in."""
    found, left = set(), [name]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += imported(each)
            left += _packages(each) if packages else ()
    return found


def lines(names: set[str]) -> int:
    """The number of lines of these modules."""
    return sum(len(modules()[name].read_text().splitlines()) for name in names)


if __name__ == "__main__":
    [asked] = sys.argv[1:] or [PACKAGE]
    counted = closure(asked, packages=asked == PACKAGE)
    print(f"{asked}: {len(counted)} files, {lines(counted)} lines")
    for each in sorted(counted):
        print(f"{lines({each}):6} {each}")
