"""Masked autoencoders from parsed checkpoints; encoders alone load like any ViT."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.adapt import assign_file
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.reading import metadata
from keras_vit.layers.embedding.patches import pair
from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder

_RATES = ("dropout", "attention_dropout", "drop_path")
_CHANGEABLE = ("dtype", "remat", "name", "preprocessing", "image_size", *_RATES)


def masked_autoencoder(
    parsed: ParsedCheckpoint, config: Mapping[str, Any], path: Any, changes: Mapping[str, Any]
) -> MaskedAutoencoder:
    """The MaskedAutoencoder of a file with a decoder.

    Args:
        parsed: with its `decoder`.
        config: the encoder's constructor arguments, a ViT's.
        path: the file's, for messages.
        changes: arguments of `load`, of _CHANGEABLE.

    Raises:
        ValueError: for any other change, another size with learned positions, or misfit names or shapes in the file.
    """
    decoder, unknown = parsed.decoder, [name for name in changes if name not in _CHANGEABLE]
    fixed = decoder.encoder_positions != "learned" and decoder.fields["decoder_positions"] != "learned"
    size = pair(changes.get("image_size", config["image_size"]), "image_size")
    if not fixed and tuple(size) != tuple(config["image_size"]):
        unknown.append("image_size, since its positions are learned")
    if unknown:
        raise ValueError(
            f'"{path}" contains a masked autoencoder, which cannot change {", ".join(unknown)}; it can:'
            f' {", ".join(_CHANGEABLE)}. For its encoder, a ViT, which can change more, load it with head="drop", or'
            ' with classes=... and head="reset".'
        )
    spec = dataclasses.replace(
        config["variant"],
        positions=decoder.encoder_positions,
        **{name: changes[name] for name in _RATES if name in changes},
    )
    arguments = {name: config[name] for name in ("image_size", "channels", "preprocessing")}
    arguments |= {name: value for name, value in changes.items() if name not in _RATES}
    with metadata.built_from(path):
        model = MaskedAutoencoder(spec, **arguments, **decoder.fields)
    entries, arrays = {**parsed.name_map, **decoder.name_map}, {**parsed.arrays, **decoder.arrays}
    if decoder.encoder_positions != "learned":
        del entries[decoder.encoder_table], arrays[decoder.encoder_table]
    assign_file(model, entries, arrays, path)
    return model
