// The page: takes a picture, has the worker look at it, and shows the answer.
import {addCards, byId, clear, resetScore, say, showAll} from "./answers.js";

const MOST_PIXELS = 2 ** 25;
const worker = new Worker(new URL("worker.js", import.meta.url), {type: "module"});
const waiting = new Map();  // {id: [resolve, reject]} of tasks
let model = null, picture = null, tasks = 0;
let given = 0, asked = 0;  // pictures and answers: the newest of each counts

function ask(task, given = {}) {
  return new Promise((resolve, reject) => {
    waiting.set(++tasks, [resolve, reject]);
    worker.postMessage({id: tasks, task, ...given});
  });
}

worker.onmessage = ({data: {id, result, error, progress}}) => {
  if (progress) return waiting.size && showProgress(progress);  // none after a failure
  const [resolve, reject] = waiting.get(id);
  waiting.delete(id);
  if (error) reject(new Error(error));
  else resolve(result);
};
worker.onerror = event => {
  event.preventDefault();
  const failure = new Error("worker.js, or a file that it needs, cannot be read, or this browser is too old.");
  for (const [, reject] of waiting.values()) reject(failure);
  waiting.clear();
};

function megabytes(count) { return (count / 1e6).toFixed(1); }

function showProgress({done, total}) {
  const bar = byId("progress");
  bar.hidden = false;
  bar.max = total;
  bar.value = done;
  say(done < total ? "Downloading the model: " + megabytes(done) + " of " + megabytes(total) + " MB" : "Preparing the model …");
}

function describe(engine) {
  const [height, width] = model.image_size, stored = model.quantization ? "int8" : "float16";
  byId("about").textContent = model.model + ": " + model.parameters.toLocaleString("en") + " parameters (" + stored + "), sees " + height + " × " + width + " pixels"
    + (model.classes ? ", knows " + model.classes.toLocaleString("en") + " classes" : "") + ".";
  byId("engine").textContent = engine + ".";
  byId("naming").hidden = !model.texts;
  resetScore(model);
}

async function start() {
  addCards(byId("drawings"), "beforeend", null);
  say("Downloading the model …");
  try {
    const loaded = await ask("load");
    model = loaded.model;
    describe(loaded.engine);
  } catch (error) { return say(error.message, "problem"); } finally { byId("progress").hidden = true; }
  if (picture) return look();
  say(model.texts ? "Add a picture, and type labels, separated by commas." : "There is no picture yet.");
}

function labels() { return [...new Set(byId("labels").value.split(",").map(text => text.trim()).filter(text => text))]; }

// Forgets the last answer.
function reset() {
  clear();
  byId("times").textContent = "";
}

async function look() {
  if (!picture || !model) return;
  const turn = ++asked, named = labels();
  reset();
  if (model.texts && !named.length) return say("Type some labels, separated by commas.");
  say("Looking …");
  try {
    const answer = await ask("answer", {picture, labels: named});
    if (turn !== asked) return;
    const {best, preparing, computing} = answer;
    showAll(best, model, picture);
    byId("times").textContent = Math.round(preparing + computing) + " ms: " + Math.round(preparing) + " for the picture, " + Math.round(computing) + " for the model.";
  } catch (error) { if (turn === asked) say(error.message, "problem"); }
}

// The number of another picture: from now on neither earlier pictures nor their answers count.
function another() {
  ++asked;
  return ++given;
}

// Says why there is no answer, instead of the last one.
function refuse(text) {
  another();
  picture = null;
  byId("preview").hidden = true;
  reset();
  say(text, "problem");
}

// Shows a picture, and whether the browser reads it: its [height, width], or null.
function previewed(blob) {
  const image = byId("preview");
  URL.revokeObjectURL(image.src);
  return new Promise(resolve => {
    image.onload = () => resolve([image.naturalHeight, image.naturalWidth]);
    image.onerror = () => resolve(null);
    image.src = URL.createObjectURL(blob);
  });
}

async function take(blob, name = blob && blob.name) {
  if (!blob) return;
  const turn = another(), size = await previewed(blob);
  if (turn !== given) return;
  if (!size) return refuse((name ? "“" + name + "”" : "This") + " is not a picture that this browser reads. JPEG, PNG, WebP, GIF and BMP are.");
  const [height, width] = size;
  if (height * width > MOST_PIXELS) {
    return refuse("The picture has " + width.toLocaleString("en") + " × " + height.toLocaleString("en") + " pixels, and this page reads up to " + Math.floor(MOST_PIXELS / 1e6) + " megapixels: make it smaller.");
  }
  byId("preview").hidden = false;
  picture = blob;
  if (model) look();
}

async function openAddress() {
  const text = byId("address").value.trim();
  if (!text) return;
  if (!/^https?:\/\/./i.test(text)) return refuse("“" + text + "” is not an address: it should begin with https://.");
  const turn = another();
  let response, blob;
  say("Opening the picture …");
  try {
    response = await fetch(text, {credentials: "omit", referrerPolicy: "no-referrer"});
    blob = await response.blob();
  } catch (error) {
    if (turn === given) refuse("This address cannot be read: its server does not answer, or does not let other pages read it (CORS). Download the picture, and choose the file.");
    return;
  }
  if (turn !== given) return;
  if (!response.ok) return refuse("The server of this address answers " + response.status + ".");
  take(blob, text);
}

const WHY_NOT = {NotAllowedError: "The camera was refused. Allow it for this page in the browser's settings.", NotFoundError: "There is no camera.", NotReadableError: "Another program uses the camera."};

function closeCamera() {
  for (const track of byId("video").srcObject?.getTracks() || []) track.stop();
  byId("video").srcObject = null;
  if (byId("viewfinder").open) byId("viewfinder").close();
}

async function openCamera() {
  if (!navigator.mediaDevices) return refuse("The camera needs a page of https, or of localhost.");
  byId("photograph").disabled = true;  // one stream at a time
  try {
    byId("video").srcObject = await navigator.mediaDevices.getUserMedia({video: {facingMode: "environment", width: {ideal: 1280}}});
    byId("viewfinder").showModal();
    await byId("video").play();
  } catch (error) {
    closeCamera();
    refuse(WHY_NOT[error.name] || "The camera does not start: " + error.message);
  }
  byId("photograph").disabled = false;
}

function shoot() {
  const video = byId("video"), canvas = document.createElement("canvas");
  if (!video.videoWidth) return;
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  closeCamera();
  canvas.toBlob(blob => take(blob), "image/png");
}

byId("file").addEventListener("change", event => { take(event.target.files[0]); event.target.value = ""; });
document.addEventListener("paste", event => take([...event.clipboardData.files][0]));
document.addEventListener("dragover", event => { event.preventDefault(); byId("drop").classList.add("over"); });
document.addEventListener("dragleave", () => byId("drop").classList.remove("over"));
document.addEventListener("drop", event => { event.preventDefault(); byId("drop").classList.remove("over"); take(event.dataTransfer.files[0]); });
byId("addressed").addEventListener("submit", event => { event.preventDefault(); openAddress(); });
byId("naming").addEventListener("submit", event => { event.preventDefault(); look(); });
byId("photograph").addEventListener("click", openCamera);
byId("shoot").addEventListener("click", shoot);
byId("leave").addEventListener("click", closeCamera);
byId("viewfinder").addEventListener("close", closeCamera);
start();
