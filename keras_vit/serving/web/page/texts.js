// Labels and pictures compared, as the package's zero_shot does. Runs in browsers and Node.js.

// SigLIP's texts are in lower case without punctuation, SigLIP 2's in lower case; CLIP's tokenizer does what it needs.
const CLEAN = {
  clip: text => text,
  siglip2: text => text.toLowerCase(),
  siglip: text => text.toLowerCase().replace(/[!-/:-@[-`{-~]/g, "").replace(/\s+/g, " ").trim(),
};

// The ids of a text's tokens, begun, cut, ended and padded to the full length.
export function tokens(text, about, encode) {
  const {kind, length, start, end, pad} = about, ids = encode(CLEAN[kind](text)).slice(0, length - start.length - 1);
  return Int32Array.from([...start, ...ids, end, ...new Array(length - start.length - 1 - ids.length).fill(pad)]);
}

function normalised(vector) {
  const length = Math.hypot(...vector);
  return vector.map(value => value / length);
}

// The embedding of a label: the normalised mean of those of its texts, lists of numbers.
export function mean(embeddings) {
  return normalised(embeddings[0].map((_, i) => embeddings.reduce((sum, each) => sum + each[i], 0) / embeddings.length));
}

// The probabilities of labels for a picture, from their embeddings.
export function fitting(picture, labels, {scale, bias, activation}) {
  const logits = labels.map(label => scale * label.reduce((sum, value, i) => sum + value * picture[i], 0) + bias);
  if (activation === "sigmoid") return logits.map(value => 1 / (1 + Math.exp(-value)));
  const highest = Math.max(...logits), powers = logits.map(value => Math.exp(value - highest));
  return powers.map(value => value / powers.reduce((sum, each) => sum + each, 0));
}
