"""Several seeds: each in its directory, mean and standard deviation at the end."""

import json

import pytest

from keras_vit.distribution.strategy import Strategy
from keras_vit.runs.seeds import run_seeds
from keras_vit.tasks import Classification
from trainers import config_files

ONE, SCORE = Strategy(), Classification.score


def test_three_seeds_end_in_mean_and_standard_deviation(tmp_path, capsys):
    config = config_files.load_config("digits_pretrain")
    config.seed = 5
    seen = []

    def run(config, workdir):
        seen.append(config.seed)
        workdir.mkdir(parents=True)
        lines = [json.dumps({"step": step, "val_accuracy": step / 10}) for step in (2, 4)]
        (workdir / "metrics.jsonl").write_text("\n".join(lines))
        return {"top1": {5: 0.90, 6: 0.92, 7: 0.97}[config.seed], "loss": 0.5, "examples": 360, "per_class": [1.0]}

    found = run_seeds(config, tmp_path, run, ONE, SCORE, 3)
    assert seen == [5, 6, 7] and config.seed == 5
    # Of .90, .92, .97: mean .93; deviations -.03, -.01, .04: sqrt(.0026 / 2).
    assert found == pytest.approx(
        {"top1": 0.93, "top1_std": 0.036055513, "loss": 0.5, "loss_std": 0.0, "examples": 360}
    )
    assert "top-1 93.00 +- 3.61% over 3 seeds (90.00, 92.00, 97.00)" in capsys.readouterr().out
    written = json.loads((tmp_path / "runs.json").read_text())
    assert written["mean"]["top1"] == pytest.approx(0.93) and set(written["seeds"]) == {"5", "6", "7"}
    assert (tmp_path / "runs.png").read_bytes().startswith(b"\x89PNG")
    run_seeds(config, tmp_path, run, ONE, SCORE, 3)
    assert seen == [5, 6, 7]  # all are finished


def test_one_seed_is_a_plain_run_and_none_an_error(tmp_path):
    config = config_files.load_config("digits_pretrain")
    assert run_seeds(config, tmp_path, lambda c, w: {"top1": 0.5}, ONE, SCORE, 1) == {"top1": 0.5}
    assert not (tmp_path / "runs.json").exists()
    with pytest.raises(ValueError, match="--runs must be 1 or more, got 0"):
        run_seeds(config, tmp_path, None, ONE, SCORE, 0)


def test_only_the_chief_writes(tmp_path):
    config = config_files.load_config("digits_pretrain")
    run_seeds(config, tmp_path, lambda c, w: {"top1": 0.5}, Strategy(hosts=2, host=1), SCORE, 2)
    assert not list(tmp_path.rglob("*"))
