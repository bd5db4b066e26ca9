// Opens the page, or says why it cannot open. Threads need a page that is isolated from others, by headers that static
// servers rarely send: a service worker adds them, from the second load on.
"use strict";

function stop(text) {
  const line = document.createElement("p");
  line.className = "problem";
  line.textContent = text;
  document.getElementById("status").replaceChildren(line);
}

function open() {
  import("./page.js").catch(() => stop("page.js cannot be read, or this browser is too old. Copy the whole folder to the server."));
}

// Whether this is the first time that the tab asks; true once.
function first() {
  try {
    if (sessionStorage.getItem("isolated")) return false;
    sessionStorage.setItem("isolated", "asked");
    return true;
  } catch (error) { return false; }  // without storage, the page would load forever
}

async function isolate() {
  await navigator.serviceWorker.register("isolate.js");
  await navigator.serviceWorker.ready;
  if (first()) location.reload();
  else open();
}

if (location.protocol === "file:") {
  stop("A page of a file may not read its model. Serve the folder, for example by “python -m http.server”, and open http://localhost:8000.");
} else if (!self.crossOriginIsolated && self.isSecureContext && navigator.serviceWorker) {
  isolate().catch(open);
} else open();
