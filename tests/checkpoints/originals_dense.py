"""Writes goldens/dense/*.json: tiny DPT, Depth Anything, BEiT, EoMT, YOLOS, LW-, RF-DETR and -Seg, and their answers.

    pip install torch transformers        # in another environment
    python tests/checkpoints/originals_dense.py [NAME ...]

DPT on its own ViT takes square images only: its neck, called with the patch grid, takes others.
"""

import json
import sys
import tempfile

import safetensors.torch
import torch
import transformers
from dense_files import EVERY, FOLDER, image, size_of, value

_SIZES = {"hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2}
_NECK = {"neck_hidden_sizes": [4, 6, 8, 10], "fusion_hidden_size": 8}
_DPT = {
    **_SIZES,
    **_NECK,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
    "backbone_out_indices": [0, 1, 3, 4],
}
_DINO = {
    **_SIZES,
    "mlp_ratio": 2,
    "image_size": 28,
    "patch_size": 7,
    "out_indices": [1, 2, 4, 5],
    "reshape_hidden_states": False,
}
_NAMES = {"id2label": {0: "wall", 1: "sky", 2: "tree"}, "label2id": {"wall": 0, "sky": 1, "tree": 2}}


def _depth_anything(**options):
    backbone = transformers.Dinov2Config(**_DINO)
    sizes = {"patch_size": 7, "reassemble_hidden_size": 16, "head_hidden_size": 5, **_NECK}
    config = transformers.DepthAnythingConfig(backbone_config=backbone, **sizes, **options)
    return transformers.DepthAnythingForDepthEstimation(config)


def _dpt(kind, **options):
    return getattr(transformers, f"DPTFor{kind}")(transformers.DPTConfig(**options))


def _dpt_on_dinov2():
    backbone = transformers.Dinov2Config(**_DINO, apply_layernorm=False)
    return _dpt("DepthEstimation", backbone_config=backbone, hidden_size=16, **_NECK)


def _beit():
    config = transformers.BeitConfig(
        **_SIZES,
        **_NAMES,
        intermediate_size=24,
        image_size=32,
        patch_size=8,
        out_indices=[2, 3, 4, 5],
        pool_scales=[1, 2, 3, 6],
        auxiliary_channels=6,
        use_relative_position_bias=True,
        use_mean_pooling=True,
        layer_scale_init_value=0.1,
    )
    return transformers.BeitForSemanticSegmentation(config)


def _eomt():
    sizes = {**_SIZES, "num_hidden_layers": 3, "mlp_ratio": 2, "image_size": 32, "patch_size": 8}
    head = {"num_blocks": 2, "num_queries": 5, "num_register_tokens": 2, "num_upscale_blocks": 1}
    return transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**sizes, **head, **_NAMES))


def _yolos(**options):
    sizes = {**_SIZES, "num_hidden_layers": 3, "intermediate_size": 24, "patch_size": 8, "num_detection_tokens": 5}
    return transformers.YolosForObjectDetection(transformers.YolosConfig(**sizes, **_NAMES, **options))


_QUERIES = {
    **{"d_model": 16, "num_queries": 6, "group_detr": 2, "decoder_layers": 2, "decoder_ffn_dim": 20},
    **{"decoder_self_attention_heads": 2, "decoder_cross_attention_heads": 4, "decoder_n_points": 2},
}


def _rf_detr(kind="ObjectDetection", **options):
    sizes = {**_SIZES, "num_hidden_layers": 4, "mlp_ratio": 2, "image_size": 32, "patch_size": 4}
    backbone = transformers.RfDetrDinov2Config(**sizes, num_windows=2, out_features=["stage2", "stage3"])
    config = transformers.RfDetrConfig(backbone_config=backbone, **_QUERIES, **_NAMES, c2f_num_blocks=2, **options)
    return getattr(transformers, f"RfDetrFor{kind}")(config)


def _lw_detr():
    sizes = {**_SIZES, "num_hidden_layers": 4, "mlp_ratio": 2, "image_size": 64, "patch_size": 4}
    windows = {"pretrain_image_size": 32, "num_windows": 4, "window_block_indices": [0, 2], "out_indices": [2, 4]}
    backbone = transformers.LwDetrViTConfig(**sizes, **windows)
    options = {"backbone_config": backbone, "projector_scale_factors": [2.0, 0.5], "c2f_num_blocks": 1}
    return transformers.LwDetrForObjectDetection(transformers.LwDetrConfig(**options, **_QUERIES, **_NAMES))


