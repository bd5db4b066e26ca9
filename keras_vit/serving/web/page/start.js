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

// Whether the tab asks for the first time, for this page of a site that may have others; true once.
function first() {
  const key = "isolated " + location.pathname;
  try {
    if (sessionStorage.getItem(key)) return false;
    sessionStorage.setItem(key, "asked");
    return true;
  } catch (error) { return false; }  // without storage, the page would load forever
}

// Resolves to whether the service worker runs, after a moment at most: some browsers never start one.
function isolating() {
  const runs = navigator.serviceWorker.register("isolate.js").then(() => navigator.serviceWorker.ready).then(() => true);
  return Promise.race([runs, new Promise(resolve => setTimeout(resolve, 3000, false))]).catch(() => false);
}

if (location.protocol === "file:") {
  stop("A page that is opened as a file cannot read its model. Serve the folder, for example with “python -m http.server”, and open http://localhost:8000.");
} else if (!self.crossOriginIsolated && self.isSecureContext && navigator.serviceWorker) {
  isolating().then(runs => { if (runs && first()) location.reload(); else open(); });
} else open();
