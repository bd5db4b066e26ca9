"""Words for messages: counts, lists, and hints for misspelt names and other libraries' names."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# Other libraries' names for our arguments, by our name. The first valid one of ours is meant.
_ELSEWHERE = {
    ("attention_dropout",): "attn_dropout attention_dropout_rate attn_drop attn_drop_rate attention_probs_dropout_prob",
    ("channels",): "n_channels in_chans in_channels input_channels num_channels",
    ("class_names",): "categories names label_names labels id2label",
    ("classes",): "nclasses num_classes n_classes nb_classes num_labels",
    ("depth",): "transformer_layers blocks layers n_layers num_layers num_hidden_layers num_blocks",
    ("distillation_token",): "distilled",
    ("drop_path",): "stochastic_depth_rate drop_path_rate stochastic_depth stochastic_depth_prob",
    ("dropout",): (
        "drop drop_rate dropout_rate emb_dropout hidden_dropout_prob hidden_dropout_rate mlp_dropout pos_drop_rate"
        " proj_drop_rate"
    ),
    ("dtype",): "policy torch_dtype dtype_policy precision",
    ("epsilon",): "layer_norm_epsilon eps layer_norm_eps layernorm_eps norm_eps",
    ("mlp_activation",): "gelu activation activation_fn act act_layer hidden_act",
    ("head", "classes"): "include_top top",
    ("heads",): "n_heads nhead num_heads num_attention_heads",
    ("image_size",): "imagesize input_resolution size img_size imgsz image_shape input_shape input_size resolution",
    ("layer_scale",): "init_values layer_scale_init_value layerscale_value",
    ("mean",): "pixel_mean image_mean",
    ("mlp_form",): "mlp_layer ffn_layer use_swiglu_ffn swiglu_ffn swiglu",
    ("mlp_dim",): "intermediate_dim feedforward_dim ffn_dim dim_feedforward intermediate_size mlp_size",
    ("path",): "weights load_weights pretrained checkpoint ckpt filename model_name preset",
    ("norm_first",): "prenorm post_norm postnorm normalize_before",
    ("pool",): "pool_type global_pool pooling use_mean_pooling global_average_pool",
    ("registers",): "num_registers num_register_tokens reg_tokens",
    ("remat",): "grad_checkpointing checkpointing gradient_checkpointing",
    ("std",): "pixel_std image_std",
    ("class_token",): "cls_token use_class_token",
    ("head_dim",): "dim_head key_dim head_size",
    ("patch_size",): "patch patches patch_shape",
    ("positions",): "posemb pos_embed position_embedding position_embeddings use_abs_pos_emb use_rel_pos_bias",
    ("pre_logits",): "representation_size pooler_output_size",
    ("pre_logits_activation",): "pooler_act",
    ("qkv_bias",): "bias attention_bias use_bias use_mha_bias use_qkv_bias",
    ("width",): "projection_dim d_model dim embed_dim embedding_dim hidden_dim hidden_size",
}

_LOAD = (
    "Load trained weights with keras_vit.load(name), not with a constructor; keras_vit.list_models() lists the names."
)
# Arguments without a counterpart, with their replacements.
_SENTENCES = {
    **dict.fromkeys(("weights", "pretrained", "checkpoint", "pretrained_weights", "load_weights"), _LOAD),
    **dict.fromkeys(("mlp_ratio", "ffn_ratio"), "mlp_dim is the hidden width itself: width times the ratio."),
    **dict.fromkeys(
        ("norm_layer", "embed_norm_layer"), "Blocks normalise by LayerNormalization; epsilon sets its epsilon."
    ),
    "dynamic_img_size": "A model has one size: keras_vit.checkpoints.transfer(model, image_size=...) makes another.",
    "data_format": "Images are (height, width, channels), channels last.",
    "batch_first": "The batch is always the first axis of images and tokens: leave it out.",
    "include_top": "A model without a head is classes=None.",
    "input_shape": "The size of the images is image_size, a number or (height, width), and channels.",
    "input_tensor": "Call the model on the tensor: model(tensor).",
    "classifier_activation": (
        "The model returns logits: leave it out, and apply a softmax to them or give the loss from_logits=True."
    ),
    **dict.fromkeys(
        ("include_rescaling", "rescaling", "include_normalization"), "The model normalises pixels 0..255: leave it out."
    ),
    "trainable": "Set model.trainable, or use keras_vit.models.freeze.",
}


def counted(count: float, noun: str) -> str:
    """ "1 image", "2,310 images", "3 classes", "0.5 epochs"."""
    text = f"{count:,}" if isinstance(count, int) else f"{count:.4g}"
    plural = noun if text == "1" else noun + ("es" if noun.endswith(("s", "x")) else "s")
    return f"{text} {plural}"


def listed(names: list[str], most: int = 10) -> str:
    """ "a, b, c", with "..." after the first `most`."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _plain(name):
    return str(name).lower().replace("_", "").replace("-", "")


