// From a model's outputs for one picture to its answer, in the JSON of the service. Runs in browsers and Node.js.
//
// Outputs are {name: {data, dims}} with dims [1, ...]; size is the picture's [height, width], and frame what the model saw
// of it, as in pixels.js.

const MOST_CLASSES = 5, LONGEST = 1024;  // pixels of the longer side of masks

// [height, width] of at most `longest` pixels, in the same proportion.
export function within([height, width], longest = LONGEST) {
  const scale = Math.min(1, longest / Math.max(height, width));
  return [Math.max(1, Math.round(height * scale)), Math.max(1, Math.round(width * scale))];
}

function names(about) { return about.class_names || Array.from({length: about.classes}, (_, i) => String(i)); }

// The best of some labels with their probabilities, best first.
export function ranked(labels, probabilities, most = labels.length) {
  const order = Array.from(labels.keys()).sort((a, b) => probabilities[b] - probabilities[a]).slice(0, most);
  return {classes: order.map(i => labels[i]), probabilities: order.map(i => probabilities[i])};
}

// For each of `wanted` pixels between positions `from` and `to`, in shares of `count` cells: the cells around it and the
// share of the second.
function between(count, wanted, from = 0, to = 1) {
  return Array.from({length: wanted}, (_, i) => {
    const place = Math.min(Math.max((((i + 0.5) / wanted - from) / (to - from)) * count - 0.5, 0), count - 1);
    const low = Math.min(Math.floor(place), Math.max(count - 2, 0));
    return [low, Math.min(low + 1, count - 1), place - low];
  });
}

// The best class of every pixel of a size, from logits (1, h, w, k), bilinear between them.
export function classMap({data, dims: [, height, width, classes]}, wanted) {
  const map = new Uint16Array(wanted[0] * wanted[1]), line = new Float32Array(width * classes);
  const columns = between(width, wanted[1]);
  between(height, wanted[0]).forEach(([above, below, down], y) => {
    const first = above * line.length, second = below * line.length;
    for (let i = 0; i < line.length; i++) line[i] = data[first + i] * (1 - down) + data[second + i] * down;
    columns.forEach(([before, after, across], x) => {
      let best = 0, highest = -Infinity;
      for (let k = 0; k < classes; k++) {
        const value = line[before * classes + k] * (1 - across) + line[after * classes + k] * across;
        if (value > highest) { highest = value; best = k; }
      }
      map[y * wanted[1] + x] = best;
    });
  });
  return map;
}

// The classes of a map with their shares, largest first, and the map's colours, RGBA.
function maskRow({logits}, about, _, size) {
  const wanted = within(size), map = classMap(logits, wanted), all = names(about), counts = new Array(all.length).fill(0);
  const rgba = new Uint8ClampedArray(4 * map.length);
  map.forEach((label, i) => { counts[label]++; rgba.set([...about.colors[label], 255], 4 * i); });
  const order = [...counts.keys()].filter(i => counts[i]).sort((a, b) => counts[b] - counts[a]);
  return {
    classes: order.map(i => all[i]),
    shares: order.map(i => counts[i] / map.length),
    colors: order.map(i => about.colors[i]),
    mask: {rgba, size: wanted},
  };
}

function depthRow({depth: {data, dims: [, height, width]}}) {
  return {depth: Array.from({length: height}, (_, y) => Array.from(data.subarray(y * width, (y + 1) * width)))};
}

// A box as fractions of what the model saw, as fractions of the picture.
function inPicture(box, [top, left, bottom, right]) {
  const extent = [bottom - top, right - left, bottom - top, right - left], start = [top, left, top, left];
  return box.map((side, i) => Math.min(Math.max(side * extent[i] + start[i], 0), 1));
}

// Objects in pixels of a size, without empty places and boxes that lie outside of the picture.
function objectRow({boxes, scores, labels}, about, frame, size) {
  const all = names(about), found = {classes: [], scores: [], boxes: [], labels: [], size, places: []};
  labels.data.forEach((label, i) => {
    const box = inPicture(Array.from(boxes.data.subarray(4 * i, 4 * i + 4)), frame);
    if (label < 0 || !(box[2] > box[0] && box[3] > box[1])) return;
    found.classes.push(all[label]);
    found.scores.push(scores.data[i]);
    found.boxes.push(box.map((side, k) => side * size[k % 2]));
    found.labels.push(Number(label));
    found.places.push(i);
  });
  return found;
}

// A mask's run lengths down the columns of a picture of this size, from logits on a grid; only inside its box, in pixels.
export function runLengths(grid, [rows, columns], box, frame, [height, width]) {
  const down = between(rows, height, frame[0], frame[2]), across = between(columns, width, frame[1], frame[3]);
  const cell = [(frame[2] - frame[0]) * height / rows + 1, (frame[3] - frame[1]) * width / columns + 1];
  const shown = [Math.max(0, frame[0] * height), Math.max(0, frame[1] * width), Math.min(height, frame[2] * height), Math.min(width, frame[3] * width)];
  const first = [0, 1].map(i => Math.floor(Math.max(box[i] - cell[i], shown[i]) + 1e-3));
  const last = [0, 1].map(i => Math.ceil(Math.min(box[i + 2] + cell[i], shown[i + 2]) - 1e-3));
  const counts = [];
  let inside = false, at = 0;
  const turn = place => { counts.push(place - at); at = place; inside = !inside; };
  for (let x = first[1]; x < last[1]; x++) {
    const [before, after, right] = across[x];
    if (inside && first[0] > 0) turn(x * height);
    for (let y = first[0]; y < last[0]; y++) {
      const [above, below, low] = down[y];
      const left = grid[above * columns + before] * (1 - low) + grid[below * columns + before] * low;
      const value = left * (1 - right) + (grid[above * columns + after] * (1 - low) + grid[below * columns + after] * low) * right;
      if (value > 0 !== inside) turn(x * height + y);
    }
    if (inside && last[0] < height) turn(x * height + last[0]);
  }
  if (inside) turn(last[1] * height);
  return [...counts, height * width - at];
}

