"""The names of `keras_vit` itself: what it lists is there, and rooms load when they are touched."""

import importlib

import pytest

import keras_vit

ROOMS = ("data", "distribution", "evaluation", "inspection", "optim", "planning", "runs", "sharing", "tasks")


def test_every_public_name_is_there_and_listed():
    assert set(keras_vit.__all__) <= set(dir(keras_vit))
    assert all(hasattr(keras_vit, name) for name in keras_vit.__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_attributes_without_an_import(room):
    assert room in dir(keras_vit)
    assert keras_vit.__getattr__(room) is importlib.import_module(f"keras_vit.{room}")
    assert getattr(keras_vit, room) is keras_vit.__getattr__(room)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'keras_vit' has no attribute 'inspections'"):
        keras_vit.inspections  # noqa: B018
