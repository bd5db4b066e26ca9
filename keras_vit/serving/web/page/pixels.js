// From a picture to a model's pixels, by the ops of its preprocessing, as the package computes them with TensorFlow.
//
// An image is {data, height, width, channels}: numbers 0..255, row by row, channels last. A frame is the top, left,
// bottom and right of what an image shows, as fractions of the picture. Runs in browsers and Node.js.

export const WHOLE = [0, 0, 1, 1];
const PLENTY = 2 ** 25;  // pixels that an image may have

// Rounds halves to even, as TensorFlow does.
export function round(value) {
  const low = Math.floor(value), rest = value - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}

// The pixels of a canvas, RGBA, as an image of 3 channels, or of 1.
export function decoded({data, height, width}, channels) {
  const count = height * width, out = new Uint8ClampedArray(count * channels);
  for (let i = 0; i < count; i++) {
    const red = data[4 * i], green = data[4 * i + 1], blue = data[4 * i + 2];
    if (channels === 1) out[i] = round(0.299 * red + 0.587 * green + 0.114 * blue);
    else { out[3 * i] = red; out[3 * i + 1] = green; out[3 * i + 2] = blue; }
  }
  return {data: out, height, width, channels};
}

const KERNELS = {  // [radius, weight at a distance >= 0]
  bilinear: [1, x => Math.max(0, 1 - x)],
  bicubic: [2, x => (x >= 2 ? 0 : x >= 1 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : (1.5 * x - 2.5) * x * x + 1)],
};

// For each of `wanted` pixels along one axis: the first of the `size` pixels that it is made of, and their weights.
export function spans(size, wanted, method, antialias) {
  const [radius, weight] = KERNELS[method], step = Math.fround(1 / Math.fround(wanted / size));
  const wide = antialias ? Math.max(step, 1) : 1;
  return Array.from({length: wanted}, (_, i) => {
    const centre = Math.fround((i + 0.5) * step), place = value => Math.min(Math.max(value, 0), size - 1);
    const first = place(Math.ceil(centre - radius * wide - 0.5)), last = place(Math.floor(centre + radius * wide - 0.5));
    const weights = Float32Array.from({length: last - first + 1}, (_, k) => weight(Math.abs(first + k + 0.5 - centre) / wide));
    const total = weights.reduce((sum, value) => sum + value, 0);
    return {first, weights: weights.map(value => value / total)};
  });
}

// Each pixel becomes the nearest of the image's.
function nearest({data, height, width, channels}, wanted) {
  const out = new Float32Array(wanted[0] * wanted[1] * channels);
  const place = (i, size, of) => Math.min(Math.floor(Math.fround((i + 0.5) * Math.fround(size / of))), size - 1);
  for (let y = 0, at = 0; y < wanted[0]; y++) {
    const row = place(y, height, wanted[0]) * width;
    for (let x = 0; x < wanted[1]; x++) {
      const from = (row + place(x, width, wanted[1])) * channels;
      for (let c = 0; c < channels; c++) out[at++] = data[from + c];
    }
  }
  return {data: out, height: wanted[0], width: wanted[1], channels};
}

// An image at a size [height, width]: rows first, then columns, in float32.
export function resized(image, wanted, method = "bilinear", antialias = true) {
  const {data, height, width, channels} = image;
  if (method === "nearest") return nearest(image, wanted);
  const length = width * channels, out = new Float32Array(wanted[0] * wanted[1] * channels), line = new Float32Array(length);
  const columns = spans(width, wanted[1], method, antialias);
  spans(height, wanted[0], method, antialias).forEach(({first, weights}, y) => {
    line.fill(0);
    weights.forEach((weight, k) => {
      for (let i = 0, from = (first + k) * length; i < length; i++) line[i] += weight * data[from + i];
    });
    for (let x = 0, at = y * wanted[1] * channels; x < wanted[1]; x++) {
      const {first, weights} = columns[x];
      for (let c = 0; c < channels; c++) {
        let sum = 0;
        for (let k = 0, from = first * channels + c; k < weights.length; k++, from += channels) sum += weights[k] * line[from];
        out[at++] = sum;
      }
    }
  });
  return {data: out, height: wanted[0], width: wanted[1], channels};
}

