"""Write the goldens: the outputs of the original libraries for arrays sampled by name (sampled.py).

A script for maintainers; the tests read what it writes. It needs an environment of its own, with torch, torchvision,
timm, transformers, vit-pytorch, jax, flax, ml_collections, einops and scipy, next to checkouts of google-research's
vision_transformer and big_vision (whose TensorFlow imports are replaced by stand-ins):

    python tests/checkpoints/originals.py --out tests/checkpoints/goldens [--full DIR] [--only PATTERN] \\
        --vision_transformer=DIR --big_vision=DIR

It writes the small models to --out or, where --full is given, the full-size ones to that folder. Names and shapes
are those of the files that users have on disk, which for transformers are not those of the models in memory.
"""

import argparse
import fnmatch
import pathlib
import sys

from original_models import (
    IMAGENET,
    big_vision,
    bit,
    bit_npz,
    huggingface,
    huggingface_state,
    hybrid,
    lucidrains,
    own,
    timm_model,
    vision_transformer,
)
from original_resampling import write, write_resampling

VIT = dict(
    patches=dict(size=(4, 4)),
    hidden_size=16,
    transformer=dict(num_layers=2, num_heads=2, mlp_dim=32),
    classifier="token",
)
HYBRID = dict(VIT, patches=dict(size=(1, 1)))
R26 = dict(HYBRID, resnet=dict(num_layers=(1, 1, 1, 1), width_factor=0.5))
BIG = dict(width=16, depth=2, num_heads=2, mlp_dim=32, patch_size=(4, 4), head_zeroinit=False)
FLEXI = dict(BIG, module="proj.flexi.vit", patch_size=(8, 8), posemb_size=(3, 3), call=dict(seqhw=2))
TIMM = dict(patch_size=4, embed_dim=16, depth=2, num_heads=2, mlp_ratio=2.0)
TIMM8, TIMM12 = dict(TIMM, img_size=8), dict(TIMM, img_size=12)
BIT, R50 = dict(layers=[1, 1, 1, 1], width_factor=0.5), dict(layers=[1, 1, 2], width_factor=0.5)
HF = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, patch_size=4)
HF12 = dict(HF, image_size=12)
DINO = dict(HF12, mlp_ratio=4, statistics=IMAGENET)
DINO.pop("intermediate_size")
FEATURES = dict(outputs="features", statistics=IMAGENET)
SIGLIP = dict(HF12, model="SiglipVisionModel", outputs="features")
TEXT = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
PE = dict(architecture="vit_pe_core_tiny_patch16_384", attn_pool_num_heads=4, attn_pool_mlp_ratio=2.0)
# Maps of 9 and 5 places a side, padded for windows of 4.
SWIN = dict(embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4, mlp_ratio=2.0)
TIMM_SWIN, HF_SWIN = dict(SWIN, img_size=36), dict(SWIN, image_size=36, statistics=IMAGENET)
LUCID = dict(patch_size=4, dim=16, depth=2, heads=2, dim_head=6, mlp_dim=32)

