// Colours of numbers. One hue shows weights; a second one shows negative numbers. Both follow the theme of the page.

import {isDark} from "./theme.js";

const scales = new Map(); // reading the style of the page is slow, so a scale is made once for each theme

function cached(name, make) {
  const key = `${name}, ${isDark() ? "dark" : "light"}`;
  if (!scales.has(key)) scales.set(key, make());
  return scales.get(key);
}

function parse(colour) {
  const hex = colour.trim().slice(1);
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function blend(from, to, fraction) {
  return from.map((start, i) => Math.round(start + (to[i] - start) * fraction));
}

function variable(name) {
  return parse(getComputedStyle(document.documentElement).getPropertyValue(name));
}

/** 256 colours [r, g, b] from "nothing" to the strongest colour of the theme. */
export function weightColours() {
  return cached("weights", () => {
    const [low, middle, high] = [variable("--cell"), variable("--heat-middle"), variable("--heat")];
    return Array.from({length: 256}, (_, i) =>
      i < 128 ? blend(low, middle, i / 127) : blend(middle, high, (i - 128) / 127),
    );
  });
}

/** 256 colours for stored numbers around 128: below it the colour of negative numbers, above it that of weights. */
export function signedColours() {
  return cached("signed", () => {
    const [none, negative, positive] = [variable("--cell"), variable("--negative"), variable("--heat")];
    return Array.from({length: 256}, (_, i) =>
      blend(none, i < 128 ? negative : positive, Math.min(1, Math.abs(i - 128) / 127)),
    );
  });
}

/** The colours of the cells of a mask, by the number of their reason (see mask_reasons.js). */
export function maskColours() {
  const names = ["visible", "padding", "document", "future", "window"];
  return cached("mask", () => names.map((name) => variable(`--mask-${name}`)));
}

/** A colour as CSS writes it. */
export function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

/** The text colour, black or white, that has more contrast with a colour; it is at least 4.5. */
export function inkOn([r, g, b]) {
  const linear = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000000" : "#ffffff";
}
