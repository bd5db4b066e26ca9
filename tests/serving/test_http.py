"""The HTTP service, called in this process: what it answers, what it refuses, and with which words."""

import base64
import copy
import io
import json
import struct

import numpy as np
import pytest
from forest import IMAGES, NAMES, PREDICT, answering, instances, png, predictions, small_vit
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from keras_vit.inspection import attention_maps, head_maps
from keras_vit.serving.http import sizes as sizes_module
from keras_vit.serving.http.app import application
from keras_vit.serving.http.bodies import MOST_MEGAPIXELS, Limits, Refused
from keras_vit.serving.http.served import Served
from keras_vit.serving.http.sizes import check_size


@pytest.fixture(scope="module")
def client(forest):
    served = [forest, Served("plain", small_vit(None))]
    with answering(application(served, Limits(megabytes=0.2, images=4, megapixels=1, seconds=20))) as client:
        yield client


@pytest.mark.extended
def test_json_a_form_and_raw_bytes_are_answered_as_classify_does(client, vit):
    expected = vit.classify([png(image) for image in IMAGES], top_k=2)
    found = predictions(client.post(PREDICT, json=instances(*map(png, IMAGES))))
    form = [("image", (f"{i}.png", png(image), "image/png")) for i, image in enumerate(IMAGES)]
    assert predictions(client.post(PREDICT, files=form)) == found
    for kind in ("image/png", "application/octet-stream"):
        answer = client.post(PREDICT, content=png(IMAGES[0]), headers={"Content-Type": kind})
        np.testing.assert_allclose(predictions(answer)[0]["probabilities"], found[0]["probabilities"], atol=1e-6)
    for row, best in zip(found, expected):
        assert row["classes"] == [guess.name for guess in best] and row["status"] == "ok"
        np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in best], atol=1e-6)


@pytest.mark.extended
def test_the_column_form_has_a_list_for_each_output(client):
    rows = predictions(client.post(PREDICT, json=instances(png(IMAGES[0]), b"junk")))
    inputs = instances(png(IMAGES[0]), b"junk")["instances"]
    for given in (inputs, {"encoded_images": inputs}):
        outputs = client.post(PREDICT, json={"inputs": given}).json()["outputs"]
        assert outputs["classes"] == [rows[0]["classes"], None] and outputs["status"][0] == "ok"


def test_a_broken_image_fails_alone(client):
    rows = predictions(client.post(PREDICT, json=instances(png(IMAGES[0]), b"", b"<html>", png(IMAGES[1]))))
    assert [row["status"] == "ok" for row in rows] == [True, False, False, True]
    assert rows[1] == {"status": "It is empty: there are no bytes."}
    assert rows[2]["status"].startswith("It cannot be decoded as an image")


