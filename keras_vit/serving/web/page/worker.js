// Loads the model and answers for pictures, beside the page, so that it stays responsive.
//
// Takes {id, task: "load"} and {id, task: "answer", picture, labels}; returns {id, result} or {id, error}, and while it
// loads {progress: {done, total}}. The result of a picture is null if another came while it waited.
import {inRange, prepared} from "./pixels.js";
import {answerRow, ranked} from "./answer_rows.js";
import {fitting, mean, tokens} from "./texts.js";

const BUILDS = {webgpu: ["ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify"], wasm: ["ort.wasm.min.mjs", "ort-wasm-simd-threaded"]};
const STRIP = 2 ** 22;  // pixels of a canvas: browsers of phones refuse large ones
let model, ort, session, texts, encode, embeddings = new Map();

// The bytes of a file of the folder, the server's newest: a cached one could be of an earlier model. `report` is called
// with their number as they come.
async function fetched(name, report = () => {}) {
  let response;
  try { response = await fetch(new URL(name, import.meta.url), {cache: "no-cache"}); } catch (error) { throw new Error(name + " cannot be read: the server does not answer."); }
  if (!response.ok) throw new Error(name + " is missing: the server answers " + response.status + ". Copy the whole folder to the server.");
  const parts = [], reader = response.body.getReader();
  let length = 0;
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      length += part.value.length;
      report(part.value.length);
    }
  } catch (error) { throw new Error("The download of " + name + " was interrupted. Load the page again."); }
  if (model && model.files[name] !== length) throw new Error(name + " has " + length + " bytes instead of " + model.files[name] + ". Copy the whole folder to the server again.");
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const part of parts) { bytes.set(part, at); at += part.length; }
  return bytes;
}

async function described() {
  const bytes = await fetched("model.json");
  try { return JSON.parse(new TextDecoder().decode(bytes)); } catch (error) { throw new Error("model.json is damaged. Copy the folder to the server again."); }
}

// Fetches files with one progress for all: {name: bytes}.
async function downloaded(names) {
  const total = names.reduce((sum, name) => sum + model.files[name], 0);
  let done = 0;
  const report = count => { done += count; self.postMessage({progress: {done, total}}); };
  return Object.fromEntries(await Promise.all(names.map(async name => [name, await fetched(name, report)])));
}

// Whether there is a GPU for WebGPU: an adapter in software would take a hundred times as long as WebAssembly.
async function hasWebGPU() {
  try {
    const adapter = await navigator.gpu?.requestAdapter();
    return Boolean(adapter) && !(adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter);
  } catch (error) { return false; }
}

// Loads a build of the runtime, and the model with it.
async function begin(engine, files) {
  const [script, binary] = BUILDS[engine];
  try { ort = await import("./runtime/" + script); } catch (error) { throw new Error("runtime/" + script + " is missing, or this browser is too old. Copy the whole folder to the server."); }
  ort.env.logLevel = "error";
  ort.env.wasm.wasmPaths = {mjs: new URL("runtime/" + binary + ".mjs", import.meta.url).href};
  ort.env.wasm.wasmBinary = (files["runtime/" + binary + ".wasm"] ??= await fetched("runtime/" + binary + ".wasm"));
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency || 1, 8) : 1;
  const made = name => ort.InferenceSession.create(files[name], {executionProviders: [engine]});
  session = await made("model.onnx");
  texts = model.texts && await made("text.onnx");
  const [height, width] = model.image_size;  // the first run compiles
  await session.run({images: new ort.Tensor("float32", new Float32Array(height * width * model.channels), [1, height, width, model.channels])});
}

function engineText(engine) {
  if (engine === "webgpu") return "WebGPU";
  const threads = ort.env.wasm.numThreads;
  return "WebAssembly, " + (threads > 1 ? threads + " threads" : "one thread" + (self.crossOriginIsolated ? "" : ": the page is not isolated from others"));
}

async function loadTokenizer(files) {
  const {Tokenizer} = await import("./runtime/tokenizers.min.mjs");
  const made = new Tokenizer(JSON.parse(new TextDecoder().decode(files["tokenizer.json"])), {});
  encode = text => made.encode(text, {add_special_tokens: false}).ids;
}

