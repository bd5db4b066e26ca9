"""The libraries of a page: ONNX Runtime Web, and Hugging Face's tokenizers for models with texts.

They come from npm, once per version, into the cache folder, or from a folder that the user has.
"""

import json
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

from absl import logging

from keras_vit.io.atomic import replacing
from keras_vit.io.cache import cache_folder

ENGINE, TOKENIZERS = "onnxruntime-web", "@huggingface/tokenizers"
VERSIONS = {ENGINE: "1.30.0", TOKENIZERS: "0.2.0"}  # with which the page was tested
_WASM = "ort-wasm-simd-threaded"
ENGINES = {
    "wasm": ("ort.wasm.min.mjs", f"{_WASM}.mjs", f"{_WASM}.wasm"),
    "webgpu": ("ort.webgpu.min.mjs", f"{_WASM}.asyncify.mjs", f"{_WASM}.asyncify.wasm"),
}
TOKENIZERS_FILE = "tokenizers.min.mjs"


def _files(engines, texts):
    """{package: names of its files} for these engines, and for a model with texts."""
    found = {ENGINE: [name for engine in engines for name in ENGINES[engine]]}
    return {**found, TOKENIZERS: [TOKENIZERS_FILE]} if texts else found


def _places(folder, package):
    """Folders that may have a package's files, for a folder that the user names: itself, or one of node_modules."""
    tops = (folder, folder / "node_modules", folder.parent, folder.parent.parent)  # of a package, of its dist/
    return (folder, folder / "dist", *(top / package / "dist" for top in tops))


def _warn_of_version(dist, package):
    """Warns about a package, by its dist/, of another version than the tested one."""
    try:
        version = json.loads((dist.parent / "package.json").read_text("utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # files without the package around them
    if version != VERSIONS[package]:
        logging.warning(
            "The page was tested with %s@%s, and %s has %s: try the page before you publish it.",
            *(package, VERSIONS[package], dist.parent, version),
        )


def _named(folder, package, names):
    """The folder with a package's files; FileNotFoundError if there is none."""
    place = pathlib.Path(folder).expanduser().resolve()
    for found in _places(place, package):
        if all((found / name).is_file() for name in names):
            _warn_of_version(found, package)
            return found
    raise FileNotFoundError(
        f'There is no {package} in "{folder}", with {", ".join(names)}: pass node_modules, after npm install'
        f" {package}@{VERSIONS[package]}, or leave runtime (--runtime) out to have npm fetch it."
    )


def _fetched(package):
    """The dist/ of a package in the cache folder, into which npm installs it on first use.

    Raises:
        FileNotFoundError: without npm.
        OSError: if npm fails.
    """
    wanted = f"{package}@{VERSIONS[package]}"
    place = cache_folder() / "npm" / wanted.replace("/", "-").lstrip("@")
    if place.is_dir():
        return place / "node_modules" / package / "dist"
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError(
            f"A page needs {package}, which npm installs, and there is no npm here. Install Node.js, or run"
            f' "npm install {wanted}" elsewhere and pass the folder: runtime="node_modules" (--runtime=node_modules).'
        )
    logging.info("Installing %s with npm into %s, once.", wanted, place)
    with replacing(place) as folder:
        os.makedirs(folder)
        options = ["--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]
        done = subprocess.run([npm, "install", *options, wanted], capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it gave no reason"]
            raise OSError(
                f'"npm install {wanted}" failed: {said[-1].strip()}. Try it yourself, elsewhere, and pass the folder:'
                ' runtime="node_modules" (--runtime=node_modules).'
            )
    return place / "node_modules" / package / "dist"


def find(runtime: str | os.PathLike | None, engines: Sequence[str], texts: bool) -> list[pathlib.Path]:
    """The files that a page needs.

    Args:
        runtime: node_modules, or the folder of onnxruntime-web in it; None for the cache folder, filled by npm.
        engines: of ENGINES.
        texts: whether it computes tokens of texts.

    Raises:
        FileNotFoundError: if they are not there, with both ways to get them.
        OSError: if npm fails.
    """
    found = []
    for package, names in _files(engines, texts).items():
        folder = _fetched(package) if runtime is None else _named(runtime, package, names)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(f'"{folder}" lacks {", ".join(missing)}: remove it, and export again.')
        found += [folder / name for name in names]
    return found
