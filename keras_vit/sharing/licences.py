"""Licences by their Hugging Face identifiers.

Source: huggingface.co/docs/hub/repositories-licenses. Licences of particular language models are left out.
"""

from keras_vit.io.suggest import check_known

LICENCES = tuple(
    "apache-2.0 mit openrail openrail++ bigscience-openrail-m creativeml-openrail-m bigcode-openrail-m afl-3.0"
    " artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5"
    " cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0"
    " cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0"
    " cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0"
    " lgpl lgpl-2.1 lgpl-3.0 isc h-research lppl-1.3c ms-pl mpl-2.0 odc-by odbl openmdw-1.0 openmdw-1.1 osl-3.0"
    " postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr fair-noncommercial-research-license unknown other".split()
)


def checked(licence: str | None) -> str:
    """The licence's identifier in lower case; ValueError if it is missing or not one of LICENCES."""
    if not licence:
        raise ValueError(
            'Pass a licence, such as license="apache-2.0" (--license=apache-2.0): without one, nobody may use the'
            " model. Check the licences of the training data and the initial model."
        )
    name = str(licence).lower()
    check_known(name, "licence", LICENCES)
    return name
