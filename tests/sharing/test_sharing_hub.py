"""hf://: one commit that loads again, and what is said before anything is loaded or uploaded; against a local server
that speaks the hub's API.
"""

import logging
import re

import numpy as np
import pytest
from hub_stand_in import Repository, serving
from small_models import every_weight, pixels

import keras_vit
from keras_vit.sharing import share, write_folder
from keras_vit.sharing.card import OWN_WORDS_END, own_words
from keras_vit.sharing.share import find_place

pytest.importorskip("huggingface_hub")
ADDRESS = "hf://anna/flowers"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path / "cache") as hub:
        yield hub


@pytest.mark.extended
def test_a_saved_model_loads_again_with_the_same_logits(hub):
    model = every_weight()
    keras_vit.save(model, ADDRESS, license="apache-2.0")
    repository = hub.repositories["anna/flowers"]
    assert [message for message, _ in repository.commits] == ["initial commit", "vit, shared by keras_vit"]
    assert not repository.private
    loaded = keras_vit.load(ADDRESS)
    np.testing.assert_array_equal(loaded(pixels(3)), model(pixels(3)))
    assert loaded.class_names == model.class_names
    as_arrays = keras_vit.load(f"{ADDRESS}/model.safetensors")
    np.testing.assert_array_equal(as_arrays(pixels(3)), model(pixels(3)))


def test_a_further_model_is_one_more_commit_without_files_of_the_earlier_one(hub, caplog):
    files = {"model.safetensors": b"old", "pictures/old.png": b"old", "notes.txt": b"of anna's own"}
    hub.repositories["anna/flowers"] = Repository(commits=[("earlier", files)])
    model = keras_vit.ViT(
        "Ti/8", image_size=16, classes=None, depth=1, width=32, heads=2, mlp_dim=64, positions="rope2d"
    )
    with caplog.at_level(logging.INFO, "absl"):
        keras_vit.save(model, ADDRESS, license="mit")
    assert "exists: adding a commit" in caplog.text
    commits = hub.repositories["anna/flowers"].commits
    assert len(commits) == 2 and set(commits[1][1]) == {"README.md", "model.keras", "notes.txt"}
    assert not [path for method, path in hub.seen if path == "/api/repos/create"]


def test_your_own_words_on_the_page_stay(hub, caplog):
    keras_vit.save(every_weight(), ADDRESS, license="mit")
    repository, words = hub.repositories["anna/flowers"], "## Limits\n\nNot for <!-- wild --> mushrooms."
    assert "Your own words" not in caplog.text and "no section" not in caplog.text
    card = repository.files["README.md"].decode()
    edited = card.replace(OWN_WORDS_END, f"\n{words}\n\n{OWN_WORDS_END}").replace("\n", "\r\n").encode()
    repository.commits.append(("by anna", repository.files | {"README.md": edited}))
    keras_vit.save(every_weight(), ADDRESS, license="apache-2.0")
    again = repository.files["README.md"].decode()
    assert own_words(again, "") == words and "license: apache-2.0" in again and again.count("Your own words") == 1
    repository.commits.append(("by anna", repository.files | {"README.md": again.replace(OWN_WORDS_END, "").encode()}))
    assert "only one of the two lines around your own words" in refusal(ADDRESS, "mit")


@pytest.mark.parametrize("part", ["/commit/", "/lfs/"])
def test_an_upload_that_fails_leaves_what_was_there(hub, part):
    hub.repositories["anna/flowers"] = Repository(commits=[("earlier", {"README.md": b"good"})])
    hub.fails[part] = 400
    with pytest.raises(ConnectionError, match="The repository is unchanged; run this again"):
        keras_vit.save(every_weight(), ADDRESS, license="mit")
    assert hub.repositories["anna/flowers"].commits == [("earlier", {"README.md": b"good"})]


def test_a_branch_that_moved_meanwhile_is_not_overwritten(hub, tmp_path):
    hub.repositories["anna/flowers"] = Repository()
    write_folder(every_weight(), tmp_path / "shared", ADDRESS, "mit")
    place, _ = find_place(ADDRESS, "mit")
    place.check(False)
    hub.repositories["anna/flowers"].commits.append(("by ben", {"README.md": b"ben's"}))
    with pytest.raises(ConnectionError, match="changed by someone else meanwhile"):
        place.upload(tmp_path / "shared", "mine", False)
    assert hub.repositories["anna/flowers"].files == {"README.md": b"ben's"}