_LONGEST = 1000  # characters
_INSTEAD = {_plain(theirs): sentence for theirs, sentence in _SENTENCES.items()}
_OURS = {_plain(theirs): ours for ours, names in _ELSEWHERE.items() for theirs in names.split()}


def nearest(name: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """The valid names nearest to a misspelt one, best first; [] if none is near, or it is far longer than a name.

    Other libraries' names for our arguments precede similar spellings: "num_classes" is "classes".
    """
    if len(str(name)) > _LONGEST:  # comparing megabytes, which a service may receive, takes seconds
        return []
    valid = list(valid)
    meant = [ours for ours in _OURS.get(_plain(name), ()) if ours in valid]
    meant += [ours for ours in valid if _plain(ours) == _plain(name)]
    alike = difflib.get_close_matches(str(name), valid, n=max(count, 3))
    alike.sort(key=lambda word: not word.startswith(str(name)))  # "adam" is "adamw" rather than "radam"
    return list(dict.fromkeys([*meant, *alike]))[:count]


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """' Did you mean "..."?' with the nearest valid name, or an empty string."""
    close = nearest(name, valid)
    return f' Did you mean "{close[0]}"?' if close else ""


def check_known(name: Any, what: str, valid: Iterable[str], others: str = "") -> None:
    """ValueError, with the nearest valid name and all of them, unless `name` is one of `valid`.

    Args:
        what: what is named, for the message: "decay", "OWNER: decay" or "config.decay=".
        others: the end of the list of valid names, such as ", or None".
    """
    if not isinstance(name, str) or name not in valid:
        owner, _, noun = what.rpartition(": ")
        unknown = f"{owner}: unknown {noun}" if owner else f"Unknown {noun}"
        unknown += "" if noun.endswith("=") else " "
        shown = f'"{name}"' if isinstance(name, str) else repr(name)
        raise ValueError(f"{unknown}{shown}.{did_you_mean(str(name), valid)} Valid: {', '.join(valid)}{others}.")


def argument_hint(name: str, valid: Iterable[str]) -> str:
    """The replacement for a model's unknown argument `name`: a fixed sentence, or did_you_mean's hint."""
    return f" {_INSTEAD[_plain(name)]}" if _plain(name) in _INSTEAD else did_you_mean(name, valid)


def _paths(tree, above: str = "") -> Iterator[str]:
    """ "a", "a.b"... of the keys of nested mappings."""
    for name in tree:
        yield f"{above}{name}"
        if hasattr(tree[name], "keys"):
            yield from _paths(tree[name], f"{above}{name}.")


def did_you_mean_key(name: str, valid: Iterable[str], tree: Mapping) -> str:
    """did_you_mean's hint for a key that is absent from its section of nested mappings.

    Args:
        name: the key, without the sections above it.
        valid: the section's keys.
        tree: all mappings. The same key in another section comes first, then the nearest of `valid`, then the nearest
            anywhere.
    """
    paths = list(_paths(tree))
    named = {path: path.rpartition(".")[2] for path in paths}
    near = nearest(name, set(named.values()))
    found = (
        [path for path in paths if named[path] == name]
        or nearest(name, valid)
        or [p for p in paths if named[p] in near]
    )
    quoted = [f'"{path}"' for path in found]
    return f" Did you mean {' or '.join(quoted)}?" if quoted else ""


def pip_install(extras: str) -> str:
    """The command that installs the package with `extras`, such as "cpu,plan"."""
    return f'pip install "keras-vision-transformers[{extras}]"'
