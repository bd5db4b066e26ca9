"""Writes goldens/text/*.json: tiny SigLIP, SigLIP 2 (NaFlex) and CLIP models, both towers, and what they answer.

pip install torch transformers        # in another environment
python tests/checkpoints/originals_text.py
"""

import json
import tempfile

import safetensors.torch
import torch
import transformers
from text_files import FOLDER, SIZE, image, mixed, tokens, value

_TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
_TEXT = {**_TOWER, "vocab_size": 40, "max_position_embeddings": 8}
_VISION = {**_TOWER, "patch_size": 8}
_HALF = ([0.5] * 3, [0.5] * 3)
_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
KEYS = ("image_embeds", "text_embeds", "logits_per_image")
# {name: (config, model, normalisation)}.
CASES = {
    "siglip": (
        transformers.SiglipConfig(text_config=_TEXT, vision_config={**_VISION, "image_size": SIZE}),
        transformers.SiglipModel,
        _HALF,
    ),
    "siglip_wide": (
        transformers.SiglipConfig(
            text_config={**_TEXT, "projection_size": 24, "hidden_act": "gelu"},
            vision_config={**_VISION, "hidden_size": 24, "image_size": SIZE},
        ),
        transformers.SiglipModel,
        _HALF,
    ),
    "siglip2": (
        transformers.Siglip2Config(text_config=_TEXT, vision_config={**_VISION, "num_patches": 16}),
        transformers.Siglip2Model,
        _HALF,
    ),
    "clip": (
        transformers.CLIPConfig(
            text_config={**_TEXT, "eos_token_id": 39},
            vision_config={**_VISION, "hidden_size": 24, "image_size": SIZE},
            projection_dim=12,
        ),
        transformers.CLIPModel,
        _CLIP,
    ),
}


def inputs(name, normalisation):
    """The images as the model takes them."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in normalisation)
    pixels = ((torch.tensor(image()) / 255 - mean) / std).float()  # (b, h, w, c)
    if name != "siglip2":
        return {"pixel_values": pixels.permute(0, 3, 1, 2)}
    side = SIZE // 8
    patches = pixels.reshape(-1, side, 8, side, 8, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, side**2, 8 * 8 * 3)
    everywhere = torch.ones(len(pixels), side**2, dtype=torch.int64)
    shapes = torch.tensor([[side, side]] * len(pixels))
    return {"pixel_values": patches, "pixel_attention_mask": everywhere, "spatial_shapes": shapes}


def mixed_features(model, normalisation):
    """What NaFlex's image encoder answers to images of several aspects in one batch."""
    patches, grids = mixed()
    mean, std = (torch.tensor(values) for values in normalisation)
    pixels = ((torch.tensor(patches) / 255 - mean) / std).flatten(2).float()  # (b, n, p*q*c)
    there = torch.arange(pixels.shape[1])[None] < torch.tensor(grids.prod(axis=1))[:, None]
    outputs = model.vision_model(pixels, there.long(), torch.tensor(grids).long())
    return outputs.pooler_output.double().numpy().round(7).tolist()


def main():
    for name, (config, form, normalisation) in CASES.items():
        model = form(config).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            arrays = safetensors.torch.load_file(f"{folder}/model.safetensors")
            shapes = {key: list(array.shape) for key, array in arrays.items()}
            with open(f"{folder}/config.json") as file:
                written = json.load(file)
        model.load_state_dict({key: torch.tensor(value(key, shape)) for key, shape in shapes.items()})
        with torch.no_grad():
            mixes = {"mixed": mixed_features(model, normalisation)} if name == "siglip2" else {}
            outputs = model(input_ids=torch.tensor(tokens(written)).long(), **inputs(name, normalisation))
        found = {key: getattr(outputs, key).double().numpy().round(7).tolist() for key in KEYS}
        library = f"transformers {transformers.__version__}"
        fields = {
            "library": library,
            "normalisation": normalisation,
            "config": written,
            "shapes": shapes,
            **found,
            **mixes,
        }
        (FOLDER / f"{name}.json").write_text(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()
