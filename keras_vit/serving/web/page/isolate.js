// A service worker that isolates the page from others, which browsers require for threads. It stores nothing.
"use strict";

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", event => event.waitUntil(self.clients.claim()));

async function isolated(request) {
  const response = await fetch(request);
  if (response.status === 0) return response;
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(response.body, {status: response.status, statusText: response.statusText, headers});
}

self.addEventListener("fetch", event => {
  const own = new URL(event.request.url).origin === self.location.origin;
  if (own && event.request.cache !== "only-if-cached") event.respondWith(isolated(event.request));
});
