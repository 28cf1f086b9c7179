// Learning curves as an SVG: a line for each run, told apart by its dashes, its colour and the name at its end.

import {number, shorten, svg} from "./page/dom.js";

const [WIDTH, HEIGHT] = [760, 270];
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 150, 26, 34];
const DASHES = ["none", "6 3", "2 3", "10 3 2 3", "1 4", "14 4"];
const MAX_POINTS = 600;
const MAX_LETTERS = 16;

/** `series` is a list of {name, points}; a point is [step, value]. The loss may have a logarithmic axis. */
export function curves({label, series, logarithmic = false}) {
  const scale = logarithmic ? Math.log10 : (value) => value;
  const drawn = series.map((one, i) => ({...one, index: i, points: thin(usable(one.points, logarithmic))}));
  const all = drawn.flatMap((one) => one.points);
  if (!all.length) return null;
  const steps = range(all.map(([step]) => step), 0);
  const values = range(all.map(([, value]) => scale(value)));
  const x = (step) => LEFT + ((step - steps[0]) / (steps[1] - steps[0])) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((scale(value) - values[0]) / (values[1] - values[0])) * (HEIGHT - TOP - BOTTOM);
  const names = labelPlaces(drawn, y);
  return svg(
    "svg",
    {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", class: "curves", "aria-label": describe(label, drawn)},
    axis(values, steps, x, y, logarithmic, label),
    drawn.map(({points, index}) =>
      svg("polyline", {
        class: `run run-${index % 6}`,
        "stroke-dasharray": DASHES[index % 6],
        points: points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      }),
    ),
    drawn
      .filter(({points}) => points.length)
      .map(({name, points, index}) =>
        svg(
          "text",
          {x: x(points.at(-1)[0]) + 6, y: names.get(index), class: `run-name run-${index % 6}`, "dominant-baseline": "central"},
          svg("title", {}, name),
          `${shorten(name, MAX_LETTERS)} ${number(points.at(-1)[1], 3)}`,
        ),
      ),
  );
}

function usable(points, logarithmic) {
  return points.filter(([step, value]) => Number.isFinite(step) && Number.isFinite(value) && (!logarithmic || value > 0));
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

/** The heights of the names at the ends of the lines, moved apart where they would overlap. */
function labelPlaces(drawn, y) {
  const wanted = drawn.filter((one) => one.points.length).map((one) => [one.index, y(one.points.at(-1)[1])]);
  wanted.sort((a, b) => a[1] - b[1]);
  wanted.forEach((one, i) => {
    if (i > 0) one[1] = Math.max(one[1], wanted[i - 1][1] + 14);
  });
  return new Map(wanted);
}

function axis(values, steps, x, y, logarithmic, label) {
  const parts = [svg("text", {x: LEFT, y: 10, class: "tick"}, label)];
  const unscale = logarithmic ? (value) => 10 ** value : (value) => value;
  for (let i = 0; i <= 4; i++) {
    const value = unscale(values[0] + ((values[1] - values[0]) * i) / 4);
    const step = steps[0] + ((steps[1] - steps[0]) * i) / 4;
    parts.push(
      svg("line", {x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "grid"}),
      svg("text", {x: LEFT - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "central", class: "tick"}, number(value, value < 10 ? 2 : 0)),
      svg("text", {x: x(step), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", class: "tick"}, Math.round(step).toLocaleString("en")),
    );
  }
  return parts;
}

function describe(label, drawn) {
  const ends = drawn.filter((one) => one.points.length).map(({name, points}) => `${name} ends at ${number(points.at(-1)[1], 3)}`);
  return `${label} over the steps: ${ends.join("; ")}`;
}