// The window of an image at [top, left] with a size [height, width], black outside of the image.
export function cropped(image, [top, left], [height, width]) {
  const {data, channels} = image, out = new Float32Array(height * width * channels);
  const start = Math.max(0, -left), end = Math.min(width, image.width - left);
  for (let y = Math.max(0, -top); y < Math.min(height, image.height - top) && start < end; y++) {
    const from = ((y + top) * image.width + left) * channels;
    out.set(data.subarray(from + start * channels, from + end * channels), (y * width + start) * channels);
  }
  return {data: out, height, width, channels};
}

// What a window of an image with a frame shows.
function windowed([top, left, bottom, right], image, [y, x], [height, width]) {
  const down = (bottom - top) / image.height, across = (right - left) / image.width;
  return [top + y * down, left + x * across, top + (y + height) * down, left + (x + width) * across];
}

function size({height, width}) { return [height, width ?? height]; }

const OPS = {  // (image, frame, the op's parameters) -> [image, frame]
  resize(image, frame, step) {
    const {height, width} = image, shorter = Math.min(height, width);
    const wanted = step.width == null ? [height, width].map(side => Math.floor(step.height * side / shorter)) : [step.height, step.width];
    if (wanted[0] * wanted[1] > PLENTY) throw new Error("The picture is too long and narrow for this model.");
    return [resized(image, wanted, step.method, step.antialias), frame];
  },
  central_crop(image, frame, step) {
    const wanted = size(step), sides = [image.height, image.width];
    const begin = sides.map((side, i) => round(Math.max(side - wanted[i], 0) / 2) - Math.floor(Math.max(wanted[i] - side, 0) / 2));
    return [cropped(image, begin, wanted), windowed(frame, image, begin, wanted)];
  },
  crop_border(image, frame, {pixels}) {
    const wanted = [image.height - 2 * pixels, image.width - 2 * pixels];
    if (Math.min(...wanted) < 1) throw new Error("The picture is too small for this model.");
    return [cropped(image, [pixels, pixels], wanted), windowed(frame, image, [pixels, pixels], wanted)];
  },
  letterbox(image, frame, step) {
    const wanted = size(step), sides = [image.height, image.width];
    const scale = Math.fround(Math.min(...sides.map((side, i) => Math.fround(wanted[i] / side))));
    const fitted = sides.map(side => Math.max(round(Math.fround(side * scale)), 1));
    const begin = fitted.map((side, i) => (step.place === "centre" ? -Math.floor((wanted[i] - side) / 2) : 0));
    const small = resized(image, fitted, step.method, step.antialias);
    return [cropped(small, begin, wanted), windowed(frame, small, begin, wanted)];
  },
  pad_to(image, frame, step) {
    const wanted = size(step);
    if (image.height > wanted[0] || image.width > wanted[1]) throw new Error("The picture is larger than this model takes.");
    return [cropped(image, [0, 0], wanted), windowed(frame, image, [0, 0], wanted)];
  },
  multiply(image, frame, {factor}) {
    return [{...image, data: Float32Array.from(image.data, value => value * factor)}, frame];
  },
};

// A canvas's pixels, RGBA, by a model's steps: [whole numbers 0..255 of its size, what they show of the picture].
export function prepared(canvas, steps) {
  const [{channels}, ...others] = steps;
  let image = decoded(canvas, channels), frame = WHOLE;
  for (const step of others) [image, frame] = OPS[step.op](image, frame, step);
  return [{...image, data: Float32Array.from(image.data, value => round(Math.min(Math.max(value, 0), 255)))}, frame];
}

// Pixels 0..255 in the range of a model's own: a factor and an offset, for all channels or each.
export function inRange({data, channels}, {factor, offset}) {
  return data.map((value, i) => value * factor[i % channels % factor.length] + offset[i % channels % offset.length]);
}
