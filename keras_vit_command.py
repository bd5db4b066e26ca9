"""The installed command. It is beside the package and not inside, because importing keras_vit imports an engine,
which help need not wait for.
"""

import importlib
import importlib.util
import pathlib
import sys

_NAME = "keras_vit_trainers"


def _import_trainers():
    """Imports the package of the binaries, not its parent: keras_vit/trainers where it is installed, trainers/ in a
    checkout.
    """
    package = pathlib.Path(importlib.util.find_spec("keras_vit").origin).parent
    installed = package / "trainers"
    folder = installed if installed.is_dir() else package.parent / "trainers"
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    sys.modules[_NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def main() -> None:
    _import_trainers()
    importlib.import_module(f"{_NAME}.command").main()
