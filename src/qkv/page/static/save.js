// Save a picture of the page as an SVG file, with the colours of the present theme written into it.

import {html} from "./dom.js";

const COPIED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "font-family",
  "font-size",
  "font-weight",
  "opacity",
];

const DEFAULTS = {
  stroke: "none",
  "stroke-width": "1px",
  "stroke-dasharray": "none",
  "stroke-opacity": "1",
  "font-weight": "400",
  opacity: "1",
};
const TEXT_TAGS = new Set(["text", "image"]);

/** A button that saves the picture that `find` returns. `name` is a text, or a function that returns it. */
export function saveButton(find, name) {
  return html(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => save(standalone(find()), `${typeof name === "function" ? name() : name}.svg`),
    },
    "Save SVG",
  );
}

/** A copy of an SVG element that needs no style sheet. */
export function standalone(picture) {
  const copy = picture.cloneNode(true);
  const from = [picture, ...picture.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const property of COPIED) {
      const value = style.getPropertyValue(property);
      if (value !== DEFAULTS[property] && (TEXT_TAGS.has(element.tagName) || !property.startsWith("font")))
        to[i].setAttribute(property, value);
    }
    to[i].removeAttribute("style");
    to[i].removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

function save(text, name) {
  const link = html("a", {href: URL.createObjectURL(new Blob([text], {type: "image/svg+xml"})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
