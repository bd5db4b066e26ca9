"""The block's two dense layers with a GELU between (the paper's section 3.1), or a SwiGLU (arXiv 2002.05202)."""

import functools

import keras
from keras import ops

from keras_vit.layers.dense import Dense
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.randomness import fold_in
from keras_vit.layers.registration import serializable

GELUS = ("erf", "tanh")
MLPS = ("gelu", "swiglu")


def check_gelu(form, owner):
    """Raises ValueError unless `form` names a form of GELU; `owner` begins the message."""
    if form not in GELUS:
        raise ValueError(f"{owner}: unknown gelu {form!r}. Valid forms: {', '.join(GELUS)}.")


def check_mlp(form, owner):
    """Raises ValueError unless `form` names a form of MLP; `owner` begins the message."""
    if form not in MLPS:
        raise ValueError(f"{owner}: unknown mlp_form {form!r}. Valid forms: {', '.join(MLPS)}.")


@serializable
class MlpBlock(keras.layers.Layer):
    """Dense, GELU, dropout, dense, dropout; or with SwiGLU, two dense layers x and y side by side and silu(x) y in place of the GELU.

    Args:
        mlp_dim: the hidden width.
        gelu: "erf" (exact: timm, Hugging Face) or "tanh" (the approximation of the original JAX code). It belongs to the weights.
        dropout: rate behind both dense layers.
        form: "gelu" or "swiglu" (DINOv2-g).

    Input and output (b, n, d). SwiGLU keeps its two kernels as one, "hidden", (d, 2 x mlp_dim).
    """

    def __init__(self, mlp_dim, gelu="erf", dropout=0.0, form="gelu", **kwargs):
        super().__init__(**kwargs)
        check_gelu(gelu, "MlpBlock")
        check_mlp(form, "MlpBlock")
        self.mlp_dim = mlp_dim
        self.gelu = gelu
        self.dropout = dropout
        self.form = form

    def build(self, input_shape):
        init = {"bias_initializer": keras.initializers.RandomNormal(stddev=1e-6), "dtype": self.dtype_policy}
        if self.form == "swiglu":
            self.hidden = Dense(2 * self.mlp_dim, name="hidden", **init)
        else:
            gelu = functools.partial(keras.activations.gelu, approximate=self.gelu == "tanh")
            self.hidden = Dense(self.mlp_dim, activation=gelu, name="hidden", **init)
        self.hidden.build(input_shape)
        self.out = Dense(input_shape[-1], name="out", **init)
        self.out.build((*input_shape[:-1], self.mlp_dim))
        self.hidden_dropout = Dropout(self.dropout, dtype=self.dtype_policy, name="hidden_dropout")
        self.out_dropout = Dropout(self.dropout, dtype=self.dtype_policy, name="dropout")

    def call(self, x, training=False, drawn=None):
        """`drawn` is a seed of (2,) integers for both dropouts, in place of their own."""
        inner = None if drawn is None else fold_in(drawn, 1)
        x = self.hidden(x)
        if self.form == "swiglu":
            gate, x = ops.split(x, 2, axis=-1)  # (b, n, mlp_dim) each
            x = ops.silu(gate) * x
        x = self.hidden_dropout(x, training=training, drawn=inner)
        return self.out_dropout(self.out(x), training=training, drawn=drawn)

    def compute_output_shape(self, input_shape, **_):
        return input_shape

    def get_config(self):
        names = "mlp_dim gelu dropout form"
        return {**super().get_config(), **{name: getattr(self, name) for name in names.split()}}
