"""What a file does not show: the questions that its format leaves open, and the one error that asks them all."""

from collections.abc import Collection, Mapping
from typing import Any

# {argument of `load`: its meaning}, in the order of the line to paste.
MEANINGS = {
    "heads": "the number of attention heads",
    "mean": (
        "with std, how pixels 0..255 are normalised: mean=0, std=255 if they are only divided by 255; mean=127.5,"
        " std=127.5 for [-1, 1]; mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375) for ImageNet's"
    ),
    "std": "see mean",
    "norm_first": (
        "True for x + attention(norm(x)), as in timm; False for norm(x + attention(x)), the default of"
        " nn.TransformerEncoderLayer"
    ),
    "mlp_activation": (
        '"gelu", as in timm, "gelu_tanh", "quick_gelu", "silu" or "relu", the default of nn.TransformerEncoderLayer'
    ),
    "pre_logits_activation": 'between the two dense layers of the head: "tanh", "gelu", "relu"...',
    "pool": (
        'what the head reads: "token" (the class token), "gap" (the mean of the patches) or "mean" (of all tokens)'
    ),
    "epsilon": (
        "of the normalisations: 1e-05 is the default of nn.LayerNorm; timm has 1e-06, Hugging Face's ViT 1e-12"
    ),
    "pre_logits": (
        "the width of ViTModel's pooler, {usual}, if the head reads pooler_output; None if it reads"
        " last_hidden_state[:, 0]"
    ),
    "channels": "of the images: how many values a pixel has",
    "image_size": "pixels, a side or (height, width) of the images that the weights were trained on",
    "window": "the side of a window, in patches",
    "pretrained_windows": (
        "the windows of pre-training, one per stage, if the weights were fine-tuned with larger ones; {usual} if not"
    ),
    "rope_grid": "the side of the patch grid of pre-training, in whose units rotary positions measure",
    "pool_heads": "the number of heads in the attention pool",
    "decoder_heads": "the number of attention heads in the decoder; 16 in the published ones",
    "normalise_targets": "whether the decoder predicts pixels normalised in each patch (norm_pix_loss)",
    "mask_ratio": "the share of patches that training masks; 0.75 in the published ones",
}


class Unanswered(ValueError):
    """A file that does not show all that its model computes.

    Args:
        path: of the file.
        sentences: on other errors.
        open: {argument: usual value} of what is missing.
        values: {argument: value} that the call should also have.
        source: where the user finds the missing values.
    """

    def __init__(
        self,
        path: object,
        sentences: Collection[str],
        open: Mapping[str, Any],
        values: Mapping[str, Any],
        source: str = "model's code",
    ) -> None:
        self.path, self.sentences, self.open, self.source = path, list(sentences), dict(open), source
        self.values = dict(values)
        super().__init__(self._text(path, {}))

    def for_call(self, path: object, call: Mapping[str, Any]) -> "Unanswered":
        """The same error with the line of a call: `path` and {argument: value} as in the call."""
        error = Unanswered(self.path, self.sentences, self.open, self.values, self.source)
        error.args = (error._text(path, call),)
        return error

    def _text(self, path, call):
        lines = [f'"{self.path}": {self.sentences[0]}', *self.sentences[1:]] if self.sentences else []
        if self.open:
            lines.append(f'"{self.path}" does not say what its model computes. Look up in the {self.source}:')
            names = [name for name in MEANINGS if name in self.open]
            lines += [f"  {name}: {MEANINGS[name].format(usual=self.open[name])}" for name in names]
        line = {**call, **self.values}
        if self.open or line != call:  # otherwise it would be the failed call again
            asked = [name for name in MEANINGS if name in self.open]
            shown = [f"{name}={value!r}" for name, value in line.items() if name not in self.open]
            shown += [f"{name}=?" for name in asked]
            text = ", ".join(shown)
            lines.append("Then call, with your values for each question mark:" if "?" in text else "Call:")
            lines.append(f'  keras_vit.load("{path}", {text})')
        return "\n".join(lines)


class Options(dict):
    """Arguments of `load` for values that a file does not state; records the questions that stay open.

    Args:
        answers: {argument: value}.
        noted: {argument: value} in the file, next to the arrays.
        asks: whether to ask; False for a published file, or one of this package, which has the usual values.

    Attributes:
        open: {argument: usual value} of the questions without an answer.
    """

    def __init__(self, answers: Mapping[str, Any] = {}, noted: Mapping[str, Any] = {}, asks: bool = True) -> None:
        super().__init__(answers)
        self.noted, self.asks = dict(noted), asks
        self.open: dict[str, Any] = {}

    def replaced(self, **others: Any) -> "Options":
        """A copy with other values, which records questions in the same place."""
        copy = Options({**self, **others}, self.noted, self.asks)
        copy.open = self.open
        return copy

    def value(self, name: str, usual: Any, stated: Any = None, certain: bool = False) -> Any:
        """The argument `name`: as the config states it, the user or the file's notes; else the usual value, asked for.

        Args:
            usual: of published files in the format.
            stated: by a config, or None.
            certain: whether a missing value is the usual one, by a config's other settings or the format's code.
        """
        for known in (stated, self.get(name), self.noted.get(name)):
            if known is not None:
                return known
        if self.asks and not certain:
            self.open.setdefault(name, usual)
        return usual
