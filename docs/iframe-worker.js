/* Search in pages that are opened from disk.

   The theme searches in a Worker, and browsers refuse to start one for a file:// page. Here the
   worker's script runs in a hidden frame instead: a frame without an address has the origin of its
   page, so that either side may call into the other. The theme needs two things of a Worker,
   postMessage and "message" events. (The plugin "offline" looks for this file's name and would
   otherwise load a script from elsewhere.) */
"use strict";

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.srcdoc = ""; // not about:blank, which some browsers replace after it is shown
    this.ready = new Promise((done) => { this.frame.onload = done; })
      .then(() => this.prepare())
      .then(() => this.load(url));
    document.body.append(this.frame);
  }

  // What a script expects to find in a worker.
  prepare() {
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) =>
      this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    // Real workers import synchronously; the theme's awaits what this returns.
    inside.importScripts = (...urls) =>
      urls.reduce((before, url) => before.then(() => this.load(url)), Promise.resolve());
  }

  load(url) {
    const script = this.frame.contentDocument.createElement("script");
    return new Promise((done, failed) => {
      script.onload = done;
      script.onerror = () => failed(new Error(`${url} cannot be loaded`));
      script.src = new URL(url, document.baseURI).href;
      this.frame.contentDocument.body.append(script);
    });
  }

  // Messages wait until the script is there, in their order.
  postMessage(data) {
    const copy = structuredClone(data);
    this.ready.then(() => {
      const inside = this.frame.contentWindow;
      inside.dispatchEvent(new inside.MessageEvent("message", { data: copy }));
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