def test_features_attention_and_heads_are_those_of_the_package(client, vit):
    image = png(IMAGES[0])
    [row] = predictions(client.post("/v1/models/forest:attention", content=image))
    np.testing.assert_allclose(row["attention"], attention_maps(vit, IMAGES[:1])[0], atol=1e-5)
    [row] = predictions(client.post("/v1/models/forest:features", content=image))
    [same] = predictions(client.post(PREDICT, json=instances(image, signature_name="encoded_features")))
    assert np.shape(row["features"]) == (16,)
    np.testing.assert_allclose(row["features"], same["features"], atol=1e-6)
    form = {"image": ("a.png", image), "signature_name": (None, "encoded_features")}
    assert predictions(client.post(PREDICT, files=form))[0].keys() == row.keys()
    answer = client.post("/v1/models/forest:heads?block=0", content=image).json()
    np.testing.assert_allclose(answer["heads"], head_maps(vit, IMAGES[:1], [0])[0][0], atol=1e-5)
    seen = Image.open(io.BytesIO(base64.b64decode(answer["image"].partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(seen), IMAGES[0])


def test_a_model_without_classes_predicts_features(client):
    [row] = predictions(client.post("/v1/models/plain:predict", content=png(IMAGES[0])))
    assert np.shape(row["features"]) == (16,) and row["status"] == "ok"


def large_gif():
    """A GIF whose screen is 8 x 8 pixels and its frame 1500 x 1500."""
    file = io.BytesIO()
    Image.new("L", (1500, 1500)).save(file, "GIF")
    return file.getvalue()[:6] + struct.pack("<HH", 8, 8) + file.getvalue()[10:]


def refused_requests():
    """(status, words, the request, its address if not PREDICT) of each; a request is bytes or arguments of post."""
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    huge, bomb, with_text, text = io.BytesIO(), io.BytesIO(), io.BytesIO(), PngInfo()
    Image.new("L", (1500, 1500)).save(huge, "PNG")
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    text.add_text("a", "b" * 2_000_000, zip=True)  # for which Pillow refuses to open it
    Image.new("L", (1500, 1500)).save(with_text, "PNG", pnginfo=text)
    other_first = huge.getvalue()[:8] + b"\0\0\0\x08aaAa" + b"\0\0\0\x08" * 2 + bytes(4) + huge.getvalue()[8:]
    field = {"Content-Type": "multipart/form-data; boundary=x; charset=utf-7"}
    part = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\nx\r\n'
    half_form = part % (b"i", b'; filename="i"') + part % (b"+2AA-", b"") + b"--x--"
    image, kind, heads = png(IMAGES[0]), lambda name: {"Content-Type": name}, "/v1/models/forest:heads"
    rows, file = instances(image), ("a.png", image)

    def signed(name, *images):
        return {"json": instances(*images, signature_name=name)}

    return [
        (400, "The body is empty", b""),
        (400, "It cannot be decoded as an image", b"\0\1\2"),
        (400, "It cannot be decoded as an image", image[:60]),
        (400, "The body is not JSON", dict(content=b"{", headers=kind("application/json"))),
        (400, "is not JSON", dict(content=b"[" * 100_000, headers=kind("application/json"))),
        (400, 'expected {"instances"', dict(json=[1])),
        (400, "There are no images", dict(json={"instances": []})),
        (400, 'Image 0: expected {"b64"', dict(json={"instances": [1]})),
        (400, "Image 0: this is not base64", dict(json={"instances": [{"b64": "ü!"}]})),
        (400, "got ['model']", dict(json={**rows, "model": "x"})),
        (400, '"forest" has no signature "encoded_feature". Did you mean "encoded_features"? Valid: serving_default',
         signed("encoded_feature", image)),
        (400, "The multipart form cannot be read", dict(content=b"--y\r\n", headers=form)),
        (400, "The form has no file", dict(files={"image": (None, "x")})),
        (415, '"text/html" is not read', dict(content=b"x", headers=kind("text/html"))),
        (413, "5 images, of 4 at most", dict(json=instances(*[image] * 5))),
        (413, "The body has 300,000 bytes, of 200,000 at most", b"x" * 300_000),
        (413, "1500 x 1500 pixels, of 1 million at most", huge.getvalue()),
        (413, "It has 20000 x 20000 pixels, of 1 million at most", bomb.getvalue()),
        (413, "1500 x 1500 pixels, of 1 million at most", with_text.getvalue()),
        (400, "the PNG does not begin with its header", other_first),
        (413, "1500 x 1500 pixels", b"BM" + bytes(12) + struct.pack("<iii", 40, 1500, -1500)),
        (413, "1500 x 1500 pixels, of 1 million at most", large_gif()),
        (400, "the header of the WebP is damaged", b"RIFF....WEBPVP8 "),
        (400, 'has no signature "\\ud800"', json.dumps(signed("\ud800", b"")["json"]).encode()),
        (400, 'the text field "\\ud800", which nothing reads', dict(content=half_form, headers=field)),
        (400, '"forest" has no signature "xxx', signed("x" * 100_000, b"")),
        (400, "such as JPEG or PNG, not pixels. Send", dict(json={"instances": IMAGES.tolist()})),
        (400, "Image 0: this is a list. This service takes", dict(json={"instances": [{"images": [[[0]]]}]})),
        (400, "These bytes are a PNG image, not JSON: send them as image/png or application/octet-stream.",
         dict(content=image, headers=kind("application/json"))),
        (400, "Use --data-binary @FILE.",
         dict(content=image.translate(None, b"\r\n\0"), headers=kind("application/x-www-form-urlencoded"))),
        (400, 'no signature "attention". For image files it is "encoded_attention".', signed("attention", image)),
        (400, "such as JPEG or PNG, not pixels. Send", signed("pixels_uint8", image)),
        (404, '"forest" has no version "2", only version 1.', image, "/v1/models/forest/versions/2:predict"),
        (413, "many more values than 4 images", dict(json={"instances": [{}] * 1000})),
        (404, 'There is no model "wood". Served: forest, plain.', b"x", "/v1/models/wood:predict"),
        (400, "the model has blocks 0 to 1", image, heads + "?block=7"),
        (400, "one image at a time; the request has 2", dict(json=instances(image, image)), heads),
        (400, 'leave "signature_name" out', signed("encoded_features", image), heads),
        (400, 'send "instances", not "inputs"', dict(json={"inputs": rows["instances"]}), heads),
        (400, 'the text field "signature", which nothing reads. Did you mean "signature_name"?',
         dict(files={"image": file, "signature": (None, "encoded_features")})),
        (400, '"forest" has no signature "feature"', dict(files={"image": file, "signature_name": (None, "feature")})),
        (400, "It cannot be decoded as an image", b"junk", heads),
        (404, 'Did you mean "forest"?', b"x", "/v1/models/florest:predict"),
        (404, 'Did you mean "predict"? Valid: :predict, :features', b"x", "/v1/models/forest:predct"),
        (404, "Images are sent to /v1/models/forest:predict.", b"x", "/v1/models/forest"),
        (400, 'no parameter "top_k". Valid: threshold, tiles.', image, PREDICT + "?top_k=3"),
        (400, 'Did you mean "block"?', b"x", heads + "?blok=1"),
        (415, "Content-Encoding: gzip", dict(content=b"x", headers={"Content-Encoding": "gzip"})),
        (404, "There is nothing at /v1/modells. /docs lists", b"x", "/v1/modells"),
        (405, "/v1/models takes GET, not POST.", b"x", "/v1/models"),
        (422, "integer", image, heads + "?block=x"),
    ]  # fmt: skip


@pytest.mark.extended
def test_what_cannot_be_answered_says_why(client):
    for status, words, request, *address in refused_requests():
        arguments = {"content": request} if isinstance(request, bytes) else request
        answer = client.post(*(address or [PREDICT]), **arguments)
        assert answer.status_code == status and words in answer.json()["error"], (words, address, answer.text)
        assert len(answer.content) < 3000, words


@pytest.mark.extended
def test_long_headers_are_not_read_by_pillow(monkeypatch):
    """It takes minutes for these, in Python and with copies of all that came before."""
    jpeg, gif = io.BytesIO(), large_gif()
    Image.new("L", (300, 200)).save(jpeg, "JPEG")
    padded = b"\xff\xd8" + b"\xff" * 1_000_000 + jpeg.getvalue()[3:]
    at = gif.index(struct.pack("<BHHHH", 0x2C, 0, 0, 1500, 1500))
    commented = gif[:at] + b"!\xfe" + (b"\xff" + b"c" * 255) * 4_000 + b"\0" + gif[at:]
    monkeypatch.setattr(sizes_module, "open_with_pillow", lambda *_: pytest.fail("read by Pillow"))
    for image, words in ((padded, "300 x 200"), (commented, "1500 x 1500")):
        with pytest.raises(Refused, match=f"It has {words} pixels, of 0.01 million at most"):
            check_size(image, 0.01)


def test_a_jpeg_is_not_gone_over_thousands_of_times():
    """A file of a megabyte may tell the decoder to go over all pixels 100,000 times."""
    jpeg = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype="uint8")).save(
        jpeg, "JPEG", progressive=True
    )
    assert jpeg.getvalue().count(b"\xff\xda") == 10
    check_size(jpeg.getvalue(), 0.06)
    with pytest.raises(Refused, match="It is a JPEG of 300 x 200 pixels in 60 scans"):
        check_size(jpeg.getvalue() + 50 * b"\xff\xda", 0.06)