# Case: function, image's side or (height, width), arguments. The names in capitals are tables of small sizes, above.
TINY = {
    "vit_token": (vision_transformer, 8, dict(VIT, old=True)),
    "vit_gap": (vision_transformer, 12, dict(VIT, classifier="gap")),
    "vit_pre_logits": (vision_transformer, 8, dict(VIT, representation_size=16)),
    "hybrid_r50": (vision_transformer, 32, dict(HYBRID, resnet=dict(num_layers=(1, 1, 2), width_factor=0.5))),
    "hybrid_r26": (vision_transformer, 64, R26),
    "hybrid_r26_old": (vision_transformer, 64, dict(R26, old=True)),
    "hybrid_root_only": (
        vision_transformer,
        16,
        dict(VIT, patches=dict(size=(2, 2)), resnet=dict(num_layers=(), width_factor=0.5)),
    ),
    "bv_map": (big_vision, 8, dict(BIG, pool_type="map")),
    "bv_map_scanned": (big_vision, 8, dict(BIG, pool_type="map", scan=True)),
    "bv_tok": (big_vision, 12, dict(BIG, pool_type="tok")),
    "bv_gap_sincos": (big_vision, 12, dict(BIG, pool_type="gap", posemb="sincos2d", load=dict(image_size=12))),
    "bv_flexi": (
        big_vision,
        8,
        dict(FLEXI, pool_type="tok", load=dict(patch_size=4, image_size=8, resample="flexivit")),
    ),
    "bit_npz": (bit_npz, 32, BIT),
    "timm_bit": (timm_model, 32, dict(BIT, architecture="resnetv2_50x1_bit", build=bit)),
    "timm_vit": (timm_model, 8, dict(TIMM8, architecture="vit_base_patch16_224")),
    "timm_gap_fc_norm": (timm_model, 12, dict(TIMM12, architecture="vit_base_patch16_224", global_pool="avg")),
    "timm_gap": (
        timm_model,
        12,
        dict(TIMM12, architecture="vit_base_patch16_224", global_pool="avg", class_token=False),
    ),
    # The published gap models normalise before pooling; this one has no query, key and value biases either.
    "timm_gap_norm": (timm_model, 12, dict(TIMM12, architecture="vit_medium_patch16_gap_240")),
    "timm_distilled": (timm_model, 8, dict(TIMM8, architecture="deit_base_distilled_patch16_224")),
    "timm_dinov2": (timm_model, 12, dict(TIMM12, architecture="vit_base_patch14_reg4_dinov2")),
    "timm_reg_embed": (timm_model, 12, dict(TIMM12, architecture="vit_base_patch16_224", reg_tokens=4)),
    "timm_swiglu": (timm_model, 8, dict(TIMM8, architecture="vit_giant_patch14_dinov2", mlp_ratio=4.0)),
    "timm_siglip": (timm_model, 12, dict(TIMM12, architecture="vit_base_patch16_siglip_224")),
    "timm_siglip_tanh": (timm_model, 12, dict(TIMM12, architecture="vit_so400m_patch16_siglip_256")),
    "timm_hybrid": (timm_model, 32, dict(TIMM, **R50, architecture="vit_base_r50_s16_224", build=hybrid, patch_size=1)),
    "timm_dinov3": (timm_model, 12, dict(TIMM12, architecture="vit_small_patch16_dinov3_qkvb")),
    "timm_dinov3_plain": (
        timm_model,
        (8, 12),
        dict(TIMM, architecture="vit_small_plus_patch16_dinov3", img_size=(8, 12), global_pool="token"),
    ),
    "timm_eva02": (timm_model, 12, dict(TIMM12, architecture="eva02_tiny_patch14_224")),
    "timm_eva02_norm": (
        timm_model,
        (8, 12),
        dict(TIMM, architecture="eva02_base_patch14_448", img_size=(8, 12), ref_feat_shape=(3, 3)),
    ),
    "timm_pe": (timm_model, 12, dict(TIMM12, **PE)),
    "timm_pe_wide": (timm_model, (8, 20), dict(TIMM, **PE, img_size=(8, 20), ref_feat_shape=(3, 3))),
    "timm_pe_spatial": (
        timm_model,
        (8, 20),
        dict(TIMM, architecture="vit_pe_spatial_tiny_patch16_512", img_size=(8, 20), init_values=0.1),
    ),
    "hf_dinov3": (huggingface, 12, dict(HF12, model="DINOv3ViTModel", num_register_tokens=4, **FEATURES)),
    "hf_dinov3_gated": (
        huggingface,
        (8, 12),
        dict(HF, model="DINOv3ViTModel", image_size=(8, 12), use_gated_mlp=True, hidden_act="silu", **FEATURES),
    ),
    "hf_vit": (huggingface, 8, dict(HF, model="ViTForImageClassification", image_size=8)),
    "hf_deit": (
        huggingface,
        8,
        dict(HF, model="DeiTForImageClassificationWithTeacher", image_size=8, statistics=IMAGENET),
    ),
    "hf_dinov2": (huggingface, 12, dict(DINO, model="Dinov2ForImageClassification")),
    "hf_dinov2_swiglu": (huggingface, 12, dict(DINO, model="Dinov2ForImageClassification", use_swiglu_ffn=True)),
    "hf_dinov2_registers": (huggingface, 12, dict(DINO, model="Dinov2WithRegistersForImageClassification")),
    "hf_vit_state": (huggingface_state, 8, dict(HF, model="ViTForImageClassification", image_size=8)),
    "hf_dinov2_state": (
        huggingface_state,
        12,
        dict(DINO, model="Dinov2WithRegistersForImageClassification", use_swiglu_ffn=True),
    ),
    "hf_ijepa": (huggingface, 8, dict(HF, model="IJepaForImageClassification", image_size=8)),
    # Published files hold the text model too, and so this prefix; version 5 saves an image model's own names.
    "hf_siglip": (huggingface, 12, dict(SIGLIP, prefix="vision_model.")),
    "hf_siglip_bare": (huggingface, 12, SIGLIP),
    "hf_siglip_classifier": (
        huggingface,
        12,
        dict(model="SiglipForImageClassification", vision_config=HF12, text_config=TEXT),
    ),
    "timm_swin": (timm_model, 36, dict(TIMM_SWIN, architecture="swin_tiny_patch4_window7_224")),
    "timm_swinv2": (timm_model, 36, dict(TIMM_SWIN, architecture="swinv2_tiny_window8_256")),
    "hf_swin": (huggingface, 36, dict(HF_SWIN, model="SwinForImageClassification")),
    "hf_swin_state": (huggingface_state, 36, dict(HF_SWIN, model="SwinForImageClassification")),
    "hf_swinv2": (
        huggingface,
        36,
        dict(HF_SWIN, model="Swinv2ForImageClassification", pretrained_window_sizes=(6, 3)),
    ),
    "lucidrains": (lucidrains, 8, dict(LUCID, pool="cls")),
    "lucidrains_mean": (lucidrains, 12, dict(LUCID, pool="mean")),
    "own_encoder": (own, 8, dict(case="own_encoder")),
    "own_tutorial": (own, 12, dict(case="own_tutorial")),
    "own_sequential": (own, 8, dict(case="own_sequential")),
    "own_unfolded": (own, 12, dict(case="own_unfolded")),
}
HF_SWIN_T = dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), statistics=IMAGENET)
HF_SWIN_B = dict(embed_dim=128, depths=(2, 2, 18, 2), num_heads=(4, 8, 16, 32), statistics=IMAGENET)


