"""Apache Beam's options as users type them; refuses what Beam would silently ignore."""

import contextlib
import io
import logging
from collections.abc import Sequence
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from keras_vit.io.suggest import did_you_mean

logging.getLogger("apache_beam.transforms.util").setLevel(logging.WARNING)  # statistics of batches
_HERE = (None, "direct", "DirectRunner", "BundleBasedDirectRunner", "SwitchingDirectRunner", "FnApiRunner")


def _parsed(options) -> tuple[PipelineOptions, dict[str, Any]]:
    """(Beam's options, {name: value} of those it knows). Raises ValueError with argparse's message."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            made = PipelineOptions(options)
            return made, made.get_all_options()
    except SystemExit:
        why = said.getvalue().rpartition("error: ")[2].strip()
        if not why:  # --help
            raise
        raise ValueError(f"Beam cannot read its options: {why}.") from None


def pipeline_options(options: Sequence[str]) -> PipelineOptions:
    """Beam's options from words such as "--runner=FlinkRunner", including options of other runners.

    Raises:
        ValueError: for a word that is not an option, a value of the wrong kind, or an option that nothing reads on this
            machine, such as a misspelt --runner.
    """
    options = list(options)
    wrong = [word for i, word in enumerate(options) if (word[:1] == "-" or i == 0) and word[:2] != "--"]
    if wrong:
        raise ValueError(
            f'"{wrong[0]}" is not an option of Beam: expected --NAME=VALUE, such as --runner=DirectRunner.'
        )
    made, known = _parsed(options)
    unknown = sorted(set(made.get_all_options(retain_unknown_options=True)) - set(known))
    if unknown and made.view_as(StandardOptions).runner in _HERE:
        raise ValueError(
            f"Beam has no option --{unknown[0]} for a pipeline on this machine.{did_you_mean(unknown[0], list(known))}"
            " Another runner is named by --runner=."
        )
    return made