def test_an_animation_is_as_large_as_its_first_frame(forest):
    """Its other frames are not read, however large they are."""
    small = io.BytesIO()
    Image.fromarray(IMAGES[0][..., 0]).save(small, "GIF")
    large = large_gif()
    frame = large[large.index(struct.pack("<BHHHH", 0x2C, 0, 0, 1500, 1500)) : -1]
    animated = small.getvalue()[:-1] + frame * 3 + b";"
    check_size(animated, 0.001)
    served = copy.copy(forest)
    np.testing.assert_array_equal(served.decode_with_size(animated)[0], served.decode_with_size(small.getvalue())[0])


def test_a_body_without_a_stated_length_is_read_no_further_than_the_limit(client):
    def chunks():
        for _ in range(1000):
            yield b"x" * 1000

    answer = client.post(PREDICT, content=chunks())
    assert answer.status_code == 413 and "larger than 200,000 bytes" in answer.json()["error"]


def test_status_metadata_health_and_pages(client):
    assert client.get("/healthz").json() == {"status": "alive"} and client.get("/readyz").json() == {"status": "ready"}
    assert client.get("/v1/models/forest").json()["model_version_status"][0]["state"] == "AVAILABLE"
    assert client.get("/v1/models/wood").status_code == 404
    metadata = client.get("/v1/models/forest/metadata").json()
    assert metadata["class_names"] == list(NAMES) and "encoded_attention" in metadata["signatures"]
    models = client.get("/v1/models").json()["models"]
    assert [model["name"] for model in models] == ["forest", "plain"] and models[0] == metadata
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/models/{name}:predict", "/readyz"} <= set(paths)
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "://" not in page.text.replace("http://www.w3.org", ""), "nothing from elsewhere"
    assert "default-src 'none'" in client.get("/").headers["Content-Security-Policy"]
    for name, kind in (("answers.js", "javascript"), ("style.css", "css")):  # also those of exported pages
        assert f'"/page/{name}"' in client.get("/").text
        headers = client.get(f"/page/{name}").headers
        assert kind in headers["Content-Type"] and headers["Cache-Control"] == "no-cache" and headers["ETag"]


