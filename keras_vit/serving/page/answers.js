// Shows a model's answer for a picture, in the JSON of the service: bars of classes, masks, depths, boxes. The pages of
// `keras-vit serve` and of exports share it. They have a list #classes and a place for sentences, #status.

// The colours of depth from dark to light, as in the package's pictures.
const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const CARDS = `
  <section class="card" id="segments" aria-labelledby="pixels" hidden>
    <h2 id="pixels">The class of every pixel</h2>
    <div class="picture"><img id="shown" alt="The picture"><img class="over" id="mask" alt="The picture's classes, in the colours of the list"></div>
    <div class="row left"><label for="opacity">Colours</label> <input type="range" id="opacity" min="0" max="100" value="55"> <button id="save" type="button">Save the mask</button></div>
  </section>
  <section class="card" id="depths" aria-labelledby="deep" hidden>
    <h2 id="deep">The depth of every pixel</h2>
    <div class="picture"><img id="depth-image" alt="The picture"><canvas id="depth" role="img" aria-label="Depth, from dark to light as below"></canvas></div>
    <div class="scale"><span id="lowest"></span><span id="highest"></span></div>
  </section>
  <section class="card" id="objects" aria-labelledby="located" hidden>
    <h2 id="located">Where the objects are</h2>
    <div class="picture"><img id="scene" alt="The picture"><img class="over" id="under" alt="" hidden><div id="boxes" aria-hidden="true"></div></div>
    <div class="row left"><label for="least-score">Lowest score</label> <input type="range" id="least-score" min="5" max="95" value="30"> <span class="soft" id="score"></span></div>
    <ol id="listed" aria-label="Objects" hidden></ol>
  </section>`;
let found = null;  // the objects that are shown

export const byId = id => document.getElementById(id);

export function element(name, text) { const made = document.createElement(name); made.textContent = text; return made; }

export function line(text, kind) {
  const made = element("p", text);
  made.className = kind;
  return made;
}

export function say(text, kind = "soft") { byId("status").replaceChildren(line(text, kind)); }

export function percent(value) { return (100 * value).toFixed(1) + "%"; }

// Puts the cards of masks, depths and objects at a place of an element, as insertAdjacentHTML names it; `saveMask` saves
// a mask, or null.
export function addCards(beside, place, saveMask) {
  beside.insertAdjacentHTML(place, CARDS);
  byId("opacity").addEventListener("input", fade);
  byId("least-score").addEventListener("input", choose);
  byId("save").hidden = !saveMask;
  if (saveMask) byId("save").addEventListener("click", saveMask);
}

// The score that objects must reach by default, of a model or of the part that finds them; undefined for other models.
export function threshold(model) {
  return [model, ...Object.values(model.parts || {})].map(about => about.threshold).find(value => value !== undefined);
}

// Sets the slider to a model's own lowest score.
export function resetScore(model) { byId("least-score").value = Math.round(100 * (threshold(model) ?? 0.3)); }

export function clear() {
  byId("classes").replaceChildren();
  byId("listed").replaceChildren();
  byId("under").hidden = byId("listed").hidden = byId("objects").hidden = byId("segments").hidden = byId("depths").hidden = true;
  found = null;
}

// Shows the answer of a model, or the answers of its parts, for a picture, a blob.
export function showAll(best, model, picture) {
  byId("status").replaceChildren();
  if (model.parts) for (const [part, about] of Object.entries(model.parts)) show(best[part], about, picture, part);
  else show(best, model, picture);
}

// Shows one answer; `part` is its name among several.
function show(best, about, picture, part) {
  if (best.boxes) return locate(best, about, picture, part);
  const tell = (text, kind) => byId("status").append(line((part ? part + ": " : "") + text, kind));
  if (best.depth) { tell("The depth of every pixel" + (about.depth === "metric" ? ", in metres." : ": larger is nearer."), "soft"); return drawDepth(best.depth, about, picture); }
  if (!best.classes) return tell("This model names no classes. " + Object.entries(best).filter(([name]) => name !== "status")
    .map(([name, values]) => "Its " + name + ": " + [values].flat(9).length.toLocaleString("en") + " numbers.").join(" "), "soft");
  if (!best.classes.length) return tell("Nothing was found.", "best");
  const names = best.classes.map(name => about.class_names || about.texts ? name : "Class " + name), shares = best.probabilities || best.shares;
  tell(names[0] + ", " + percent(shares[0]) + (best.mask ? " of the pixels" : ""), "best");
  byId("classes").append(...names.map((name, i) => entry(name, shares[i], best.colors && "rgb(" + best.colors[i].join(", ") + ")")));
  byId("pixels").textContent = about.stuff?.length ? "The segments of the picture" : "The class of every pixel";
  if (best.mask) cover(best.mask.blob ? URL.createObjectURL(best.mask.blob) : "data:image/png;base64," + best.mask.b64, picture);
}

// Shows a picture, a blob, in an image.
function load(image, picture) {
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(picture);
}

