// Charts of a report, as SVG: scores with intervals, loss curves, and the learning curve.

import {html, svg} from "./dom.js";
import {roundTicks} from "./ticks.js";

const WIDTH = 640;
const LEFT = 56;
const RIGHT = 16;
const COUNT = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

/** A score in the notation of its scale: "plain", "0 to 100" or "fraction". */
export function formatScore(scale, value) {
  if (value === null || value === undefined) return "–";
  if (scale === "plain") return value.toFixed(3);
  return scale === "0 to 100" ? value.toFixed(1) : `${(100 * value).toFixed(1)} %`;
}

/** Whether the best possible score is not 1. */
function isLarge({scale, metric}) {
  return scale === "0 to 100" || metric === "loss";
}

/** The model and the baselines as bars with confidence intervals. */
export function scoreChart(score) {
  const rows = [
    ["this model", score.model],
    ...[...score.baselines].reverse().map((one) => [one.name, one]),
    ...(score.training ? [["this model on its training data", score.training]] : []),
  ];
  const ends = rows.flatMap(([, one]) => [one.value, ...(one.interval ?? [])]).filter((value) => value !== null);
  const most = isLarge(score) ? Math.max(...ends, 1e-9) : 1;
  const place = (value) => `${Math.min(100, Math.max(0, (100 * value) / most))}%`;
  return html(
    "ul",
    {class: "scores"},
    rows.map(([name, one], i) => {
      const [low, high] = one.interval ?? [null, null];
      const interval = low === null ? "" : ` (${formatScore(score.scale, low)} to ${formatScore(score.scale, high)})`;
      const track = html("span", {class: "track", "aria-hidden": "true"}, html("i", {style: {width: place(one.value)}}));
      if (low !== null) {
        const width = `${(100 * (Math.min(high, most) - Math.max(low, 0))) / most}%`;
        track.append(html("b", {style: {left: place(low), width}}));
      }
      return html(
        "li",
        {class: i === 0 ? "own" : ""},
        html("span", {class: "name"}, name),
        track,
        html("span", {class: "value"}, html("strong", {}, formatScore(score.scale, one.value)), html("small", {}, interval)),
      );
    }),
  );
}

/** Training and validation loss over the steps. */
export function lossChart(curves) {
  const lines = [
    ["training", curves.training, "line thin"],
    ["validation", curves.validation.loss ?? [], "line"],
  ].map(([name, points, kind]) => [name, points.filter(([, value]) => value !== null), kind]);
  const drawn = lines.filter(([, points]) => points.length > 1);
  if (!drawn.length) return null;
  const label = `Loss over the steps: ${drawn.map(([name, points]) => `${name} ${points.at(-1)[1].toFixed(3)} at the end`).join(", ")}`;
  return html(
    "figure",
    {class: "chart"},
    html("figcaption", {}, "Loss over the steps: thin for training, bold for validation"),
    drawChart(label, drawn, {y: (value) => String(Number(value.toPrecision(3)))}),
  );
}

/** The score on fractions of the data, and the gain to expect from twice the data. */
export function curveChart(curve) {
  const points = curve.points.map((one) => [one.records, one.score]);
  const [size, score] = points.at(-1);
  const isLoss = curve.metric === "loss";
  const direction = isLoss ? -1 : 1;
  const factor = isLarge(curve) ? direction : 100;
  const sign = (value) => `${factor * value < 0 ? "−" : "+"}${Math.abs(factor * value).toFixed(isLoss ? 2 : 1)}`;
  const {value: gain, measured} = curve.gain;
  const [low, high] = isLoss ? [...measured].reverse() : measured;
  const end = (value) => score + direction * value;
  const band = [2 * size, end(low), end(high)];
  const unit = isLoss ? "nats per token" : "points";
  const sentence = `Twice the data: about ${sign(gain)} ${unit}, between ${sign(low)} and ${sign(high)}.`;
  return html(
    "div",
    {},
    html("p", {class: "lead"}, `${sentence} The curve is that of ${curve.model}.`),
    html(
      "figure",
      {class: "chart"},
      html("figcaption", {}, `Score over the number of training ${curve.unit}s; dashed: the extrapolation with its 95 % interval`),
      drawChart(
        sentence,
        [
          ["measured", points, "line"],
          ["twice the data", [[size, score], [2 * size, end(gain)]], "line dashed"],
        ],
        {y: (value) => formatScore(curve.scale, value), log: true, dots: points, band},
      ),
    ),
  );
}

function drawChart(label, lines, {y: formatY, log = false, dots = [], band = null}) {
  const height = 260;
  const [top, bottom] = [12, height - 32];
  const all = lines.flatMap(([, points]) => points);
  const xs = all.map(([x]) => (log ? Math.log(x) : x));
  const ys = [...all.map(([, y]) => y), ...(band ? band.slice(1) : [])];
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = spread(Math.min(...ys), Math.max(...ys));
  const px = (x) => LEFT + ((WIDTH - LEFT - RIGHT) * ((log ? Math.log(x) : x) - x0)) / (x1 - x0 || 1);
  const py = (y) => bottom - ((bottom - top) * (y - y0)) / (y1 - y0 || 1);
  const ticks = roundTicks(y0, y1);
  const xTicks = log ? [...new Set(all.map(([x]) => x))] : roundTicks(x0, x1);
  return svg(
    "svg",
    {viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label},
    ticks.map((tick) => [
      svg("path", {class: "grid", d: `M${LEFT} ${py(tick)}H${WIDTH - RIGHT}`}),
      svg("text", {x: LEFT - 6, y: py(tick) + 4, "text-anchor": "end"}, formatY(tick)),
    ]),
    xTicks.map((tick) => svg("text", {x: px(tick), y: height - 10, "text-anchor": "middle"}, COUNT.format(tick))),
    band ? svg("path", {class: "interval", d: `M${px(band[0])} ${py(band[1])}V${py(band[2])}`}) : null,
    lines.map(([, points, kind]) =>
      svg("path", {class: kind, d: points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("")}),
    ),
    dots.map(([x, y]) => svg("circle", {class: "dot", cx: px(x), cy: py(y), r: 4})),
  );
}

/** The range of an axis with some room at both ends. */
function spread(low, high) {
  const room = 0.05 * (high - low || Math.abs(high) || 1);
  return [low - room < 0 && low >= 0 ? 0 : low - room, high + room];
}