def timm_sized(side, architecture):
    """A case: a model of timm at another image size than its own."""
    return timm_model, side, dict(architecture=architecture, img_size=side)


def hf_swin(sizes, side, window, version=""):
    """A case: a Swin of transformers."""
    model = f"Swin{version}ForImageClassification"
    return huggingface, side, dict(sizes, model=model, window_size=window, image_size=side)


VIT_FILES = {
    "b16": "ViT-B_16",
    "l16": "ViT-L_16",
    "h14": "ViT-H_14",
    "r26_s32": "R26+ViT-S_32",
    "r50_b16": "R50+ViT-B_16",
}
VIT_FILES["r_ti16"] = "R+ViT-Ti_16"
FULL = {
    **{f"vit_{name}": (vision_transformer, 224, dict(config=config)) for name, config in VIT_FILES.items()},
    **{
        f"vit_{name}_gap": (vision_transformer, 224, dict(config=config, classifier="gap"))
        for name, config in VIT_FILES.items()
    },
    "bv_b16_map": (big_vision, 224, dict(variant="B/16", pool_type="map")),
    "bv_b16_map_scanned": (big_vision, 224, dict(variant="B/16", pool_type="map", scan=True)),
    "timm_vit_b16": (timm_model, 224, dict(architecture="vit_base_patch16_224")),
    "timm_deit_b16_distilled": (timm_model, 224, dict(architecture="deit_base_distilled_patch16_224")),
    "timm_dinov2_b14_reg4": timm_sized(224, "vit_base_patch14_reg4_dinov2"),
    "timm_dinov3_s": timm_sized(256, "vit_small_patch16_dinov3_qkvb"),
    "timm_dinov3_s_wide": timm_sized((160, 224), "vit_small_patch16_dinov3_qkvb"),
    "timm_dinov3_s_plus": timm_sized(256, "vit_small_plus_patch16_dinov3"),
    "timm_dinov3_s_plus_wide": timm_sized((160, 224), "vit_small_plus_patch16_dinov3_qkvb"),
    "timm_pe_core_ti": (timm_model, 384, dict(architecture="vit_pe_core_tiny_patch16_384")),
    "timm_pe_core_ti_wide": timm_sized((160, 224), "vit_pe_core_tiny_patch16_384"),
    "timm_eva02_ti": (timm_model, 224, dict(architecture="eva02_tiny_patch14_224")),
    "timm_eva02_ti_wide": timm_sized((140, 196), "eva02_tiny_patch14_224"),
    "hf_dinov3_s_plus": (
        huggingface,
        (160, 224),
        dict(
            **{"model": "DINOv3ViTModel", "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
            **FEATURES,
        ),
    ),
    "timm_bit_50x1": (timm_model, 224, dict(architecture="resnetv2_50x1_bit")),
    "timm_swin_t": (timm_model, 224, dict(architecture="swin_tiny_patch4_window7_224")),
    "timm_swin_b_384": (timm_model, 384, dict(architecture="swin_base_patch4_window12_384")),
    "timm_swin_t_232": timm_sized(232, "swin_tiny_patch4_window7_224"),
    "timm_swinv2_t": (timm_model, 256, dict(architecture="swinv2_tiny_window8_256")),
    "timm_swinv2_b": (timm_model, 256, dict(architecture="swinv2_base_window12to16_192to256")),
    "timm_swinv2_t_248": timm_sized(248, "swinv2_tiny_window8_256"),
    "hf_swin_t": hf_swin(HF_SWIN_T, 224, 7),
    "hf_swin_b": hf_swin(HF_SWIN_B, 224, 7),
    "hf_swin_t_232": hf_swin(HF_SWIN_T, 232, 7),
    "hf_swinv2_t": hf_swin(HF_SWIN_T, 256, 8, "v2"),
    "hf_swinv2_b": hf_swin(HF_SWIN_B, 256, 16, "v2"),
    "hf_swinv2_t_248": hf_swin(HF_SWIN_T, 248, 8, "v2"),
    "hf_vit_b16": (huggingface, 224, dict(model="ViTForImageClassification")),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the small models' goldens")
    parser.add_argument("--full", type=pathlib.Path, help="write the full-size models' goldens, here, instead")
    parser.add_argument("--only", default="*", help="pattern of the cases to write")
    parser.add_argument("--vision_transformer", default="", help="checkout of google-research/vision_transformer")
    parser.add_argument("--big_vision", default="", help="checkout of google-research/big_vision")
    flags = parser.parse_args()
    sys.path += [flags.vision_transformer, flags.big_vision]
    cases, classes, scale, folder = (FULL, 1000, 0.03, flags.full) if flags.full else (TINY, 5, 0.2, flags.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in fnmatch.filter(cases, flags.only):
        run, side, arguments = cases[name]
        image = side if isinstance(side, tuple) else (side, side)
        write(folder / f"{name}.json", run(image, classes, scale, **arguments))
        print(name, flush=True)
    if not flags.full and fnmatch.fnmatch("resample", flags.only):
        write_resampling(folder / "resample.json")


if __name__ == "__main__":
    main()
