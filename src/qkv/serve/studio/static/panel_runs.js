// Runs: live curves, samples and messages of the training runs on this machine.

import {choice, html, number, scrollBox, table} from "./page/dom.js";
import {curves} from "./curves.js";
import {get} from "./server.js";

const POLL_MS = 2000;
const MAX_MESSAGES = 12;
const NOT_METRICS = new Set(["kind", "step", "seconds", "tokens", "best"]);
const logs = new Map(); // the records of each run, kept while the page is open

export function runsPanel({state, update, fail, signal}) {
  const list = html("fieldset", {class: "runs"}, html("legend", {}, "Runs"));
  const body = html("div", {});
  let [runs, shown, metric, study] = [[], null, null, null];
  const chosen = () => runs.filter((run) => state.runs.includes(run.id));
  const select = (ids) => {
    update({runs: ids}, {quiet: true});
    refresh().catch(fail);
  };
  const toggle = (id) =>
    select(state.runs.includes(id) ? state.runs.filter((one) => one !== id) : [...state.runs, id]);
  const refresh = async () => {
    runs = (await get("runs", signal)).runs;
    if (!state.runs.length && runs.length) update({runs: [runs[0].id]}, {quiet: true});
    const texts = JSON.stringify([runs, state.runs]);
    if (texts !== shown) fillList(list, runs, state.runs, toggle, select);
    shown = texts;
    const changed = await Promise.all(chosen().map((run) => follow(run, signal)));
    if (changed.some(Boolean) || body.dataset.shown !== state.runs.join()) {
      study = await findStudy(chosen(), signal);
      draw();
    }
    body.dataset.shown = state.runs.join();
  };
  const draw = () => {
    const found = chosen().map((run) => ({...run, ...summarise(logs.get(run.id).records)}));
    const metrics = [...new Set(found.flatMap((run) => Object.keys(run.metrics)))];
    metric = metrics.includes(metric) ? metric : (metrics.find((name) => name !== "loss") ?? metrics[0]);
    body.replaceChildren(
      ...(study ? verdict(study) : []),
      ...charts(found, study, metrics, metric, body.clientWidth, (i) => {
        metric = metrics[i];
        draw();
      }),
      ...messages(found),
    );
  };
  const poll = async () => {
    await refresh().catch((error) => error.name !== "AbortError" && fail(error));
    if (!signal.aborted) setTimeout(poll, POLL_MS);
  };
  poll();
  return html("div", {class: "block"}, list, body);
}

function fillList(list, runs, chosen, toggle, select) {
  const focused = document.activeElement?.dataset.run;
  const line = (run) =>
    html(
      "label",
      {},
      html("input", {
        type: "checkbox",
        checked: chosen.includes(run.id),
        "data-run": run.id,
        onchange: () => toggle(run.id),
      }),
      ` ${run.name} `,
      html("span", {class: `state ${run.state}`}, run.state),
    );
  const none = "There is no run in the folders of this server. Start one with qkv train, or name a folder with --runs.";
  list.replaceChildren(
    html("legend", {}, "Runs"),
    ...studyButtons(runs, select),
    ...(runs.length ? runs.map(line) : [html("p", {class: "note"}, none)]),
  );
  if (focused) list.querySelector(`[data-run="${focused}"]`)?.focus();
}

/** A button for each study, which chooses all of its runs. */
function studyButtons(runs, select) {
  const studies = [...new Set(runs.map((run) => run.study).filter(Boolean))];
  return studies.map((name) => {
    const ids = runs.filter((run) => run.study === name).map((run) => run.id);
    return html("button", {type: "button", class: "study", onclick: () => select(ids)}, `study ${name}`);
  });
}

/** The study of the chosen runs, if they all belong to the same one. */
async function findStudy(runs, signal) {
  const names = new Set(runs.map((run) => run.study));
  return names.size === 1 && runs[0].study ? await get(`runs/${runs[0].id}/study`, signal) : null;
}

