// Tables and lists of a report: classes, confusion, lengths, errors, leaks.

import {html, scrollBox, shorten, table} from "./dom.js";

const MAX_CLASSES = 12;
const MAX_CONFUSION = 20;
const MAX_TEXT = 400;
const MAX_LEAKS = 8;

const percent = (value) => `${Math.round(100 * value)} %`;
const count = (value) => value.toLocaleString("en");

/** A number with its noun, in the plural if necessary. */
export const countNouns = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** A bar with its value as a text. */
function bar(value) {
  return html("span", {class: "bar"}, html("i", {style: {width: `${100 * value}%`}}), html("b", {}, percent(value)));
}

/** Precision, recall and F1 of the classes, the worst first. */
export function classTable(classes) {
  const present = Object.entries(classes).filter(([, one]) => one.expected);
  const rows = present.sort(([a, one], [b, two]) => one.f1 - two.f1 || (a < b ? -1 : 1));
  if (!rows.length) return null;
  const cells = ([name, one]) => [name, bar(one.f1), percent(one.precision), percent(one.recall), count(one.expected)];
  const shown = table(
    rows.length > MAX_CLASSES ? `The ${MAX_CLASSES} worst of ${rows.length} classes` : "Classes, the worst first",
    ["class", "F1", "precision", "recall", "records"],
    rows.slice(0, MAX_CLASSES).map(cells),
  );
  return html("div", {class: "block"}, scrollBox("Scores by class", shown));
}

/** The confusion matrix of few classes, or the most frequent confusions of many. */
export function confusionTable(confusion) {
  const names = [...new Set(Object.entries(confusion).flatMap(([name, row]) => [name, ...Object.keys(row)]))].sort();
  if (names.length < 2) return null;
  if (names.length > MAX_CONFUSION) return confusedPairs(confusion);
  const rows = names.map((expected) => {
    const row = confusion[expected] ?? {};
    const total = Object.values(row).reduce((sum, one) => sum + one, 0);
    const cells = names.map((predicted) => {
      const value = row[predicted] ?? 0;
      const strength = Math.round((100 * value) / Math.max(1, total));
      const kind = predicted === expected ? "right" : "wrong";
      const cell = html("span", {class: `confusion ${kind}`}, value ? count(value) : "·");
      cell.style.setProperty("--strength", `${strength}%`);
      return cell;
    });
    return [expected, ...cells];
  });
  const made = table("Confusion", ["expected ↓ predicted →", ...names], rows);
  return html("div", {class: "block"}, scrollBox("Confusion matrix", made));
}

function confusedPairs(confusion) {
  const pairs = Object.entries(confusion).flatMap(([expected, row]) =>
    Object.entries(row)
      .filter(([predicted]) => predicted !== expected)
      .map(([predicted, times]) => [expected, predicted, times]),
  );
  pairs.sort((one, two) => two[2] - one[2] || (one[0] < two[0] ? -1 : 1));
  if (!pairs.length) return null;
  const rows = pairs.slice(0, MAX_CLASSES).map(([expected, predicted, times]) => [expected, predicted, count(times)]);
  const made = table("The most frequent confusions", ["expected", "predicted", "records"], rows);
  return html("div", {class: "block"}, scrollBox("Confusions", made));
}

/** The mean score of short and long texts. */
export function lengthTable(lengths) {
  if (!lengths.length) return null;
  const rows = lengths.map((one) => [`up to ${one.longest} words`, bar(one.score), count(one.records)]);
  return html("div", {class: "block"}, table("Mean score of a record, by length of the text", ["length", "score", "records"], rows));
}

/** Records with predictions. */
export function errorList(title, sentence, errors, isClass) {
  if (!errors.length) return null;
  return html(
    "div",
    {class: "block"},
    html("h3", {}, title),
    html("p", {class: "note"}, sentence),
    html(
      "ul",
      {class: "records"},
      errors.map((one) =>
        html(
          "li",
          {},
          html("p", {class: "text"}, shorten(one.text, MAX_TEXT)),
          html(
            "dl",
            {class: isClass ? "inline" : ""},
            html("dt", {}, "predicted"),
            html("dd", {class: "wrong-text"}, shorten(one.predicted, MAX_TEXT), sureness(one)),
            html("dt", {}, "expected"),
            html("dd", {}, shorten(one.expected, MAX_TEXT)),
            one.baseline_prediction ? [html("dt", {}, "baseline"), html("dd", {}, shorten(one.baseline_prediction, MAX_TEXT))] : null,
          ),
          html("p", {class: "note"}, one.location),
        ),
      ),
    ),
  );
}

function sureness(one) {
  return one.confidence === null ? null : html("small", {}, ` ${percent(one.confidence)} sure`);
}

/** Records that occur in both training and evaluation data. */
export function leakList(name, report) {
  if (!report) return null;
  const near = report.leaks.length - report.num_exact;
  const compared = `among the ${report.complete ? "" : "first "}${countNouns(report.num_training, `training ${report.unit}`)}`;
  const total = countNouns(report.num_evaluation, `${name} ${report.unit}`);
  const found = report.leaks.length
    ? `${count(report.leaks.length)} of ${total} also occur${report.leaks.length === 1 ? "s" : ""} ${compared}: ` +
      `${count(report.num_exact)} word for word, ${count(near)} nearly.`
    : `None of ${total} occurs ${compared}, neither word for word nor nearly.`;
  const parts = [html("p", {}, found)];
  if (report.leaks.length) {
    const ordered = [...report.leaks].sort((one, two) => two.similarity - one.similarity);
    const rows = ordered
      .slice(0, MAX_LEAKS)
      .map((leak) => [
        leak.evaluation,
        leak.training,
        leak.similarity === 1 ? "equal" : percent(leak.similarity),
        html("span", {class: "wrap"}, shorten(leak.text, 200)),
        html("span", {class: "wrap"}, leak.similarity === 1 ? "the same words" : shorten(leak.training_text, 200)),
      ]);
    const headings = [name, "training", "similarity", `${name} text`, "training text"];
    const made = table("The most similar ones", headings, rows);
    parts.push(scrollBox(`Records in both ${name} and training data`, made));
  }
  if (report.conflicts.length) {
    const rows = report.conflicts
      .slice(0, MAX_LEAKS)
      .map(([text, one, other]) => [one, other, html("span", {class: "wrap"}, shorten(text, 200))]);
    const title = `${count(report.conflicts.length)} training texts occur with different labels`;
    parts.push(scrollBox(title, table(title, ["label", "other label", "text"], rows)));
  }
  return html("div", {class: "block"}, parts);
}
