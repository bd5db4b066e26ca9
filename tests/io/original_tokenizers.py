"""Writes tokenizers.json: small tokenizers of CLIP, SigLIP and SigLIP 2, and the numbers that transformers gives.

pip install transformers tokenizers sentencepiece protobuf        # in another environment
python tests/io/original_tokenizers.py [--count=1000 --out=FILE]
"""

import argparse
import base64
import io
import json
import pathlib
import random
import tempfile

import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer, Siglip2Tokenizer, SiglipTokenizer
from transformers import __version__ as version

FILE = pathlib.Path(__file__).parent / "tokenizers.json"
ROOT = pathlib.Path(__file__).parents[2]
LENGTHS = {"clip": 77, "siglip2": 64, "siglip": 64}
LETTERS = "abcXYZ 019 .,!?'-_éüßñçÅØłŻΣσςΩжЯЖשלוםالعربية日本語中文한국어😀🚀👩‍👧🇩🇪\u200b\u3000\u00a0¨´½ﬁ①Ⅻ…“”’–\t\n"
RULES = {
    "\u2581": " ",
    "\u200b": " ",
    "\u3000": " ",
    "\u00a0": " ",
    "¨": " \u0308",
    "´": " \u0301",
    "½": "1\u20442",
    "ﬁ": "fi",
    "①": "1",
}
ODD = [
    *("", " ", "  a  cat ", "a photo of a cat.", "A PHOTO OF A DOG!!!", "\tx\n\ny\r\n", "don't I'll we're it's", "…"),
    *("a " * 200, "word " * 70, "x" * 500, "ΣΊΣΥΦΟΣ Σ ΑΣ. ΟΔΟΣ", "İstanbul ISPARTA", "!!!", "1234567890 3.14", "ẞ Ǆ"),
    *("e\u0301 \u00e9", "\u0130", "naïve café über straße", "¨leading", "trailing¨", "a\u200bb", "ﬁne ½ cup"),
]


def corpus():
    """Sentences to train on."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    return [line[:300] for page in pages for line in page.read_text().splitlines() if len(line) > 40][:1200]


def strings(sentences, count):
    """Texts of words, letters and any characters, some far too long."""
    rng, words, found = random.Random(0), sum((s.split() for s in sentences), []), list(ODD)
    ranges = ((0x20, 0x2FFF), (0x3040, 0xD7FF), (0x1F300, 0x1F9FF))
    while len(found) < count:
        kind = rng.random()
        if kind < 0.5:
            found.append(" ".join(rng.choice(words) for _ in range(rng.choice((3, 8, 12, 70)))))
        elif kind < 0.8:
            found.append("".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 30))))
        else:
            parts = [(f"{rng.choice(words)} ", chr(rng.randint(*rng.choice(ranges)))) for _ in range(rng.randint(1, 9))]
            found.append("".join(rng.choice(pair) for pair in parts))
    special = ("<|", "</s>", "<unk>", "<eos>", "<pad>", "<bos>", "<mask>")  # in a text these are special tokens
    return [text for text in found if not any(name in text for name in special)]


def clip(sentences):
    """A CLIPTokenizer with 400 merges or fewer."""
    letters, own = sorted(pre_tokenizers.ByteLevel.alphabet()), CLIPTokenizer()._tokenizer
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = own.normalizer, own.pre_tokenizer
    options = {"initial_alphabet": letters, "end_of_word_suffix": "</w>", "show_progress": False}
    tokenizer.train_from_iterator(sentences, trainers.BpeTrainer(vocab_size=600, **options))
    model = json.loads(tokenizer.to_str())["model"]
    names = [*model["vocab"], *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return CLIPTokenizer(vocab=vocabulary, merges=[tuple(pair) for pair in model["merges"]])


def siglip2(sentences):
    """A Siglip2Tokenizer, of Gemma's form."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([sentence.lower() for sentence in sentences], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return Siglip2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def siglip(sentences, whole):
    """The content of a spiece.model of c4_en's form; with `whole` normalised as that one, in 200 kB, or by RULES."""
    model, lower = io.BytesIO(), iter([sentence.lower() for sentence in sentences])
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for letters, others in RULES.items():
            file.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (letters, others)) + "\n")
        file.flush()
        rules = {} if whole else {"normalization_rule_tsv": file.name}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lower, model_writer=model, vocab_size=400, minloglevel=2, **special, **rules
        )
    return model.getvalue()


def numbers(kind, tokenizer, texts):
    """The numbers of each text up to its end, or all of a full one."""
    if kind == "siglip2":  # Siglip2Tokenizer without its published file adds no end
        given = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return [row[: LENGTHS[kind] - 1] + [tokenizer.eos_token_id] for row in given]
    found = tokenizer(texts, truncation=True, max_length=LENGTHS[kind])["input_ids"]
    return [list(row) for row in found]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--out", type=pathlib.Path, default=FILE)
    arguments = parser.parse_args()
    sentences = corpus()
    texts, files, found = strings(sentences, arguments.count), {}, {}
    for kind, make in (("clip", clip), ("siglip2", siglip2)):
        tokenizer = make(sentences)
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            content = json.loads(pathlib.Path(folder, "tokenizer.json").read_text())
        files[kind] = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        found[kind] = numbers(kind, tokenizer, texts)
    model = siglip(sentences, arguments.count > 500)
    with tempfile.NamedTemporaryFile(suffix=".model") as file:
        file.write(model)
        file.flush()
        found["siglip"] = numbers("siglip", SiglipTokenizer(file.name), texts)
    files["siglip"] = base64.b64encode(model).decode()
    fields = {"library": f"transformers {version}", "files": files, "texts": texts, "numbers": found}
    arguments.out.write_text(json.dumps(fields, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