/** The table of a study, and what its numbers support. */
function verdict({table: [headings, ...rows], notes}) {
  return [
    scrollBox("The study", table("The variants of the study", headings, rows)),
    ...notes.map((note) => html("p", {}, note)),
  ];
}

/** Read the new records of a run. Returns whether there were any. */
async function follow(run, signal) {
  const log = logs.get(run.id) ?? {records: [], cursor: ""};
  logs.set(run.id, log);
  let changed = log.state !== run.state;
  log.state = run.state;
  for (let more = true; more; ) {
    const found = await get(`runs/${run.id}?cursor=${encodeURIComponent(log.cursor)}`, signal);
    if (found.reset) log.records = [];
    log.records.push(...found.records);
    changed ||= found.reset || found.records.length > 0;
    log.cursor = found.cursor;
    more = found.more;
  }
  return changed;
}

/** The training loss, the metrics of the evaluations, the last samples and the messages of a run. */
function summarise(records) {
  const found = {training: [], metrics: {}, samples: [], notes: [], last: null};
  for (const record of records) {
    if (record.kind === "step") {
      found.training.push([record.step, record.loss]);
      found.last = record;
    } else if (record.kind === "eval") {
      for (const [name, value] of Object.entries(record)) {
        if (typeof value === "number" && !NOT_METRICS.has(name)) (found.metrics[name] ??= []).push([record.step, value]);
      }
    } else if (record.kind === "sample") found.samples.push(record);
    else if (record.kind === "note") found.notes.push(record);
  }
  const newest = found.samples.at(-1)?.step;
  found.samples = found.samples.filter((sample) => sample.step === newest);
  return found;
}

/** The curves of runs. Runs of one variant of a study have the same colour and dashes. */
function charts(found, study, metrics, metric, room, change) {
  const variants = study ? [...new Set(Object.values(study.variants))] : [];
  const styles = found.map(({id}, i) => (study && id in study.variants ? variants.indexOf(study.variants[id]) : i));
  const losses = found.map(({name, training}, i) => ({name, points: training, style: styles[i]}));
  const training = curves({label: "training loss", series: losses, room});
  const series = found.map(({name, metrics}, i) => ({name, points: metrics[metric] ?? [], style: styles[i]}));
  const evaluated = metric ? curves({label: `validation: ${metric}`, series, room}) : null;
  const headings = ["run", "state", "step", "loss", "tokens", "time"];
  const rows = found.map(({name, state, last}) => [
    name,
    state,
    last ? last.step.toLocaleString("en") : "–",
    last ? number(last.loss, 4) : "–",
    last ? (last.tokens ?? 0).toLocaleString("en") : "–",
    last ? `${number((last.seconds ?? 0) / 60, 1)} min` : "–",
  ]);
  return [
    training ? scrollBox("Training loss", training) : html("p", {class: "note"}, "No step is logged yet."),
    metrics.length > 1 ? choice("Metric", metrics, change, metrics.indexOf(metric)) : null,
    evaluated ? scrollBox("Validation", evaluated) : null,
    scrollBox("Runs as a table", table("The latest step of each run", headings, rows)),
  ].filter(Boolean);
}

function messages(found) {
  return found.flatMap(({name, samples, notes}) => [
    samples.length
      ? scrollBox(
          `Samples of ${name}`,
          table(
            `Samples of ${name} at step ${samples[0].step.toLocaleString("en")}`,
            ["source", "prediction", "expected"],
            samples.map((one) => [one.source, one.prediction, one.expected]),
          ),
        )
      : null,
    notes.length
      ? html(
          "div",
          {},
          html("h3", {}, `Messages of ${name}`),
          html(
            "ul",
            {class: "messages"},
            notes.slice(-MAX_MESSAGES).map((note) => html("li", {}, `step ${note.step}: ${note.text}`)),
          ),
        )
      : null,
  ].filter(Boolean));
}