def test_head_and_a_slash_at_the_end_are_as_get_and_without(client):
    model = "/v1/models/forest"
    for path in ("/", "/docs", "/healthz", "/readyz", "/metrics", "/v1/models", model, f"{model}/metadata"):
        answer, head = client.get(path), client.head(path)
        assert head.status_code == 200 and head.content == b""
        assert head.headers["Content-Type"] == answer.headers["Content-Type"]
        slash = client.get(f"{path}/")
        assert slash.status_code == 200 and (slash.content == answer.content or path == "/metrics")
    row = predictions(client.post(PREDICT, content=png(IMAGES[0])))
    assert predictions(client.post("/v1/models/forest:predict/", content=png(IMAGES[0]), follow_redirects=False)) == row
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        answer = client.request(method, PREDICT)
        assert answer.status_code == 405 and "POST" in answer.headers["Allow"] + answer.text, answer.text
    assert client.get(PREDICT).json() == {"error": "/v1/models/forest:predict takes POST, with images."}


def test_version_1_is_the_model(client):
    model = "/v1/models/forest"
    for path in (model, f"{model}/metadata"):
        versioned = path.replace("forest", "forest/versions/1")
        assert client.get(versioned).status_code == 200 and client.get(versioned).json() == client.get(path).json()
    for verb in ("predict", "features"):
        answers = [client.post(f"{model}{part}:{verb}", content=png(IMAGES[0])) for part in ("", "/versions/1")]
        assert predictions(answers[0]) == predictions(answers[1])
    assert client.get(f"{model}/versions/12/metadata").status_code == 404
    assert client.get("/v1/models/wood/versions/1").status_code == 404


def test_what_was_asked_is_counted(client):
    client.post(PREDICT, content=png(IMAGES[0]))
    client.post("/v1/models/" + "x" * 50 + ":predict", content=b"")
    lines = client.get("/metrics").text.splitlines()
    counted = next(line for line in lines if 'code="200",model="forest",signature="serving_default"' in line)
    assert float(counted.split()[-1]) >= 1
    assert not any("xxx" in line for line in lines), "names that callers invent are no labels"
    assert 'keras_vit_waiting_rows{model="forest"} 0.0' in lines


def test_the_largest_image_is_no_larger_than_pillow_looks_at():
    assert MOST_MEGAPIXELS * 1e6 <= 2 * Image.MAX_IMAGE_PIXELS
    with pytest.raises(ValueError, match="megapixels=250: images of 178 million pixels at most"):
        Limits(megapixels=250)
    with pytest.raises(ValueError, match="top_k must be a positive integer, got 0"):
        Served("m", small_vit(), top_k=0)


def test_a_model_that_predicts_nothing_is_refused():
    model = small_vit()
    model.get_layer("head").kernel.assign(np.zeros((16, 3)))
    model.refuses_zero_head = True
    with pytest.raises(ValueError, match="The head is all zeros"):
        Served("m", model)
