// Make elements. Every text goes through textContent or setAttribute, so a token such as "<img onerror=…>" stays text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

/** Make an HTML element: `html("p", {class: "note"}, "text", otherElement)`. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const VISIBLE = new Map([
  [" ", "␣"],
  ["\n", "⏎"],
  ["\r", "␍"],
  ["\t", "⇥"],
  ["", "∅"],
]);

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

// Control characters, and characters without width that are not part of a letter or an emoji.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** The text of a token, with spaces at its ends and control characters made visible. */
export function visibleToken(text) {
  if (text === "") return VISIBLE.get("");
  const shown = text.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  return shown.replace(INVISIBLE, (c) => VISIBLE.get(c) ?? "�");
}

/** A token and its position, because a text can have the same token several times. */
export function tokenAt(texts, i) {
  return withPosition(visibleToken(texts[i]), i);
}

/** A text with a position after it. Isolation keeps the order if the text runs from right to left. */
export function withPosition(text, i) {
  return `${RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text} (${i})`;
}

/** A text of at most `length` characters. */
export function shorten(text, length) {
  const characters = Array.from(text);
  return characters.length <= length ? text : characters.slice(0, length - 1).join("") + "…";
}

/** A number of things: `count(2, "token")` is "2 tokens". */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** A number for a reader: `digits` after the decimal point, and a true minus sign. */
export function number(value, digits = 3) {
  if (value === -Infinity) return "−∞";
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = size >= 1e6 ? size.toExponential(2) : size.toFixed(digits);
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text;
}

/** A labelled `<select>`. `options` are texts; `change` gets the index of the chosen one. */
export function choice(label, options, change, chosen = 0) {
  const select = html(
    "select",
    {onchange: () => change(select.selectedIndex)},
    options.map((text) => html("option", {}, text)),
  );
  select.selectedIndex = chosen;
  return html("label", {class: "choice"}, html("span", {}, label), select);
}

/** A table with a header row; each row's first cell is its header. `rows` are lists of texts or elements. */
export function table(caption, headings, rows) {
  return html(
    "table",
    {class: "numbers"},
    html("caption", {}, caption),
    html(
      "thead",
      {},
      html(
        "tr",
        {},
        headings.map((name) => html("th", {scope: "col"}, name)),
      ),
    ),
    html(
      "tbody",
      {},
      rows.map((cells) =>
        html(
          "tr",
          {},
          cells.map((cell, i) => (i === 0 ? html("th", {scope: "row"}, cell) : html("td", {}, cell))),
        ),
      ),
    ),
  );
}

/** A box that scrolls sideways when its content is too wide. It takes the focus, so that arrow keys scroll it. */
export function scrollBox(label, ...children) {
  return html("div", {class: "scroll", tabindex: "0", role: "group", "aria-label": label}, children);
}

/** Content that is closed at first. It is made when it is opened, because a table of numbers can be long. */
export function disclosure(summary, make) {
  const details = html("details", {}, html("summary", {}, summary));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}
