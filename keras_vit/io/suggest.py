"""Hints for mistyped names, and for the words of other libraries."""

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """The valid names nearest to a mistyped one, best first; [] if none is near."""
    return difflib.get_close_matches(str(name), list(valid), n=count)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """' Did you mean "..."?' with the nearest valid name, or an empty string."""
    close = nearest(name, valid)
    return f' Did you mean "{close[0]}"?' if close else ""


# What other libraries call the arguments of a model: our word, and theirs.
_THEIR_WORDS = {
    "classes": "num_classes n_classes nb_classes nclasses num_labels n_labels",
    "class_names": "labels label_names id2label categories names",
    "image_size": "img_size imgsize imagesize input_size input_resolution resolution image_shape size",
    "channels": "in_chans in_channels num_channels input_channels n_channels",
    "dtype": "dtype_policy policy precision torch_dtype",
    "remat": "gradient_checkpointing grad_checkpointing checkpointing",
    "patch_size": "patch patches patch_shape",
    "depth": "num_layers num_hidden_layers n_layers layers transformer_layers num_blocks blocks",
    "width": "embed_dim embedding_dim hidden_size hidden_dim dim d_model projection_dim",
    "heads": "num_heads num_attention_heads n_heads nhead",
    "head_dim": "dim_head key_dim head_size",
    "mlp_dim": "mlp_ratio mlp_size intermediate_size intermediate_dim feedforward_dim dim_feedforward ffn_dim",
    "dropout": "dropout_rate drop_rate hidden_dropout_prob hidden_dropout_rate proj_drop_rate emb_dropout mlp_dropout drop",
    "attention_dropout": "attn_dropout attn_drop_rate attention_dropout_rate attention_probs_dropout_prob",
    "drop_path": "drop_path_rate stochastic_depth stochastic_depth_rate",
    "epsilon": "eps norm_eps layer_norm_eps layer_norm_epsilon",
    "layer_scale": "init_values layerscale_value layer_scale_init_value",
    "pool": "global_pool pool_type pooling",
    "registers": "reg_tokens num_registers num_register_tokens",
    "class_token": "cls_token use_class_token",
    "positions": "posemb pos_embed position_embedding position_embeddings",
    "pre_logits": "representation_size",
    "qkv_bias": "use_bias use_mha_bias use_qkv_bias",
    "gelu": "act_layer hidden_act activation mlp_activation",
    "mean": "image_mean pixel_mean",
    "std": "image_std pixel_std",
}
_OURS = {theirs: ours for ours, words in _THEIR_WORDS.items() for theirs in words.split()}
_LOAD = "Trained weights come with keras_vit.load(name), not with a constructor; keras_vit.list_models() lists the names."
# Arguments that have no counterpart, and what to write instead.
_INSTEAD = {
    **dict.fromkeys(("weights", "pretrained", "checkpoint", "pretrained_weights", "load_weights"), _LOAD),
    "include_top": "A model without a head is classes=None.",
    "input_shape": "The size of the images is image_size, a number or (height, width), and channels.",
    "input_tensor": "Call the model on the tensor: model(tensor).",
    "classifier_activation": "The model returns logits: leave it out, and apply a softmax to them or give the loss from_logits=True.",
    **dict.fromkeys(
        ("include_rescaling", "rescaling", "include_normalization"), "The model normalises pixels 0..255: leave it out."
    ),
    "trainable": "Set model.trainable, or use keras_vit.models.freeze.",
}


def argument_hint(name: str, valid: Iterable[str]) -> str:
    """What to write instead of the unknown argument `name` of a model, a sentence after a space, or an empty string.

    It is one of `valid` if another library calls that `name`, a sentence where there is no such argument, or else the nearest of `valid`.
    """
    valid, word = list(valid), str(name).lower()
    if word in _INSTEAD:
        return f" {_INSTEAD[word]}"
    return did_you_mean(_OURS[word] if _OURS.get(word) in valid else name, valid)