CASES = {  # {name: (model, sizes)}
    "dpt_classes": (
        lambda: _dpt("SemanticSegmentation", **_DPT, **_NAMES, use_batch_norm_in_fusion_residual=True),
        ("32x32", "48x32"),
    ),
    "dpt_depth": (lambda: _dpt("DepthEstimation", **_DPT, readout_type="add"), ("32x32", "24x40")),
    "dpt_dinov2": (_dpt_on_dinov2, ("28x28", "28x42")),
    "depth_anything": (_depth_anything, ("28x28", "21x35")),
    "depth_anything_metric": (
        lambda: _depth_anything(depth_estimation_type="metric", max_depth=20),
        ("28x28", "35x28"),
    ),
    "beit": (_beit, ("32x32", "24x40")),
    "eomt": (_eomt, ("32x32",)),
    "yolos": (lambda: _yolos(image_size=[32, 48], use_mid_position_embeddings=False), ("32x48", "24x32")),
    "yolos_middle": (lambda: _yolos(image_size=[32, 32]), ("32x32", "24x40")),
    "rf_detr": (_rf_detr, ("32x32", "48x48")),
    "rf_detr_seg": (lambda: _rf_detr("InstanceSegmentation", intermediate_size=64), ("32x32", "48x48")),
    "lw_detr": (_lw_detr, ("32x32", "48x48")),
}


def _answer(model, x):
    """Logits or depths (1, c, h, w); of EoMT the logarithm of its scores."""
    if hasattr(model, "beit"):
        return model(x).logits
    if hasattr(model, "mask_head"):
        found = model(x)
        masks = torch.nn.functional.interpolate(found.masks_queries_logits, size=x.shape[2:], mode="bilinear")
        classes = found.class_queries_logits.softmax(-1)[..., :-1]
        return torch.einsum("bqc, bqhw -> bchw", classes, masks.sigmoid()).log()
    if not hasattr(model, "dpt"):
        return model(x).predicted_depth[:, None]
    hidden = model.dpt(x, output_hidden_states=True).hidden_states[1:]
    taps = [hidden[i] for i in model.config.backbone_out_indices]
    answer = model.head(model.neck(taps, x.shape[2] // 8, x.shape[3] // 8))
    answer = answer if answer.ndim == 4 else answer[:, None]
    if x.shape[2] == x.shape[3]:
        whole = model(x)
        whole = whole.logits if "logits" in whole else whole.predicted_depth[:, None]
        assert torch.equal(whole, answer)
    return answer


def _kept(model, x):
    """What a golden keeps of an answer: every third row and column (h, w, c), or logits, boxes and the mask, (q, c)."""
    if hasattr(model, "segmentation_head"):
        found = model(x)
        return torch.cat([found.logits, found.pred_boxes, found.pred_masks.flatten(2)], dim=-1)[0]
    if hasattr(model, "bbox_predictor") or hasattr(model, "bbox_embed"):
        found = model(x)
        return torch.cat([found.logits, found.pred_boxes], dim=-1)[0]
    answer = torch.nn.functional.interpolate(_answer(model, x), size=x.shape[2:], mode="bilinear")
    return answer[0].permute(1, 2, 0)[::EVERY, ::EVERY]


def _golden(model, sizes):
    model.eval()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.tensor(value(key, tensor.shape)))
        with tempfile.TemporaryDirectory() as folder:  # the names in files differ from those in memory
            model.save_pretrained(folder)
            saved = safetensors.torch.load_file(f"{folder}/model.safetensors")
            with open(f"{folder}/config.json") as file:
                config = json.load(file)
        outputs = {}
        floats = {key: list(tensor.shape) for key, tensor in sorted(saved.items()) if tensor.is_floating_point()}
        _load(model, config, floats)
        for size in sizes:
            h, w = size_of(size)
            x = torch.tensor((image(h, w) / 255 - 0.5) / 0.5, dtype=torch.float32).permute(0, 3, 1, 2)
            answer = _kept(model, x)
            print(size, f"from {answer.min():.3f} to {answer.max():.3f}")
            outputs[size] = answer.numpy().astype(float).round(6).tolist()
    side = size_of(sizes[0])[0]
    preprocessor = {
        **{"image_processor_type": "DPTImageProcessor", "do_resize": True, "size": {"height": side, "width": side}},
        **{"resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True},
        **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    }
    library = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
    return {"library": library, "config": config, "preprocessor": preprocessor, "shapes": floats, "outputs": outputs}


def _load(model, config, shapes):
    """Gives the model the values that belong to the names in files, by from_pretrained."""
    arrays = {key: torch.tensor(value(key, shape)) for key, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        safetensors.torch.save_file(arrays, f"{folder}/model.safetensors", {"format": "pt"})
        with open(f"{folder}/config.json", "w") as file:
            json.dump(config, file)
        loaded = type(model).from_pretrained(folder)
    model.load_state_dict(loaded.state_dict())


def main():
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        build, sizes = CASES[name]
        lines = [f'"{key}": {json.dumps(field)}' for key, field in _golden(build(), sizes).items()]
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