def refusal(*arguments, **options):
    """What `share` says of a model that does not exist: all of this is known before it is loaded."""
    with pytest.raises((ValueError, OSError, ImportError)) as error:
        share("no/such/model.keras", *arguments, **options)
    return f"{type(error.value).__name__}: {error.value}"


@pytest.mark.parametrize(
    ("address", "license", "words"),
    [
        ("hf://flowers", "mit", "ValueError: .*expected hf://USER/NAME"),
        ("hf://anna/flowers@main", "mit", "ValueError: .*expected hf://USER/NAME.*main branch"),
        ("hf://anna/flowers/model.keras", "mit", "ValueError: .*expected hf://USER/NAME"),
        ("hf://anna/-flowers", "mit", "ValueError: .*not a valid repository name"),
        ("https://huggingface.co/anna/flowers", "mit", "ValueError: .*expected hf://USER/NAME .Hugging Face."),
        ("kaggle://anna/flowers/keras/tiny", "mit", "ValueError: .*kagglehub.model_upload"),
        ("anna/flowers", "mit", "ValueError: .*not an address for sharing models"),
        (ADDRESS, None, "ValueError: .*Pass a licence.*apache-2.0"),
        (ADDRESS, "apache2.0", 'ValueError: Unknown licence "apache2.0". Did you mean "apache-2.0"'),
        (
            "hf://ben/flowers",
            "mit",
            "PermissionError: .*token on this machine belongs to anna.*may not write.*anna or the-lab",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_before_a_model_is_loaded(hub, address, license, words):
    assert re.search(words, refusal(address, license))
    assert not hub.repositories


def test_a_token_is_missing_wrong_or_only_reads(monkeypatch, tmp_path):
    with serving(monkeypatch, tmp_path, token=None) as hub:
        assert "hf auth login" in refusal(ADDRESS, "mit") and not hub.seen
    with serving(monkeypatch, tmp_path, token="hf_expired"):
        assert "PermissionError" in refusal(ADDRESS, "mit")
    with serving(monkeypatch, tmp_path) as hub:
        hub.user["auth"]["accessToken"]["role"] = "read"
        assert "read-only" in refusal(ADDRESS, "mit")


def test_without_a_network_the_dry_run_is_named(hub):
    hub.close()
    said = refusal(ADDRESS, "mit")
    assert said.startswith("ConnectionError") and "--dry_run writes the folder without a network" in said


def test_private_is_not_ignored_for_a_public_repository(hub):
    hub.repositories["anna/flowers"] = Repository()
    assert "exists and is public" in refusal(ADDRESS, "mit", private=True)


def test_a_model_that_nobody_could_use_is_refused(hub):
    model = keras_vit.ViT("Ti/8", image_size=16, classes=3, depth=1, width=32, heads=2, mlp_dim=64)
    with pytest.raises(ValueError, match="all zeros.*untrained=True"):
        keras_vit.save(model, ADDRESS, license="mit")
    assert not hub.repositories
    keras_vit.save(model, ADDRESS, license="mit", untrained=True)
    assert keras_vit.load(ADDRESS).has_zero_head()


@pytest.mark.extended
def test_the_run_of_another_model_is_refused(hub, finished):
    with pytest.raises(ValueError, match="is not the run of this model"):
        keras_vit.save(every_weight(), ADDRESS, license="mit", run=finished)
    with pytest.raises(ValueError, match="is not a run"):
        keras_vit.save(every_weight(), ADDRESS, license="mit", run=finished / "checkpoints")


def test_options_of_sharing_are_for_addresses(tmp_path):
    with pytest.raises(ValueError, match="license: only for an address"):
        keras_vit.save(every_weight(), tmp_path / "model.keras", license="mit")
    with pytest.raises(ValueError, match='leave format="timm" out'):
        keras_vit.save(every_weight(), ADDRESS, format="timm", license="mit")
