// Save a part of the page as a picture: its boxes, texts, canvases and drawings become one SVG; a PNG is made of that.

import {html, svg} from "./page/dom.js";
import {standalone} from "./page/save.js";

const MARGIN = 12; // pixels
const PNG_SCALE = 2; // pixels of the PNG for each pixel of the page
const MAX_PNG_SIDE = 8000;
const SKIPPED = new Set(["BUTTON", "SELECT", "INPUT", "TEXTAREA", "SUMMARY", "LABEL", "OPTION"]);

/** Two buttons that save what `find` returns. */
export function pictureButtons(find, name) {
  const button = (text, save) => {
    const element = html("button", {type: "button", class: "quiet", "data-picture": text}, `Save ${text}`);
    element.addEventListener("click", () => save(find()));
    return element;
  };
  return [
    button("SVG", (element) => download(new Blob([toSvg(element).text], {type: "image/svg+xml"}), `${name()}.svg`)),
    button("PNG", async (element) => download(await toPng(element), `${name()}.png`)),
  ];
}

/**
 * An element as {text, width, height}: an SVG without style sheet. Controls are left out, except buttons in pictures.
 * While it is measured, columns are below each other, and boxes that scroll are at their beginning.
 */
export function toSvg(element) {
  const scrolled = [...element.querySelectorAll(".scroll, .heads")].map((box) => [box, box.scrollLeft, box.scrollTop]);
  element.classList.add("exporting");
  for (const [box] of scrolled) box.scrollTo(0, 0);
  const parts = [];
  const frame = element.getBoundingClientRect();
  visit(element, frame, parts);
  element.classList.remove("exporting");
  for (const [box, left, top] of scrolled) box.scrollTo(left, top);
  const right = parts.reduce((most, part) => Math.max(most, part.right), frame.left + 1) - frame.left;
  const bottom = parts.reduce((most, part) => Math.max(most, part.bottom), frame.top + 1) - frame.top;
  const size = {width: Math.ceil(right + 2 * MARGIN), height: Math.ceil(bottom + 2 * MARGIN)};
  const picture = svg(
    "svg",
    {xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${size.width} ${size.height}`, ...size},
    svg("rect", {...size, fill: getComputedStyle(document.body).backgroundColor}),
    svg(
      "g",
      {transform: `translate(${MARGIN} ${MARGIN})`},
      parts.map((part) => part.node),
    ),
  );
  return {text: new XMLSerializer().serializeToString(picture), ...size};
}

function visit(element, origin, parts) {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden") return;
  const isPart = element.matches(".head, .cell, .link, .switch");
  if (SKIPPED.has(element.tagName) && !isPart) return;
  const box = element.getBoundingClientRect();
  const place = {x: box.left - origin.left, y: box.top - origin.top};
  const add = (node) => parts.push({node, right: box.right, bottom: box.bottom});
  if (element.tagName === "svg") {
    const copy = new DOMParser().parseFromString(standalone(element), "image/svg+xml").documentElement;
    const size = {...place, width: box.width, height: box.height};
    for (const [name, value] of Object.entries(size)) copy.setAttribute(name, value);
    add(document.importNode(copy, true));
    return;
  }
  if (element.tagName === "CANVAS") {
    const size = {...place, width: box.width, height: box.height, preserveAspectRatio: "none"};
    add(svg("image", {...size, href: element.toDataURL(), style: {imageRendering: "pixelated"}}));
    return;
  }
  const hasBorder = parseFloat(style.borderTopWidth) > 0 && style.borderTopStyle !== "none";
  const isFilled = !/^rgba\(0, 0, 0, 0\)$|^transparent$/.test(style.backgroundColor);
  if ((hasBorder || isFilled) && box.width && box.height) {
    const stroke = hasBorder ? {stroke: style.borderTopColor, "stroke-width": parseFloat(style.borderTopWidth)} : {};
    if (style.borderTopStyle === "dashed") stroke["stroke-dasharray"] = "3 3";
    const fill = isFilled ? style.backgroundColor : "none";
    const rx = parseFloat(style.borderRadius) || 0;
    add(svg("rect", {...place, width: box.width, height: box.height, rx, fill, ...stroke}));
  }
  for (const child of element.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) addText(child, style, origin, parts);
    else if (child.nodeType === Node.ELEMENT_NODE) visit(child, origin, parts);
  }
}

/** A text element for each line of a text node. */
function addText(node, style, origin, parts) {
  const range = document.createRange();
  const size = parseFloat(style.fontSize);
  let [start, line] = [0, null];
  const flush = (end) => {
    const text = node.data.slice(start, end);
    if (!line || !text.trim()) return;
    const attributes = {
      x: line.left - origin.left,
      y: line.top - origin.top + line.height / 2 + size * 0.35,
      fill: style.color,
      "font-size": size,
      "font-family": style.fontFamily,
      "font-weight": style.fontWeight,
      "xml:space": "preserve",
    };
    parts.push({node: svg("text", attributes, text.trimEnd()), right: line.right, bottom: line.bottom});
  };
  for (let i = 0; i < node.data.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const box = range.getClientRects()[0];
    if (!box) continue;
    if (line && Math.abs(box.top - line.top) < size / 2) {
      line = {...line, right: box.right, bottom: box.bottom};
      continue;
    }
    flush(i);
    start = i;
    line = {left: box.left, top: box.top, right: box.right, bottom: box.bottom, height: box.height};
  }
  flush(node.data.length);
}

/** An element as a PNG. */
export async function toPng(element) {
  const {text, width, height} = toSvg(element);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const scale = Math.min(PNG_SCALE, MAX_PNG_SIDE / Math.max(width, height));
  const canvas = html("canvas", {width: Math.round(width * scale), height: Math.round(height * scale)});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

function download(blob, name) {
  const link = html("a", {href: URL.createObjectURL(blob), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
