// Learning curves as an SVG: a line for each run, told apart by its dashes, its colour and the name at its end.

import {number, shorten, svg} from "./page/dom.js";
import {roundTicks} from "./page/ticks.js";

const [MAX_WIDTH, MIN_WIDTH, HEIGHT] = [900, 280, 270]; // pixels, as all of these
const NARROW = 560; // a narrower picture has no room for names beside it
const [LEFT, TOP, BOTTOM] = [48, 26, 34];
const DASHES = ["none", "6 3", "2 3", "10 3 2 3", "1 4", "14 4"];
const MARKS = ["──", "╌╌", "┈┈", "─·", "··", "━╌"]; // the dashes, beside the names
const MAX_POINTS = 600;
const MAX_LETTERS = 18;

/**
 * `series` is a list of {name, points, style}; a point is [step, value], and a style is a number: lines with the same
 * one look alike. `room` is the width of the page.
 */
export function curves({label, series, room}) {
  const width = Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, room));
  const right = width < NARROW ? 16 : 170;
  const drawn = series.map((one, i) => ({...one, index: one.style ?? i, points: thin(usable(one.points))}));
  const all = drawn.flatMap((one) => one.points);
  if (!all.length) return null;
  const steps = range(all.map(([step]) => step), 0);
  const values = range(all.map(([, value]) => value));
  const x = (step) => LEFT + ((step - steps[0]) / (steps[1] - steps[0])) * (width - LEFT - right);
  const y = (value) => HEIGHT - BOTTOM - ((value - values[0]) / (values[1] - values[0])) * (HEIGHT - TOP - BOTTOM);
  return svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${HEIGHT}`,
      width,
      height: HEIGHT,
      role: "img",
      class: "curves",
      "aria-label": describe(label, drawn),
    },
    axis(values, steps, x, y, label),
    drawn.map(({points, index}) =>
      svg("polyline", {
        class: `run run-${index % 6}`,
        "stroke-dasharray": DASHES[index % 6],
        points: points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      }),
    ),
    names(drawn, x, y, width < NARROW),
  );
}

/** The names at the ends of the lines, with the last values; moved apart where they would overlap. */
function names(drawn, x, y, isNarrow) {
  const ended = drawn.filter((one) => one.points.length);
  const places = ended.map((one) => ({...one, last: one.points.at(-1), at: y(one.points.at(-1)[1])}));
  places.sort((a, b) => a.at - b.at);
  places.forEach((one, i) => {
    if (i > 0) one.at = Math.max(one.at, places[i - 1].at + 14);
  });
  return places.map(({name, last, at, index}) =>
    svg(
      "text",
      {
        x: isNarrow ? x(last[0]) : x(last[0]) + 6,
        y: isNarrow ? at - 10 : at,
        "text-anchor": isNarrow ? "end" : "start",
        class: "run-name",
        "dominant-baseline": "central",
      },
      svg("title", {}, name),
      `${MARKS[index % 6]} ${shorten(name, MAX_LETTERS)} ${number(last[1], 3)}`,
    ),
  );
}

function usable(points) {
  return points.filter(([step, value]) => Number.isFinite(step) && Number.isFinite(value));
}

/** At most MAX_POINTS points: the last of each group. */
function thin(points) {
  const every = Math.ceil(points.length / MAX_POINTS);
  return points.filter((_, i) => (points.length - 1 - i) % every === 0);
}

function range(numbers, lowest = Infinity) {
  const low = numbers.reduce((a, b) => Math.min(a, b), lowest);
  const high = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

function axis(values, steps, x, y, label) {
  const parts = [svg("text", {x: LEFT, y: 12, class: "tick"}, label)];
  const end = x(steps[1]);
  const ticks = roundTicks(...values);
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(ticks.length > 1 ? ticks[1] - ticks[0] : 0.01) + 1e-9)));
  for (const value of ticks) {
    const beside = {x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "central", class: "tick"};
    parts.push(
      svg("line", {x1: LEFT, x2: end, y1: y(value), y2: y(value), class: "grid"}),
      svg("text", beside, number(value, digits)),
    );
  }
  for (const step of roundTicks(...steps).filter(Number.isInteger)) {
    const below = {x: x(step), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", class: "tick"};
    parts.push(svg("text", below, step.toLocaleString("en")));
  }
  return parts;
}

function describe(label, drawn) {
  const ended = drawn.filter((one) => one.points.length);
  const ends = ended.map(({name, points}) => `${name} ends at ${number(points.at(-1)[1], 3)}`);
  return `${label} over the steps: ${ends.join("; ")}`;
}