// Draws depths, rows [h][w], in the colours of the scale below.
function drawDepth(rows, about, picture) {
  const values = rows.flat(), canvas = byId("depth"), unit = about.depth === "metric" ? " m" : "";
  const low = values.reduce((a, b) => Math.min(a, b)), range = values.reduce((a, b) => Math.max(a, b)) - low || 1;
  canvas.width = rows[0].length; canvas.height = rows.length;
  const context = canvas.getContext("2d"), drawn = context.createImageData(canvas.width, canvas.height);
  values.forEach((value, i) => {
    const place = (SCALE.length - 1) * (value - low) / range, from = Math.min(Math.floor(place), SCALE.length - 2);
    drawn.data.set([...SCALE[from].map((c, k) => c + (place - from) * (SCALE[from + 1][k] - c)), 255], 4 * i);
  });
  context.putImageData(drawn, 0, 0);
  byId("lowest").textContent = low.toFixed(2) + unit; byId("highest").textContent = (low + range).toFixed(2) + unit;
  load(byId("depth-image"), picture);
  byId("depths").hidden = false;
}

// An item of the list, with a swatch of the colour, if one is given.
function entry(name, share, color) {
  const item = document.createElement("li"), label = element("span", name);
  item.style.setProperty("--share", 100 * share + "%");
  if (color) label.prepend(swatch(color));
  item.append(label, element("span", percent(share)));
  return item;
}

function swatch(color) {
  const made = document.createElement("span");
  made.className = "swatch";
  made.style.background = color;
  return made;
}

// Shows objects over the picture, if the browser can show its format.
function locate(objects, about, picture, part) {
  found = {...objects, named: about.class_names, part};
  const scene = byId("scene");
  scene.onload = () => { byId("objects").hidden = !found; };
  load(scene, picture);
  choose();
}

// Lists and draws the objects whose scores reach the slider's.
function choose() {
  const least = byId("least-score").value / 100, [height, width] = found.size;
  byId("score").textContent = percent(least);
  const chosen = found.scores.map((_, i) => i).filter(i => found.scores[i] >= least);
  const name = i => found.named ? found.classes[i] : "Class " + found.classes[i];
  const color = i => "hsl(" + ((found.masks ? i : found.labels[i]) * 137.5) % 360 + " 85% 60%)";
  const count = chosen.length === 1 ? "1 object" : chosen.length + " objects", list = byId(found.part ? "listed" : "classes");
  if (!found.part) say(count, "best");
  else {
    found.told = found.told || byId("status").appendChild(line("", "best"));
    found.told.textContent = found.part + ": " + count;
  }
  list.hidden = false;
  list.replaceChildren(...chosen.map(i => entry(name(i), found.scores[i], color(i))));
  byId("boxes").replaceChildren(...[...chosen].reverse().map(i => {
    const box = document.createElement("div"), [top, left, bottom, right] = found.boxes[i];
    box.append(element("span", name(i) + " " + percent(found.scores[i])));
    box.style.setProperty("--hue", color(i));
    box.style.inset = [100 * top / height, 100 * (1 - right / width), 100 * (1 - bottom / height), 100 * left / width].map(side => side + "%").join(" ");
    box.classList.toggle("top", top < 0.06 * height);
    box.classList.toggle("end", left > 0.75 * width);
    return box;
  }));
  if (found.masks) byId("boxes").prepend(painted([...chosen].reverse(), color));
}

// The masks of these objects, the first below the others, in a canvas of the picture's proportions.
function painted(chosen, color) {
  const [height, width] = found.size, scale = Math.min(1, 1024 / Math.max(height, width));
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  pen.scale(canvas.width / width, canvas.height / height);
  for (const i of chosen) {
    pen.fillStyle = color(i);
    let place = 0, inside = false;
    for (const count of runs(found.masks[i].counts)) {
      for (let left = inside ? count : 0, at = place; left > 0;) {  // column by column
        const y = at % height, part = Math.min(left, height - y);
        pen.fillRect(Math.floor(at / height), y, 1, part);
        at += part;
        left -= part;
      }
      place += count;
      inside = !inside;
    }
  }
  return canvas;
}

// COCO's run lengths, a list or compressed, down the columns: counts of pixels outside and inside in turn.
function runs(text) {
  if (Array.isArray(text)) return text;
  const counts = [];
  for (let at = 0; at < text.length;) {
    let value = 0, scale = 1, digit;
    do { digit = text.charCodeAt(at++) - 48; value += (digit & 31) * scale; scale *= 32; } while (digit & 32);
    if (digit & 16) value -= scale;
    counts.push(counts.length > 2 ? value + counts[counts.length - 2] : value);
  }
  return counts;
}

// Shows a mask, an address, over the picture; alone if the browser cannot show the picture's format.
function cover(mask, picture) {
  const shown = byId("shown");
  shown.onerror = () => { shown.src = byId("mask").src; };
  URL.revokeObjectURL(byId("mask").src);
  load(shown, picture);
  byId("mask").src = byId("under").src = mask;
  byId("under").hidden = false;
  byId("segments").hidden = false;
  fade();
}

function fade() { for (const id of ["mask", "under"]) byId(id).style.opacity = byId("opacity").value / 100; }
