"""Images with texts: tables, TFRecords and classes as sources of token ids."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import ExampleErrors, evaluation_batches, open_source, training_batches
from keras_vit.data.captions import check_texts, image_and_tokens


def letters(texts):
    """A tokenizer: the codes of a text's first three letters."""
    return np.array([list(text.encode()[:3].ljust(3, b"\0")) for text in texts], "int32")


def words(ids):
    return {bytes(row.astype("uint8").tolist()).decode() for row in ids}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    for i in range(3):
        keras.utils.save_img(place / f"{i}.png", np.full((4, 4, 3), 80 * i), scale=False)
    return place


def table(folder, name, text):
    (folder / name).write_text(text)
    return f"{name.partition('.')[2]}:{folder / name}"


def texts_of(source):
    return [example["text"].numpy().decode() for example in source.ordered()]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", 'image,caption\n0.png,"a cat, black"\n1.png,a dog\n', ""),
        ("b.csv", 'image,words,text\n0.png,"a cat, black",x\n1.png,a dog,y\n', "?text=words"),
        ("c.jsonl", '{"path": "0.png", "text": "a cat, black"}\n{"path": "1.png", "text": "a dog"}', ""),
    ],
)
def test_a_table_may_have_texts(folder, name, content, options):
    source = open_source(table(folder, name, content) + options, "train")
    assert sorted(texts_of(source)) == ["a cat, black", "a dog"] and source.class_names == ()


def test_labels_come_first_unless_texts_are_asked_for(folder):
    path = table(folder, "d.csv", "image,label,text\n0.png,cat,a cat\n1.png,dog,a dog\n")
    assert "text" not in next(iter(open_source(path, "train").ordered()))
    both = next(iter(open_source(f"{path}?text=text&label=label", "train").ordered()))
    assert set(both) == {"image", "text", "label"}


def feature(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


@pytest.mark.extended
def test_of_several_texts_in_a_record_each_is_drawn_and_an_empty_one_fails_alone(folder):
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord")) as file:
        for i, texts in enumerate(([b"cat", b"pet"], [b"dog"], [b""])):
            fields = {"image": feature((folder / f"{i}.png").read_bytes()), "said": feature(*texts)}
            file.write(tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString())
    source, errors = open_source(f"tfrecord:{folder}/train*?image=image&text=said", "train"), ExampleErrors()
    select, preprocess = image_and_tokens(letters), "decode|resize(4, 4)"
    batches = training_batches(source, preprocess, 16, select=select, errors=errors)
    (images, ids), _ = next(batches.as_numpy_iterator())
    assert images.shape == (16, 4, 4, 3) and words(ids) == {"cat", "pet", "dog"}
    assert [reason for reason in errors.names.values() if "The text is empty" in reason]
    [(_, _, weights)] = evaluation_batches(source, preprocess, 3, select=select).as_numpy_iterator()
    assert weights.tolist() == [1, 1, 0]
    check_texts(source, letters)  # they differ
    with pytest.raises(ValueError, match="All texts of .*train.*, such as .* have the same token ids"):
        check_texts(source, lambda texts: np.zeros((len(texts), 3), "int32"))


def test_examples_without_texts_and_classes_are_refused(folder):
    source = open_source(f"images:{folder}", "train")
    with pytest.raises(ValueError, match='have no "text" and no class, only image'):
        training_batches(source, "decode|resize(4, 4)", 2, select=image_and_tokens(letters))
