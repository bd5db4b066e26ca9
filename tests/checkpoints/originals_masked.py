"""Writes goldens/masked.npz: losses and gradients of masked pre-training in PyTorch, by Hugging Face's models. Run by
hand, with these installed:

    python tests/checkpoints/originals_masked.py

Made with transformers 5.23.0 and torch 2.15.0 on a CPU. Positions are MAE's own table, by the code of
facebookresearch/mae; the other weights are sampled by their names in files (sampled.py), which are those of the
gradients, too.
"""

import pathlib
import tempfile

import numpy as np
import safetensors.torch
import torch
from sampled import sample
from transformers import ViTConfig, ViTMAEConfig, ViTMAEForPreTraining, ViTModel

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 16,
    "patch_size": 4,
}
DECODER = {
    "decoder_num_attention_heads": 4,
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 12,
}
SCALE = 0.3
MEAN, STD = 255 * np.array([0.485, 0.456, 0.406]), 255 * np.array([0.229, 0.224, 0.225])


def table(width, side):
    """get_2d_sincos_pos_embed of facebookresearch/mae, with its row of zeros: (1, 1 + side^2, width)."""
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=0).reshape(2, -1)
    omega = 1 / 10000 ** (np.arange(width // 4) / (width / 4.0))
    parts = [f(np.outer(place, omega)) for place in grid for f in (np.sin, np.cos)]
    return torch.tensor(
        np.concatenate([np.zeros((1, width)), np.concatenate(parts, axis=1)])[None], dtype=torch.float32
    )


def in_file(model):
    """{name in a file: tensor} of a model's parameters, which have other names in memory."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return safetensors.torch.load_file(f"{folder}/model.safetensors")


def sampled_weights(model, folder, tables, **options):
    """The model with sampled weights and tables of positions, {name in a file: table}."""
    arrays = {
        name: torch.tensor(sample(name, a.shape, SCALE), dtype=torch.float32) for name, a in in_file(model).items()
    }
    model.save_pretrained(folder)
    safetensors.torch.save_file({**arrays, **tables}, f"{folder}/model.safetensors", {"format": "pt"})
    return type(model).from_pretrained(folder, **options).eval()


def gradients(prefix, model):
    """{prefix/name in a file: gradient}; of what has none, zeros."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return {f"{prefix}/gradients/{name}": a.numpy() for name, a in in_file(model).items()}


def masked_autoencoder(images, rng, folder):
    tables = {"vit.embeddings.position_embeddings": table(16, 4), "decoder.decoder_pos_embed": table(8, 4)}
    model = sampled_weights(ViTMAEForPreTraining(ViTMAEConfig(**SIZES, **DECODER, norm_pix_loss=True)), folder, tables)
    noise = rng.random((len(images), 16)).astype("float32")
    out = model(pixel_values=images, noise=torch.tensor(noise))
    out.loss.backward()
    outputs = {"noise": noise, "logits": out.logits.detach().numpy(), "mask": out.mask.numpy(), "loss": out.loss.item()}
    return {**{f"mae/{name}": value for name, value in outputs.items()}, **gradients("mae", model)}


def masked_patches(images, rng, folder):
    """ViTModel replaces embeddings by its mask token; the head is a linear layer, the images grey."""
    options = {"add_pooling_layer": False, "use_mask_token": True}
    vit = sampled_weights(ViTModel(ViTConfig(**SIZES, num_channels=1), **options), folder, {}, **options)
    masked, classes = rng.random((len(images), 16)) < 0.5, rng.integers(0, 8, (len(images), 16))
    tokens = vit(pixel_values=images, bool_masked_pos=torch.tensor(masked)).last_hidden_state[:, 1:]
    logits = tokens @ torch.tensor(sample("head.weight", (8, 16), SCALE), dtype=torch.float32).T
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), torch.tensor(classes), reduction="none")  # (b, n)
    counted = torch.tensor(masked.astype("float32"))
    loss = ((each * counted).sum(1) / counted.sum(1)).mean()
    loss.backward()
    outputs = {"masked": masked, "classes": classes, "logits": logits.detach().numpy(), "loss": loss.item()}
    return {**{f"patches/{name}": value for name, value in outputs.items()}, **gradients("patches", vit)}


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 16, 16, 3), dtype="uint8")
    normalised = torch.tensor(((images - MEAN) / STD).transpose(0, 3, 1, 2), dtype=torch.float32)
    grey = torch.tensor((images[..., :1] - 127.5) / 127.5, dtype=torch.float32).permute(0, 3, 1, 2)
    with tempfile.TemporaryDirectory() as folder:
        arrays = {**masked_autoencoder(normalised, rng, f"{folder}/mae"), **masked_patches(grey, rng, f"{folder}/vit")}
    np.savez_compressed(pathlib.Path(__file__).parent / "goldens" / "masked.npz", images=images, **arrays)
