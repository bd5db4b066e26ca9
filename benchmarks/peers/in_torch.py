"""timm's and transformers' models in PyTorch, with the fastest attention and AdamW there on a CPU."""

import functools
import sys

import torch


def threads(count):
    """Sets the number of threads and returns it."""
    torch.set_num_threads(count)
    return torch.get_num_threads()


def _timm(sizes):
    import timm

    return timm.models.VisionTransformer(
        img_size=sizes["image_size"],
        patch_size=sizes["patch_size"],
        embed_dim=sizes["width"],
        depth=sizes["depth"],
        num_heads=sizes["heads"],
        mlp_ratio=sizes["mlp_dim"] / sizes["width"],
        num_classes=sizes["classes"],
    )


class _Logits(torch.nn.Module):
    """A model of transformers that returns only its logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model(images).logits


def _without_torchvision():
    """Keeps transformers from importing torchvision, which its models do not need and which may suit another torch."""
    sys.modules.setdefault("torchvision", None)


def _transformers(sizes):
    _without_torchvision()
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=sizes["image_size"],
        patch_size=sizes["patch_size"],
        hidden_size=sizes["width"],
        num_hidden_layers=sizes["depth"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["mlp_dim"],
        num_labels=sizes["classes"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _Logits(ViTForImageClassification(config))


def _dense(sizes):
    """transformers' DPT with our widths, and its auxiliary head, whose logits transformers' own loss resizes."""
    _without_torchvision()
    from transformers import DPTConfig, DPTForSemanticSegmentation

    if sizes["head"] != "dpt":
        raise NotImplementedError(f'transformers has no head "{sizes["head"]}" on a ViT')
    width, depth = sizes["width"], sizes["depth"]
    config = DPTConfig(
        image_size=min(sizes["image_size"]),  # square; positions are resized to the image in each pass
        patch_size=sizes["patch_size"],
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["mlp_dim"],
        num_labels=sizes["classes"],
        is_hybrid=False,
        backbone_out_indices=[depth * i // 4 - 1 for i in (1, 2, 3, 4)],
        neck_hidden_sizes=[width // 8, width // 4, width // 2, width],
        use_batch_norm_in_fusion_residual=True,
        use_auxiliary_head=True,
    )
    model = DPTForSemanticSegmentation(config)
    # Only the model assumes square images: its neck takes others.
    rows, columns = (side // sizes["patch_size"] for side in sizes["image_size"])
    model.neck.forward = functools.partial(model.neck.forward, patch_height=rows, patch_width=columns)
    return model


def _build_dense(library, sizes, batch, dtype):
    """As `build`, for a class per pixel; training by transformers' own loss, at the image's size."""
    if library != "transformers":
        raise NotImplementedError(f'{library} has no head "{sizes["head"]}"')
    model, size = _dense(sizes), sizes["image_size"]
    images, masks = torch.randn(batch, 3, *size), torch.zeros(batch, *size, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def passed(**labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            return model(images, **labels)

    def forward():
        model.eval()
        with torch.inference_mode():
            logits = torch.nn.functional.interpolate(passed().logits.float(), size=size, mode="bilinear")
            float(logits[0, 0, 0, 0])

    def train():
        model.train()
        loss = passed(labels=masks).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        float(loss)

    return sum(p.numel() for p in model.parameters()), {"forward": forward, "training": train}


def build(library, sizes, batch, dtype):
    """(number of parameters, {"forward": function, "training": function}) of a model with random weights and images."""
    if "head" in sizes:
        return _build_dense(library, sizes, batch, dtype)
    model = {"timm": _timm, "transformers": _transformers}[library](sizes)
    images = torch.randn(batch, 3, sizes["image_size"], sizes["image_size"])
    labels = torch.zeros(batch, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def logits():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            return model(images)

    def forward():
        model.eval()
        with torch.inference_mode():
            float(logits()[0, 0])

    def train():
        model.train()
        loss = torch.nn.functional.cross_entropy(logits().float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        float(loss)

    return sum(p.numel() for p in model.parameters()), {"forward": forward, "training": train}