async function load() {
  if (typeof WebAssembly === "undefined" || typeof OffscreenCanvas === "undefined") throw new Error("This browser is too old: it lacks WebAssembly or canvases for workers.");
  model = await described();
  let engine = model.engines.includes("webgpu") && await hasWebGPU() ? "webgpu" : "wasm";
  const files = await downloaded(["model.onnx", "runtime/" + BUILDS[engine][1] + ".wasm", ...(model.texts ? ["text.onnx", "tokenizer.json"] : [])]);
  if (model.texts) await loadTokenizer(files);
  try {
    await begin(engine, files);
  } catch (error) {
    if (engine === "wasm") throw new Error("This browser cannot run the model: " + error.message);
    await begin(engine = "wasm", files);
  }
  return {model, engine: engineText(engine)};
}

// The pixels of a bitmap with transparent parts, RGBA, as its file has them: a canvas rounds their colours.
function straight(bitmap) {
  const gl = new OffscreenCanvas(1, 1).getContext("webgl2"), {width, height} = bitmap;
  if (!gl || Math.max(width, height) > gl.getParameter(gl.MAX_TEXTURE_SIZE)) return null;
  gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, gl.getParameter(gl.TEXTURE_BINDING_2D), 0);
  const data = new Uint8Array(4 * width * height);
  gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, data);
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return data;
}

// The pixels of a picture, RGBA, upright, in the file's own colours: {data, height, width}.
async function read(picture) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(picture, {imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none"});
  } catch (error) { throw new Error("The browser cannot decode this picture. Save it as JPEG or PNG."); }
  const {width, height} = bitmap, rows = Math.min(height, Math.max(1, Math.floor(STRIP / width)));
  const pen = new OffscreenCanvas(width, rows).getContext("2d", {willReadFrequently: true});
  let data = new Uint8ClampedArray(4 * width * height);
  for (let top = 0; top < height; top += rows) {
    const part = Math.min(rows, height - top);
    pen.clearRect(0, 0, width, rows);
    pen.drawImage(bitmap, 0, -top);
    data.set(pen.getImageData(0, 0, width, part).data, 4 * width * top);
  }
  for (let i = 3; i < data.length; i += 4) {
    if (data[i] < 255) { data = straight(bitmap) || data; break; }
  }
  bitmap.close();
  return {data, height, width};
}

async function run(session, name, type, data, dims) {
  const tensor = new ort.Tensor(type, data, dims), outputs = await session.run({[name]: tensor});
  return Object.fromEntries(Object.entries(outputs).map(([key, value]) => [key, {data: value.data, dims: value.dims}]));
}

// The embedding of a label, computed once.
async function embedded(label) {
  if (!embeddings.has(label)) {
    const found = [];
    for (const template of model.texts.templates) {
      const ids = tokens(template.replaceAll("{}", () => label), model.texts.tokenizer, encode);
      found.push(Array.from((await run(texts, texts.inputNames[0], "int32", ids, [1, ids.length]))[texts.outputNames[0]].data));
    }
    embeddings.set(label, mean(found));
  }
  return embeddings.get(label);
}

async function labelled(outputs, labels) {
  const found = [];
  for (const label of labels) found.push(await embedded(label));
  return ranked(labels, fitting(outputs.embeddings.data, found, model.texts));
}

// A mask's colours as a PNG.
async function asPicture({rgba, size: [height, width]}) {
  const canvas = new OffscreenCanvas(width, height);
  canvas.getContext("2d").putImageData(new ImageData(rgba, width, height), 0, 0);
  return {blob: await canvas.convertToBlob()};
}

async function answer({picture, labels}) {
  const began = performance.now(), canvas = await read(picture), [image, frame] = prepared(canvas, model.steps);
  const pixels = inRange(image, model.range), ready = performance.now();
  const outputs = await run(session, "images", "float32", pixels, [1, image.height, image.width, image.channels]);
  const size = [canvas.height, canvas.width];
  const best = model.texts ? await labelled(outputs, labels) : answerRow(outputs, model, frame, size), ended = performance.now();
  for (const row of model.parts ? Object.values(best) : [best]) if (row.mask) row.mask = await asPicture(row.mask);
  return {best, preparing: ready - began, computing: ended - ready};
}

const TASKS = {load, answer};
let last = Promise.resolve(), newest = 0;  // one picture after the other
self.onmessage = ({data: {id, task, ...given}}) => {
  newest = id;
  last = last.then(async () => {
    if (id !== newest) return self.postMessage({id, result: null});  // the page no longer waits for it
    try { self.postMessage({id, result: await TASKS[task](given)}); } catch (error) { self.postMessage({id, error: error.message}); }
  });
};
