"""RectifiedAdam against its paper's formulas in numpy, and against torch."""

import decimal

import keras
import numpy as np
import pytest
from trajectories import gradients, run, variables

from keras_vit.optim.rectified_adam import approximated_length
from keras_vit.training import RectifiedAdam

# torch 2.15.0, torch.optim.RAdam(lr=.1, betas=(.9, .999), eps=1e-12, weight_decay=.1, decoupled_weight_decay=True) in
# float64 on the kernel and gradients of trajectories.py: after step 5 (its last unrectified one), 6 and 20.
TORCH = {
    5: [[0.338318, -0.058071], [0.275193, 0.043153], [-0.276336, 0.082035]],
    6: [[0.33453, -0.057923], [0.270606, 0.043456], [-0.27309, 0.080441]],
    20: [[0.265347, -0.05489], [0.207066, 0.057532], [-0.238043, 0.034545]],
}


def by_hand(steps, lr, beta_1=0.9, beta_2=0.999, epsilon=1e-8, decay=0.0, threshold=4.0):
    """Algorithm 2 in float64: (weights, the steps that were rectified)."""
    weights = [v.numpy().astype("float64") for v in variables()]
    m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
    rho_inf, rectified = 2 / (1 - beta_2) - 1, []
    for t in range(1, steps + 1):
        rho = rho_inf - 2 * t * beta_2**t / (1 - beta_2**t)
        for i, g in enumerate(gradients(t - 1)):
            m[i] = beta_1 * m[i] + (1 - beta_1) * g
            v[i] = beta_2 * v[i] + (1 - beta_2) * g.astype("float64") ** 2
            update = m[i] / (1 - beta_1**t)
            if rho > threshold:
                r = np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
                update = r * update / (np.sqrt(v[i] / (1 - beta_2**t)) + epsilon)
                rectified += [t] if i == 0 else []
            weights[i] = weights[i] - lr * (update + (decay * weights[i] if i == 0 else 0))
    return weights, rectified


@pytest.mark.extended
@pytest.mark.parametrize(("beta_2", "first"), [(0.999, 5), (0.9, 5), (0.7, 6)])
def test_the_papers_algorithm_and_its_unrectified_first_steps(beta_2, first):
    expected, rectified = by_hand(20, 0.1, beta_2=beta_2, epsilon=0.01, decay=0.1)
    assert rectified == list(range(first, 21))
    for steps in (4, 5, 20):
        expected, _ = by_hand(steps, 0.1, beta_2=beta_2, epsilon=0.01, decay=0.1)
        for ours, theirs in zip(run(RectifiedAdam(0.1, beta_2=beta_2, epsilon=0.01, decay=0.1), steps), expected):
            np.testing.assert_allclose(ours, theirs, atol=5e-6)


@pytest.mark.parametrize("steps", TORCH)
def test_with_a_threshold_of_five_it_is_torchs(steps):
    kernel, _ = run(RectifiedAdam(0.1, epsilon=1e-12, decay=0.1, threshold=5), steps)
    np.testing.assert_allclose(kernel, TORCH[steps], atol=3e-6)


@pytest.mark.parametrize("beta_2", [0.7, 0.9, 0.99, 0.999, 0.9999])
def test_the_length_of_the_average_is_accurate_in_float32(beta_2):
    """Against its definition with 50 decimals; naively in float32, it is off by hundredths near the threshold of 4."""
    with decimal.localcontext(prec=50):
        beta = decimal.Decimal(str(beta_2))
        for t in (1, 2, 4, 5, 6, 50, 599, 601, 6000, 100_000):
            expected = 2 / (1 - beta) - 1 - 2 * t * beta**t / (1 - beta**t)
            ours = float(approximated_length(keras.ops.convert_to_tensor(float(t)), beta_2))
            assert ours == pytest.approx(float(expected), rel=2e-6)


def test_it_round_trips_and_refuses_what_has_no_rectification():
    optimizer = RectifiedAdam(0.1, beta_2=0.99, decay=0.2, layer_decay=0.5, threshold=5.0, global_clipnorm=1.0)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(copy) is RectifiedAdam and copy.get_config() == optimizer.get_config()
    with pytest.raises(ValueError, match="beta_2 above 0.6.*Got beta_2=0.5"):
        RectifiedAdam(beta_2=0.5)
