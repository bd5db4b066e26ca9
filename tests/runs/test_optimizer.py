"""The optimizer of a resolved config."""

import contextlib

import pytest

from keras_vit.runs.optimizer import check_options, make_optimizer
from keras_vit.training import AdamW, Lookahead, Momentum, Muon, RectifiedAdam, StochasticWeightAveraging
from trainers import config_files

RESOLVED = {
    "total": 100,
    "schedule": {"warmup": 10, "decay": "cosine", "cooldown": 0},
    "optimizer": {
        "name": "radam",
        "learning_rate": 0.1,
        "weight_decay": 0.2,
        "clip_norm": 1.0,
        "beta_2": 0.99,
        "momentum": 0.8,
        "layer_decay": None,
        "ema": None,
        "swa": None,
        "lookahead": None,
        "lookahead_rate": 0.5,
    },
}


def configured(**changes):
    return make_optimizer({**RESOLVED, "optimizer": {**RESOLVED["optimizer"], **changes}})


def test_configs_name_their_optimizers():
    assert type(configured()) is RectifiedAdam and configured().beta_2 == 0.99 and configured().decay == 0.2
    assert type(configured(name="adamw", ema=0.9)) is AdamW and configured(name="adamw", ema=0.9).ema_momentum == 0.9
    assert type(configured(name="momentum")) is Momentum and configured(name="momentum").momentum == 0.8
    muon = configured(name="muon")
    assert type(muon) is Muon and (muon.momentum, muon.beta_2) == (0.8, 0.99)
    optimizer = configured(lookahead=4, lookahead_rate=0.8, swa=75)
    assert (type(optimizer), optimizer.start, type(optimizer.inner_optimizer)) == (
        StochasticWeightAveraging,
        75,
        Lookahead,
    )
    assert (optimizer.inner_optimizer.k, optimizer.inner_optimizer.alpha) == (4, 0.8)
    optimizer = configured(lookahead=4, ema=0.9)
    assert optimizer.use_ema and optimizer.ema_momentum == 0.9 and not optimizer.inner_optimizer.use_ema
    with pytest.raises(ValueError, match="swa begins at step 100 of 100"):
        configured(swa=100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"name": "momentum", "beta_2": 0.95},
            r"momentum does not use some .* Set --config.optimizer.beta_2=0.999 \(it is 0.95\).",
        ),
        (
            {"name": "adamw", "momentum": 0.95},
            r"adamw does not use some .* Set --config.optimizer.momentum=0.9 \(it is 0.95\).",
        ),
        ({"lookahead_rate": 0.8}, "adamw without lookahead does not use"),
        ({"name": "muon", "momentum": 0.95, "beta_2": 0.95, "lookahead": 5, "lookahead_rate": 0.8}, None),
        ({"ema": 1.0}, r"optimizer.ema=1.0: expected a number from 0 to below 1, such as 0.9999"),
        ({"ema": -0.5}, r"optimizer.ema=-0.5: expected a number from 0 to below 1"),
        ({"name": "adam"}, 'Unknown optimizer "adam". Did you mean "adamw". Valid: adamw, radam, momentum, muon'),
        ({"ema": 0.9, "swa": 75}, "one kind of averaged weights"),
    ],
)
def test_options_that_the_optimizer_does_not_read_are_refused(options, message):
    section = config_files.packaged("lib.common").base().optimizer
    check_options(section)  # the defaults are the config's own
    section.update(options)
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        check_options(section)
