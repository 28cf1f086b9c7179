// The page of `qkv report`: what to do next, and what it follows from.

import {html} from "./dom.js";
import {curveChart, lossChart, scoreChart} from "./report_charts.js";
import {classTable, confusionTable, countNouns, errorList, leakList, lengthTable} from "./report_tables.js";
import {themeButton} from "./theme.js";

const TASKS = {
  text_to_text: "text to text",
  language: "language model",
  fill: "masked language model",
  classify: "classifier",
  tag: "tagger",
  answer: "question answering",
  embed: "embeddings",
};

/** The sections: id, title, and what it shows; a section without content is left out. */
const SECTIONS = [
  ["next", "What next", adviceView],
  ["score", "Score", scoreView],
  ["training", "Training", trainingView],
  ["classes", "Classes and lengths", classesView],
  ["errors", "Errors", errorsView],
  ["data", "Data", dataView],
  ["curve", "Learning curve", curveView],
];

function mount(root, data) {
  const made = SECTIONS.map(([id, title, view]) => [id, title, view(data).flat().filter(Boolean)]);
  const sections = made.filter(([, , content]) => content.length);
  root.replaceChildren(
    html(
      "header",
      {class: "top"},
      html(
        "div",
        {},
        html("h1", {}, data.run),
        html("p", {class: "subtitle"}, `${TASKS[data.task] ?? data.task} · ${data.data_name}`),
        data.model_notes.map((note) => html("p", {class: "warning"}, note)),
      ),
      themeButton(),
    ),
    html(
      "nav",
      {"aria-label": "Sections"},
      sections.map(([id, title]) => html("a", {href: `#${id}`}, title)),
    ),
    html(
      "main",
      {},
      sections.map(([id, title, content]) =>
        html(
          "section",
          {id, "aria-labelledby": `${id}-title`},
          html("h2", {id: `${id}-title`}, title),
          content,
        ),
      ),
    ),
    html("footer", {}, data.notes.map((note) => html("p", {class: "note"}, note)), `Made by qkv report in ${Math.round(data.seconds)} s.`),
  );
  root.dataset.ready = "true";
}

function adviceView(data) {
  if (!data.advice.length) {
    return [html("p", {}, "Nothing stands out: no change to the recipe is clearly better.")];
  }
  const shown = data.advice.slice(0, data.num_main_advice);
  const rest = data.advice.slice(data.num_main_advice);
  const hasSeveral = shown.filter((advice) => advice.starts_run).length > 1;
  return [
    hasSeveral ? html("p", {class: "note"}, "The commands are alternatives: each trains a new run, without the changes of the others.") : null,
    html(
      "ol",
      {class: "advice"},
      shown.map((advice) =>
        html(
          "li",
          {},
          html("h3", {}, advice.title),
          html("p", {}, advice.reason),
          advice.command ? html("pre", {class: "command", tabindex: "0"}, html("code", {}, advice.command)) : null,
        ),
      ),
    ),
    rest.length ? html("p", {class: "note"}, `Also: ${rest.map((advice) => advice.title).join("; ")}.`) : null,
  ];
}

function scoreView(data) {
  if (!data.score) return [];
  return [
    html("p", {class: "lead"}, scoreSentence(data)),
    scoreChart(data.score),
    html("p", {class: "note"}, "Lines mark 95 % confidence intervals: resampling the records gives scores between their ends."),
  ];
}

function scoreSentence({score}) {
  const sampled = score.num_records < score.num_usable ? `${score.num_records.toLocaleString("en")} of ` : "";
  const total = countNouns(Math.max(score.num_records, score.num_usable), score.unit);
  const measured = `${startSentence(score.metric_name)} on ${sampled}${total}`;
  const unusable = score.num_unusable ? ` ${score.num_unusable.toLocaleString("en")} more lack a field of the task.` : "";
  const best = score.metric === "loss" ? score.baselines[0] : score.baselines.at(-1);
  if (!best) return `${measured}.${unusable}`;
  const lower = score.metric === "loss";
  const [low, high] = score.model.interval ?? [score.model.value, score.model.value];
  const isAbove = lower ? high < best.value : low > best.value;
  const isBelow = lower ? low > best.value : high < best.value;
  const words = isAbove ? "better than" : isBelow ? "worse than" : "not clearly different from";
  return `${measured}: the model is ${words} the best baseline (${best.name}).${unusable}`;
}

/** The name of a metric at the beginning of a sentence; "chrF" and the like stay as they are. */
function startSentence(name) {
  return /^[a-z]+( |$)/.test(name) ? name[0].toUpperCase() + name.slice(1) : name;
}

function trainingView(data) {
  const summary = data.curve_verdict.summary;
  return [html("p", {class: "lead"}, `${summary[0].toUpperCase()}${summary.slice(1)}.`), lossChart(data.curves)];
}

function classesView({score}) {
  if (!score) return [];
  return [classTable(score.classes), confusionTable(score.confusion), lengthTable(score.lengths)];
}

function errorsView({errors, task}) {
  if (!errors || !errors.num_wrong) return [];
  const isClass = task === "classify";
  return [
    errors.has_suspect_labels
      ? errorList(
          "Suspect labels",
          `The model is confident, and the baseline predicts the same other label: ${errors.num_suspects} of ` +
            `the ${errors.num_sure} records with the highest confidence.`,
          errors.suspects,
          isClass,
        )
      : null,
    errors.has_suspect_labels
      ? null
      : errorList("Errors with the highest confidence", "Read these first: the label may be wrong.", errors.most_confident, isClass),
    errorList("Worst errors", "The predictions with the lowest scores.", errors.worst, isClass),
  ];
}

function dataView(data) {
  const counted = data.data;
  const parts = [];
  if (counted) {
    const counts = [
      [counted.truncated, "truncated"],
      [counted.skipped, "left out because they are too long"],
      [counted.empty, "empty"],
      [counted.invalid, "invalid"],
    ];
    const lost = counts.filter(([count]) => count).map(([count, name]) => `${count.toLocaleString("en")} ${name}`);
    parts.push(
      html(
        "p",
        {},
        `${countNouns(counted.records, `training ${counted.unit}`)} of ${counted.tokens.toLocaleString("en")} tokens: ` +
          `${lost.join(", ") || "none truncated or unusable"}.`,
      ),
    );
  }
  parts.push(leakList("evaluation", data.leakage), leakList("test", data.test_leakage));
  return parts;
}

function curveView(data) {
  if (data.learning_curve) return [curveChart(data.learning_curve)];
  if (!data.errors) return [];
  const command = `qkv report ${data.run} --curve-minutes 15`;
  return [
    html("p", {}, "Would more data help? To train the recipe on a quarter, half and all of the data, for 15 minutes in all:"),
    html("pre", {class: "command", tabindex: "0"}, html("code", {}, command)),
  ];
}

const embedded = document.getElementById("report-data");
if (embedded) mount(document.getElementById("report"), JSON.parse(embedded.textContent));
