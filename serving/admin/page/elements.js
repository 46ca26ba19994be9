// Elements made from data. Text becomes text nodes and nothing else: names and reasons come from outside.

const SVG = "http://www.w3.org/2000/svg";
const shown = new WeakMap();

/** An HTML element. Functions among the attributes listen to events (`onclick`); `vars` sets CSS variables. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** Fills a place anew if what it shows has changed; the focus and what was unfolded stay. */
export function show(place, value, build) {
  const signature = JSON.stringify(value);
  if (shown.get(place) === signature) return;
  shown.set(place, signature);
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const unfolded = new Set([...place.querySelectorAll("details[open][data-key]")].map((each) => each.dataset.key));
  place.replaceChildren(...[build(value)].flat(Infinity).filter((child) => child));
  for (const each of place.querySelectorAll("details[data-key]")) if (unfolded.has(each.dataset.key)) each.open = true;
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

/** Keeps one child for each item, by its key, in order; `update(child, item)` fills it. */
export function keyed(place, items, key, make, update) {
  const before = new Map([...place.children].map((child) => [child.dataset.item, child]));
  let next = place.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const child = before.get(name) ?? make(item);
    before.delete(name);
    child.dataset.item = name;
    if (child === next) next = next.nextElementSibling;
    else place.insertBefore(child, next);
    update(child, item);
  }
  for (const gone of before.values()) gone.remove();
}

/** A label of a state, told by its text and its sign as well as by its colour. */
export function badge(kind, text, sign = "") {
  return h("span", { class: `badge ${kind}` }, sign && h("span", { "aria-hidden": "true" }, sign), text);
}

/** A version's name with its colour; the colour is the same everywhere. */
export function versionName(name) {
  return h("span", { class: "version" }, h("span", { class: `swatch ${colour(name)}`, "aria-hidden": "true" }), name);
}

/** The class of a version's colour: neighbours in the order of versions differ. */
export function colour(name) {
  return `v${(parseInt(name, 10) || 0) % 7}`;
}

/** What stands where there is nothing to show. */
export function empty(...text) {
  return h("p", { class: "empty" }, ...text);
}

/** A table; each cell is labelled with its column, so that narrow screens can stack them. */
export function table(caption, columns, rows) {
  const head = columns.map((column) => h("th", { scope: "col" }, column));
  const body = rows.map(({ cells, ...attributes }) =>
    h(
      "tr",
      attributes,
      cells.map((cell, index) =>
        h("td", { "data-label": columns[index], class: /^[\d–]/.test(cell) ? "number" : null }, cell),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}
