// Starts a Chromium without a window and speaks its protocol (DevTools) over two pipes, without any package.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/** Returns the file of an installed Chromium, or null. */
export function findChromium() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  const folders = (process.env.PATH ?? "").split(delimiter);
  for (const name of NAMES) {
    const folder = folders.find((folder) => existsSync(join(folder, name)));
    if (folder) return join(folder, name);
  }
  return null;
}

export class Browser {
  static async start({ width = 1360, height = 860 } = {}) {
    const browser = new Browser();
    browser.folder = mkdtempSync(join(tmpdir(), "gmon-html-"));
    const flags = [
      "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars=false", "--disable-extensions",
      "--disable-background-networking", "--disable-component-update", `--user-data-dir=${browser.folder}`, `--window-size=${width},${height}`,
    ];
    // A Chromium of root has no sandbox of its own.
    if (process.getuid?.() === 0) flags.push("--no-sandbox");
    browser.process = spawn(findChromium(), [...flags, "about:blank"], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    browser.number = 0;
    browser.waiting = new Map();
    browser.listeners = [];
    let text = "";
    browser.process.stdio[4].setEncoding("utf8");
    browser.process.stdio[4].on("data", (chunk) => {
      text += chunk;
      let end;
      while ((end = text.indexOf("\0")) >= 0) {
        browser.take(JSON.parse(text.slice(0, end)));
        text = text.slice(end + 1);
      }
    });
    browser.process.on("exit", (code) => {
      for (const { reject } of browser.waiting.values()) reject(new Error(`Chromium has ended with status ${code}`));
    });
    return browser;
  }

  take(message) {
    const waiting = this.waiting.get(message.id);
    if (waiting) {
      this.waiting.delete(message.id);
      if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
      else waiting.resolve(message.result);
    } else {
      for (const listener of this.listeners) listener(message);
    }
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.number;
    this.process.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject, method }));
  }

  /** Opens an empty page. */
  async page({ width = 1360, height = 860, dark = false, mobile = false } = {}) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId);
    this.listeners.push((message) => message.sessionId === sessionId && page.hear(message));
    for (const domain of ["Page", "Runtime", "Network", "Log"]) await page.send(`${domain}.enable`);
    await page.look({ width, height, dark, mobile });
    return page;
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.on("exit", resolve));
    await this.send("Browser.close").catch(() => {});
    await ended;
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

export class Page {
  constructor(browser, session, target) {
    Object.assign(this, { browser, session, target });
    /** What the page complained of. */
    this.errors = [];
    /** The addresses that it asked for. */
    this.requests = [];
  }

  send(method, params = {}) {
    return this.browser.send(method, params, this.session);
  }

  hear({ method, params }) {
    if (method === "Runtime.exceptionThrown") this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) this.errors.push(params.args.map((arg) => arg.value ?? arg.description).join(" "));
    if (method === "Log.entryAdded" && params.entry.level !== "verbose") this.errors.push(params.entry.text);
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    if (method === "Page.javascriptDialogOpening") this.errors.push(`a dialog: ${params.message}`);
    if (method === "Page.loadEventFired") this.loaded?.();
  }

  /** Sets the size of the window, and light or dark. */
  async look({ width, height, dark, mobile = false }) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
  }

  async open(url) {
    const loaded = new Promise((resolve) => { this.loaded = resolve; });
    await this.send("Page.navigate", { url });
    await loaded;
  }

  /** Returns what an expression yields in the page. */
  async value(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  /** Waits until an expression is true. */
  async until(expression, milliseconds = 20000) {
    const end = Date.now() + milliseconds;
    while (!(await this.value(`Boolean(${expression})`))) {
      if (Date.now() > end) throw new Error(`not true after ${milliseconds} ms: ${expression}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Presses a key, as a user does. */
  async press(key, modifiers = 0) {
    const codes = { Enter: 13, Escape: 27, ArrowUp: 38, ArrowDown: 40, ArrowLeft: 37, ArrowRight: 39, Home: 36, End: 35, PageDown: 34, PageUp: 33, Tab: 9 };
    const text = key.length === 1 ? key : key === "Enter" ? "\r" : undefined;
    const event = { key, modifiers, windowsVirtualKeyCode: codes[key] ?? (/^[a-z0-9]$/i.test(key) ? key.toUpperCase().charCodeAt(0) : 0), text };
    await this.send("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", ...event });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  async type(text) {
    for (const key of text) await this.press(key);
  }

  /** Returns a place of an element in the window, in parts of its width and height. */
  place(selector, x, y) {
    return this.value(`(() => { const r = document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect(); return [r.left + r.width * ${x}, r.top + r.height * ${y}]; })()`);
  }

  /** Moves the pointer to the middle of an element, or to another place of it. */
  async hover(selector, x = 0.5, y = 0.5) {
    const [left, top] = await this.place(selector, x, y);
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", x: left, y: top, button: "none" });
  }

  /** Clicks there. */
  async click(selector, x = 0.5, y = 0.5) {
    await this.hover(selector, x, y);
    const [left, top] = await this.place(selector, x, y);
    for (const type of ["mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, x: left, y: top, button: "left", clickCount: 1 });
    }
  }

  /** Returns a picture of the window as PNG. */
  async picture() {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    return Buffer.from(data, "base64");
  }
}
