"""A kernel and a bias, gradients for them, and the weights that optimizers reach with these: by our optimizers, and by
hand in float64.
"""

import keras
import numpy as np

from keras_vit.training import Lookahead, RectifiedAdam, StochasticWeightAveraging, WarmupSchedule


def variables():
    """A kernel and a bias, float32."""
    rng = np.random.default_rng(0)
    return [keras.Variable(rng.normal(size=(3, 2)), name="kernel"), keras.Variable(rng.normal(size=(2,)), name="bias")]


def gradients(step):
    """Gradients of the kernel and the bias at a step."""
    rng = np.random.default_rng(100 + step)
    return [rng.normal(size=shape).astype("float32") for shape in ((3, 2), (2,))]


def run(optimizer, steps=6):
    """The weights after `steps` steps."""
    weights = variables()
    optimizer.build(weights)
    for step in range(steps):
        optimizer.apply(gradients(step), weights)
    return [v.numpy() for v in weights]


RATES = WarmupSchedule(0.1, total=6, warmup=2)


def rate(step):
    """RATES, by hand."""
    return 0.1 * step / 2 if step < 2 else 0.05 * (1 + np.cos(np.pi * (step - 2) / 4))


def averages(optimizer):
    """The averaged weights that an optimizer keeps."""
    return [v.numpy() for v in optimizer._model_variables_moving_average]


def momentum_by_hand(steps, k=0, alpha=1.0):
    """The weights after each step of Momentum(0.1, decay=0.01), with Lookahead every k steps; float64."""
    weights, trajectory = [v.numpy().astype("float64") for v in variables()], []
    slow, velocity = [w.copy() for w in weights], [np.zeros_like(w) for w in weights]
    for t in range(1, steps + 1):
        for i, g in enumerate(gradients(t - 1)):
            velocity[i] = 0.9 * velocity[i] + g
            weights[i] = weights[i] - 0.1 * (velocity[i] + (0.01 * weights[i] if i == 0 else 0))
            if k and t % k == 0:
                slow[i] = slow[i] + alpha * (weights[i] - slow[i])
                weights[i] = slow[i].copy()
        trajectory.append([w.copy() for w in weights])
    return trajectory


def everything(start=3):
    """RectifiedAdam inside Lookahead inside weight averaging."""
    return StochasticWeightAveraging(
        Lookahead(RectifiedAdam(RATES, decay=0.1, global_clipnorm=1.0, layer_decay=0.8), k=2), start, every=2
    )
