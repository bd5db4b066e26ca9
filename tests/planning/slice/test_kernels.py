"""planning.slice.kernels: schedules as libtpu writes them."""

from keras_vit.planning.slice.kernels import folder, read_schedules


def test_bundles_of_each_instruction_are_read_once(tmp_path):
    schedule = "Schedule analysis:\n\ttotal scheduled bundles:    {}\n\tempty scheduled bundles:    9\n"
    for name, bundles in (("attention_forward.1", 3458), ("fusion.12", 77)):
        (tmp_path / f"1795413008085912955-{name}-71-schedule-analysis_final_bundles.txt").write_text(
            schedule.format(bundles)
        )
        (tmp_path / f"1795413008085912955-{name}-72-final_bundles.txt").write_text("0x1 LB: > { }")
    assert read_schedules(tmp_path) == {"attention_forward.1": 3458, "fusion.12": 77}
    assert read_schedules(tmp_path) == {} and not list(tmp_path.iterdir())


def test_libtpu_is_told_where_beside_what_the_user_tells_it(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_own=1")
    folder.cache_clear()
    import os

    path = folder()
    assert path.is_dir()
    assert os.environ["LIBTPU_INIT_ARGS"].startswith("--xla_own=1 ")
    assert str(path) in os.environ["LIBTPU_INIT_ARGS"]
    assert folder() == path
    folder.cache_clear()
