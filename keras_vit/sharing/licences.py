"""Licences by their Hugging Face identifiers, and Kaggle's names for them.

Sources: huggingface.co/docs/hub/repositories-licenses, docs/models_metadata.md of Kaggle/kaggle-api. Licences of
particular language models are left out.
"""

from keras_vit.io.suggest import did_you_mean

LICENCES = tuple(
    "apache-2.0 mit openrail openrail++ bigscience-openrail-m creativeml-openrail-m bigcode-openrail-m afl-3.0"
    " artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5"
    " cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0"
    " cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0"
    " cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0"
    " lgpl lgpl-2.1 lgpl-3.0 isc h-research lppl-1.3c ms-pl mpl-2.0 odc-by odbl openmdw-1.0 openmdw-1.1 osl-3.0"
    " postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr fair-noncommercial-research-license unknown other".split()
)

KAGGLE = {
    "apache-2.0": "Apache 2.0",
    "mit": "MIT",
    "bsd-3-clause": "BSD-3-Clause",
    "cc0-1.0": "CC0: Public Domain",
    "cc-by-3.0": "Attribution 3.0 Unported (CC BY 3.0)",
    "cc-by-4.0": "Attribution 4.0 International (CC BY 4.0)",
    "cc-by-sa-3.0": "CC BY-SA 3.0",
    "cc-by-sa-4.0": "CC BY-SA 4.0",
    "cc-by-nc-4.0": "Attribution-NonCommercial 4.0 International (CC BY-NC 4.0)",
    "cc-by-nd-4.0": "Attribution-NoDerivatives 4.0 International (CC BY-ND 4.0)",
    "cc-by-nc-nd-4.0": "Attribution-NonCommercial-NoDerivatives 4.0 International (CC BY-NC-ND 4.0)",
    "cc-by-nc-sa-4.0": "CC BY-NC-SA 4.0",
    "cdla-permissive-1.0": "Community Data License Agreement - Permissive - Version 1.0",
    "cdla-sharing-1.0": "Community Data License Agreement - Sharing - Version 1.0",
    "agpl-3.0": "GNU Affero General Public License 3.0",
    "lgpl-3.0": "GNU Lesser General Public License 3.0",
    "gpl-2.0": "GPL 2",
    "gpl-3.0": "GPL 3",
    "odc-by": "ODC Attribution License (ODC-By)",
    "pddl": "ODC Public Domain Dedication and Licence (PDDL)",
}


def checked(licence: str | None, valid: tuple[str, ...] = LICENCES) -> str:
    """The licence's identifier in lower case; ValueError if it is missing or not in `valid`."""
    if not licence:
        raise ValueError(
            'Pass a licence, such as license="apache-2.0" (--license=apache-2.0): without one, nobody may use the'
            " model. Check the licences of the training data and the initial model."
        )
    name = str(licence).lower()
    if name not in valid:
        raise ValueError(f'Unknown licence "{licence}".{did_you_mean(name, valid)} Valid: {", ".join(valid)}.')
    return name
