"""Colours of tokens: principal components over all images at once, and which side of the first is the foreground."""

import numpy as np
import pytest

from keras_vit.inspection import foreground, token_colours


def objects(b=3, h=8, w=8, d=12):
    """(features (b, h, w, d), mask (b, h, w)): two kinds of tokens, one of them inside, with a gradient of their
    own.
    """
    rng = np.random.default_rng(0)
    mask = np.zeros((b, h, w), bool)
    mask[:, 2:6, 2:6] = True
    features = 0.01 * rng.normal(size=(b, h, w, d))
    features[mask] += 5 * rng.normal(size=d)
    features[..., 0] += 0.3 * np.arange(w)
    return features, mask


def test_colours_are_the_scores_of_all_images_together_stretched():
    features = np.random.default_rng(0).normal(size=(2, 3, 4, 5)) * np.array([9, 5, 3, 0.1, 0.1])
    x = features.reshape(-1, 5) - features.reshape(-1, 5).mean(0)
    _, _, vt = np.linalg.svd(x, full_matrices=False)
    scores = x @ (vt[:3] * np.sign(vt[np.arange(3), np.abs(vt[:3]).argmax(1)])[:, None]).T
    low, high = np.percentile(scores, 1, axis=0), np.percentile(scores, 99, axis=0)
    expected = np.clip((scores - low) / (high - low), 0, 1).reshape(2, 3, 4, 3)
    np.testing.assert_allclose(token_colours(features), expected, atol=1e-5)


def test_the_foreground_is_what_the_borders_lack_and_is_coloured_alone():
    features, mask = objects()
    np.testing.assert_array_equal(foreground(features), mask)
    np.testing.assert_array_equal(foreground(-features), mask)
    colours = token_colours(features, mask)
    assert (colours[~mask] == 0).all()
    np.testing.assert_allclose(
        colours[mask], token_colours(features[mask].reshape(3, 4, 4, -1)).reshape(-1, 3), atol=1e-10
    )


def test_few_tokens_and_few_channels():
    assert token_colours(np.arange(8.0).reshape(1, 2, 2, 2)).shape == (1, 2, 2, 3)
    assert np.isfinite(token_colours(np.ones((1, 2, 2, 4)))).all()
    assert foreground(np.ones((1, 1, 1, 4))).shape == (1, 1, 1)
    with pytest.raises(ValueError, match="needs at least 2 tokens, but the mask leaves 1 of 4"):
        token_colours(np.ones((1, 2, 2, 4)), np.arange(4).reshape(1, 2, 2) == 2)
