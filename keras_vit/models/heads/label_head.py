"""Classification: tokens pooled to one feature vector per image, then a linear layer (the paper's section 3.1)."""

import keras

from keras_vit.layers.blocks.mlp import DENSE_ACTIVATIONS
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.models.checks import output_policy
from keras_vit.models.spec import ViTSpec


def linear(features, classes: int, bias: float, policy, name: str = "head"):
    """The linear head: (b, d) -> logits (b, classes). Its kernel starts at zero, as in the paper, its bias at `bias`.

    Logits are computed in full precision under every policy but a keras.dtype_policies.DTypePolicyMap with an entry for
    the head's name.
    """
    head = keras.layers.Dense(
        classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias),
        dtype=output_policy(policy, name),
        name=name,
    )
    return head(features)


def pool(tokens, spec: ViTSpec, policy, sizes=None):
    """Tokens to the image's features: (b, n, d) -> (b, d); (b, 2d) for token_gap; (b, pre_logits) with a hidden layer.

    With `sizes` (b, n), means and attention count each token as often as its size.
    """
    weighted = {} if sizes is None else {"sizes": sizes}
    token = TokenPooling(dtype=policy, name="pool" if spec.pool == "token" else "pool_token")
    skipped = 0 if spec.pool == "mean" else spec.prefix
    mean = MeanPooling(skipped, dtype=policy, name="pool_gap" if spec.pool == "token_gap" else "pool")
    if spec.pool == "token":
        x = token(tokens)
    elif spec.pool in ("gap", "mean"):
        x = mean(tokens, **weighted)
    elif spec.pool == "token_gap":
        x = keras.layers.Concatenate(dtype=policy, name="pool")([token(tokens), mean(tokens, **weighted)])
    else:
        attention = AttentionPooling(
            spec.pool_heads or spec.heads,
            spec.mlp_dim,
            mlp_activation=spec.mlp_activation,
            epsilon=spec.epsilon,
            dtype=policy,
            name="pool",
        )
        x = attention(tokens, **weighted)
    if spec.fc_norm:
        x = keras.layers.LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="fc_norm")(x)
    if spec.pre_logits:
        x = keras.layers.Dense(
            spec.pre_logits, DENSE_ACTIVATIONS[spec.pre_logits_activation], dtype=policy, name="pre_logits"
        )(x)
    return x


def classify(tokens, spec: ViTSpec, classes: int | None, policy, sizes=None):
    """Tokens to (features, outputs): (b, n, d) -> (b, d), logits (b, classes), or the features without classes.

    With a distillation token, features and logits are the means of two heads (DeiT, arXiv 2012.12877).
    """
    features = pool(tokens, spec, policy, sizes)
    if not spec.distillation_token:
        return features, features if classes is None else linear(features, classes, spec.head_bias, policy)
    distilled = TokenPooling(1, dtype=policy, name="pool_dist")(tokens)
    mean = keras.layers.Average(dtype=policy, name="features")([features, distilled])
    if classes is None:
        return mean, mean
    logits = [
        linear(features, classes, spec.head_bias, policy, "head"),
        linear(distilled, classes, spec.head_bias, policy, "head_dist"),
    ]
    return mean, keras.layers.Average(dtype=output_policy(policy, "heads"), name="heads")(logits)
