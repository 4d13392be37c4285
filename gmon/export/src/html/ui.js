// Makes elements. Texts of the profile reach the page through here only, as text: never as HTML.

/** Returns a new element. A property that begins with `aria-` or `data-`, `role` and `for` are attributes; one with `on` listens. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (/^(aria-|data-|role$|for$)/.test(key)) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replaces what the element contains. */
function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** Has screen readers say a text. */
function say(text) {
  document.getElementById("said").textContent = text;
}

/** Returns the hash of a view with parameters; those that are null are left out. */
function hashOf(view, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  const text = query.toString();
  return `#${view}${text === "" ? "" : "?" + text}`;
}

/** Returns a link to the call graph's entry of a function. */
function functionLink(run, id) {
  return el("a", { className: "function", href: hashOf("graph", { function: id }), textContent: run.short(id), title: describe(run, id), tabIndex: -1 });
}

/** Returns the same with the whole name. */
function fullLink(run, id) {
  const link = functionLink(run, id);
  link.textContent = run.names[id];
  return link;
}

/** Returns a cell with a share of the whole as a number over a bar. */
function shareCell(part, whole, className = "share") {
  const cell = el("span", { className, role: "cell" });
  setShare(cell, part, whole);
  return cell;
}

/** Sets what a share's cell shows. */
function setShare(cell, part, whole) {
  cell.textContent = part > 0 ? percent(part, whole) : "";
  const share = part > 0 && whole > 0 ? Math.min(part / whole, 1) : 0;
  cell.style.setProperty("--share", `${(100 * share).toFixed(2)}%`);
}

/** Returns a labelled choice. `options` are [value, text]. */
function choice(label, options, value, onchange) {
  const select = el(
    "select",
    { "aria-label": label, onchange: () => onchange(select.value) },
    ...options.map(([value, text]) => el("option", { value, textContent: text })),
  );
  select.value = value;
  return select;
}

/** Returns a choice of the run's programs and threads, or null if there is nothing to choose. `rows`: those with rows of functions only. */
function partChoice(run, rows, onchange) {
  const groups = Object.entries(run.parts(rows));
  if (groups.every(([label, options]) => label === "" || options.length === 0)) return null;
  const option = ([value, textContent]) => el("option", { value, textContent });
  const select = el("select", { "aria-label": "Program or thread", className: "part", onchange: () => onchange(select.value) });
  for (const [label, options] of groups) {
    if (label === "") select.append(...options.map(option));
    else if (options.length > 0) select.append(el("optgroup", { label }, ...options.map(option)));
  }
  return select;
}

/** Returns a button that is on or off. */
function toggle(text, on, title, onchange) {
  const button = el("button", { type: "button", className: "toggle", textContent: text, title, "aria-pressed": String(on) });
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    onchange(now);
  });
  return button;
}

/** Returns what a view shows that has nothing to show: what is missing, and the command that gives it. */
function empty(title, text, command) {
  return el(
    "section",
    { className: "empty" },
    el("h2", { textContent: title }),
    el("p", { textContent: text }),
    command ? el("pre", {}, el("code", { textContent: command })) : null,
  );
}