function instanceRow(outputs, about, frame, size) {
  const wanted = within(size), row = objectRow(outputs, about, frame, wanted), {data, dims: [, , rows, columns]} = outputs.masks;
  const grid = i => data.subarray(i * rows * columns, (i + 1) * rows * columns);
  return {...row, masks: row.places.map((i, k) => ({size: wanted, counts: runLengths(grid(i), [rows, columns], row.boxes[k], frame, wanted)}))};
}

// The segments of a picture: the number of each pixel's query, -1 for none, and the queries that have some, best first.
// Each pixel belongs to the query with the highest product of score and mask probability; a segment that keeps less than
// `overlap` of its mask is left out, and a class of `stuff`, numbers, is one segment.
export function merged({data, dims: [, rows, columns, queries]}, scores, labels, stuff, frame, wanted, threshold = 0.8, overlap = 0.8) {
  const order = Array.from(scores.keys()).filter(i => labels[i] >= 0 && scores[i] > threshold).sort((a, b) => scores[b] - scores[a]);
  const across = between(columns, wanted[1], frame[1], frame[3]), line = new Float32Array(columns);
  const map = new Int16Array(wanted[0] * wanted[1]).fill(-1), inside = new Uint8Array(map.length), strongest = new Float32Array(map.length);
  const area = new Array(queries).fill(0), own = [...area], shown = [...area], first = {}, into = new Array(queries).fill(-1);
  for (const i of order) {
    between(rows, wanted[0], frame[0], frame[2]).forEach(([above, below, down], y) => {
      for (let x = 0; x < columns; x++) line[x] = data[(above * columns + x) * queries + i] * (1 - down) + data[(below * columns + x) * queries + i] * down;
      across.forEach(([before, after, right], x) => {
        const logit = line[before] * (1 - right) + line[after] * right, strength = scores[i] / (1 + Math.exp(-logit)), at = y * wanted[1] + x;
        if (logit >= 0) area[i]++;
        if (map[at] < 0 || strength > strongest[at]) { map[at] = i; strongest[at] = strength; inside[at] = logit >= 0; }
      });
    });
  }
  map.forEach((i, at) => { if (i >= 0) { own[i]++; shown[i] += inside[at]; } });
  const kept = order.filter(i => shown[i] && own[i] >= overlap * area[i]);
  for (const i of kept) into[i] = stuff.includes(Number(labels[i])) ? (first[labels[i]] ??= i) : i;
  return {map: map.map((i, at) => (i >= 0 && inside[at] ? into[i] : -1)), kept: kept.filter(i => into[i] === i)};
}

// The colour of number i of any count of things, RGB: as far as possible from those before.
function colorOf(i) {
  const part = n => { const k = (n + i * 137.5 / 30) % 12; return Math.round(255 * (0.6 - 0.34 * Math.max(-1, Math.min(k - 3, 9 - k, 1)))); };
  return [part(0), part(8), part(4)];
}

// The segments of a scene with their shares, largest first, and their colours, RGBA.
function sceneRow({scores, labels, masks}, about, frame, size) {
  const wanted = within(size), all = names(about), stuff = about.stuff.map(name => all.indexOf(name));
  const {map, kept} = merged(masks, scores.data, labels.data, stuff, frame, wanted);
  const rgba = new Uint8ClampedArray(4 * map.length), counts = {}, colors = Object.fromEntries(kept.map((i, k) => [i, colorOf(k)]));
  map.forEach((i, at) => { if (i >= 0) { counts[i] = (counts[i] || 0) + 1; rgba.set([...colors[i], 255], 4 * at); } });
  const order = kept.sort((a, b) => counts[b] - counts[a]);
  return {
    classes: order.map(i => all[labels.data[i]]),
    shares: order.map(i => counts[i] / map.length),
    colors: order.map(i => colors[i]),
    mask: {rgba, size: wanted},
  };
}

const ROWS = {
  classes: ({probabilities}, about) => ranked(names(about), probabilities.data, MOST_CLASSES),
  masks: maskRow,
  depth: depthRow,
  objects: objectRow,
  instances: (outputs, about, ...where) => (about.stuff.length ? sceneRow : instanceRow)(outputs, about, ...where),
};

// The answer of a model for one picture: of one with parts, an object of theirs.
export function answerRow(outputs, model, frame, size) {
  if (!model.parts) return ROWS[model.answers[0]](outputs, model, frame, size);
  const part = name => Object.fromEntries(Object.entries(outputs).filter(([key]) => key.startsWith(name + "_")).map(([key, value]) => [key.slice(name.length + 1), value]));
  return Object.fromEntries(Object.entries(model.parts).map(([name, about]) => [name, ROWS[about.answer](part(name), about, frame, size)]));
}
