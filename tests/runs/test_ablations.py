"""Every way to take a model apart is a key of a config and of a sweep: it reaches the model, and the studies' points
are what they say.
"""

import pytest

from keras_vit.data.open import open_source
from keras_vit.runs import training_run
from keras_vit.runs.grid import at, parse_grid
from keras_vit.tasks import find_task
from trainers import config_files

ABLATIONS = (
    "model.depth=2|model.width=32|model.mlp_dim=48|model.heads=2|model.patch_size=4,1|model.pool=gap,map,token_gap|model.registers=2"
    "|model.drop_path=0.1|model.layer_scale=0.1|model.qk_norm=True|model.conv_stem=(8,16);model.conv_strides=(2,1);model.patch_size=1"
    "|model.positions=none,sincos1d,rope2d|model.positions=learned2d;model.positions_at=every|model.mlp_activation=gelu_tanh|model.mlp_form=swiglu"
)


@pytest.fixture(scope="module")
def digits():
    return open_source("digits", "train")


@pytest.mark.extended
def test_each_ablation_of_a_vit_reaches_the_model(digits, without_values):
    config = config_files.load_config("study_positions:digits")
    with without_values():
        plain = find_task(config.task)(config).build(digits).spec
        for point in parse_grid(ABLATIONS, config).points():
            model = find_task(config.task)(at(config, point)).build(digits)
            for key, value in point.items():
                name = key.removeprefix("model.")
                wanted = (value, value) if name == "patch_size" else value
                assert getattr(model.spec, name) == wanted != getattr(plain, name), point


@pytest.mark.extended
def test_a_resnet_takes_a_step_with_either_optimizer(tmp_path, monkeypatch, eagerly):
    """And plain Adam is AdamW without decay."""
    monkeypatch.setattr(training_run, "finish", lambda prepared, model, *_: (model, {"top1": 0.0, "examples": 8}))
    for name, kind in (("adamw", "AdamW"), ("momentum", "Momentum")):
        config = at(config_files.load_config("study_optimizer:digits"), {"optimizer.name": name})
        config.update(total="1 steps", evaluate="1 steps", checkpoint="1 steps", batch_size=8)
        config.data.update(train="train[:16]", evaluation="train[16:24]")
        config.model.units = (1,)
        model, _ = training_run.run(config, tmp_path / name)
        assert model.optimizer.name == name and type(model.optimizer).__name__ == kind


@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_table_8_has_its_eight_cells_and_figure_8_its_lines(data):
    config = config_files.load_config(f"study_positions:{data}")
    points = parse_grid(config.sweep, config).points()
    cells = {(p["model.positions"], p.get("model.positions_at", "stem")) for p in points}
    table_8 = {("none", "stem"), ("relative", "stem")}
    table_8 |= {(kind, at) for kind in ("learned", "learned2d") for at in ("stem", "every", "shared")}
    assert table_8 < cells
    config = config_files.load_config(f"study_shape:{data}")
    points = parse_grid(config.sweep, config).points()
    alone, together = [p for p in points if len(p) == 1], [p for p in points if len(p) == 4]
    dimensions = {f"model.{name}" for name in ("depth", "width", "mlp_dim", "patch_size")}
    assert {key for p in alone for key in p} == set(together[0]) == dimensions
    for key, value in together[1].items():  # each line meets the others there
        assert {key: value} in alone
