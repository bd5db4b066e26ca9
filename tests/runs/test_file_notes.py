"""What is said of a run's image files before it starts."""

import numpy as np
import pytest

from keras_vit.data import open_source
from keras_vit.runs.file_notes import file_notes, not_exported

pil = pytest.importorskip("PIL.Image")
CROPPED, SQUEEZED = "decode|resize(36)|central_crop(32)", "decode|resize(32, 32)"


@pytest.fixture
def photos(tmp_path):
    """photos(name=(width, height)): the source of a folder with one image per name, named by its format's ending."""

    def write(**sizes):
        for name, size in sizes.items():
            image = pil.fromarray(np.zeros(size[::-1], "uint8"))
            image.save(tmp_path / f"{name.partition('_')[0]}.{name.partition('_')[2]}")
        return open_source(f"images:{tmp_path}", "train")

    return write


def test_a_long_image_is_named_with_what_the_model_sees(photos, tmp_path):
    source = photos(a_png=(30, 89), b_jpg=(20, 300), c_png=(40, 30))
    (cropped,) = file_notes(source, CROPPED)
    assert cropped.startswith(f"{tmp_path}/b.jpg has 20 x 300 pixels, and the evaluation sees only the middle of it")
    assert '--config.data.eval_preprocess="decode|resize(32, 32)"' in cropped
    (squeezed,) = file_notes(source, SQUEEZED)
    assert "it is squeezed" in squeezed and "--config" not in squeezed


def test_formats_that_an_export_refuses_are_named(photos, tmp_path):
    source = photos(a_png=(30, 30), b_tif=(30, 30), c_gif=(30, 30))
    assert not_exported(source) == {"TIFF": f"{tmp_path}/b.tif"}
    (note,) = file_notes(source, CROPPED)
    assert note.startswith(f"Some images are TIFF, such as {tmp_path}/b.tif. An exported SavedModel reads only JPEG,")


def test_usual_images_are_not_mentioned(photos):
    assert list(file_notes(photos(a_png=(30, 89), b_jpg=(40, 30)), CROPPED)) == []
