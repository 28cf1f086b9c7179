// The studio: the controls, the panel that is shown, and the trace that it draws.

import {choice, html} from "./page/dom.js";
import {themeButton} from "./page/theme.js";
import {forgetInfos, loadInfo, makeContext, readsPairs} from "./context.js";
import {pictureButtons} from "./export.js";
import {answerLine, errorLine} from "./messages.js";
import {PANELS} from "./panels.js";
import {get} from "./server.js";
import {fromLink, toLink} from "./state.js";
import {stepPanel, walkCard} from "./walk.js";

const TYPING_MS = 250; // a trace starts this long after the last key
const RETRY_MS = 3000;
const TARGET = "Target (empty: the model's own output)";
const SECOND_TEXT = "Second text, such as the context of a question (empty: none)";

const state = fromLink(location.hash);
const models = []; // the names of all models
let contexts = []; // what is drawn, of each side
let running = new AbortController();

const root = document.getElementById("studio");
const parts = {
  controls: html("div", {class: "controls models"}),
  text: html("textarea", {id: "text", rows: 2, spellcheck: "false", oninput: () => typed("text", parts.text)}),
  target: html("textarea", {id: "target", rows: 2, spellcheck: "false", oninput: () => typed("target", parts.target)}),
  targetLabel: html("label", {for: "target"}),
  targetLine: html("div", {class: "field", hidden: true}),
  error: html("div", {role: "alert"}),
  answers: html("div", {class: "columns", "aria-live": "polite"}),
  walk: html("div", {}),
  nav: html("nav", {"aria-label": "Panels"}),
  title: html("h2", {id: "panel-title", tabindex: "-1"}),
  sentence: html("p", {class: "lead"}),
  body: html("div", {class: "columns", id: "panel"}),
  busy: html("span", {class: "busy", role: "status"}),
};

/** Change the choices. `quiet` only writes the link; `redraw` draws again without a new trace. */
function update(change, {quiet = false, redraw = false} = {}) {
  const isNewPanel = change.panel && change.panel !== state.panel;
  if (isNewPanel || change.model || change.other !== undefined) state.choices = "";
  for (const [name, value] of Object.entries(change)) {
    state[name] = typeof value === "function" ? value(state[name]) : value;
  }
  history[isNewPanel ? "pushState" : "replaceState"](null, "", toLink(state)); // "back" leads to the last panel
  if (quiet) return;
  showControls();
  if (redraw) drawPanel();
  else refresh();
}

let timer = 0;
function typed(name, element) {
  state[name] = element.value;
  state.position = null;
  clearTimeout(timer);
  timer = setTimeout(() => update({}), TYPING_MS);
}

/** Trace the text with each model, for the present panel, and draw it. */
async function refresh() {
  running.abort();
  running = new AbortController();
  const {signal} = running;
  const panel = currentPanel();
  parts.busy.textContent = "Computing …";
  try {
    if (panel.views) beginWithExample(await loadInfo(state.model, signal));
    const shared = {state, update, fail, signal};
    const sides = state.other && panel.views ? [0, 1] : [0];
    const found = await Promise.all(sides.map((side) => makeContext(side, panel, shared)));
    if (signal.aborted) return;
    contexts = found;
    parts.error.replaceChildren();
    drawPanel();
  } catch (error) {
    fail(error);
  } finally {
    if (!signal.aborted) parts.busy.textContent = "";
  }
}

/** Show the field that the model can use, and an example if there is no text yet. */
function beginWithExample(info) {
  parts.targetLine.hidden = !readsPairs(info) && info.family !== "seq2seq";
  parts.targetLabel.textContent = readsPairs(info) ? SECOND_TEXT : TARGET;
  if (state.text.trim()) return;
  update({text: info.examples[0]}, {quiet: true});
  parts.text.value = state.text;
}

/** Show an error. The pictures of the last trace stay. */
function fail(error) {
  if (error.name === "AbortError") return;
  const line = errorLine(error, connect);
  parts.error.replaceChildren(line);
  parts.busy.textContent = "";
  if (error.status === 0) setTimeout(() => line.isConnected && connect(), RETRY_MS);
}

function currentPanel() {
  return PANELS.find((panel) => panel.name === state.panel) ?? PANELS[0];
}

function drawPanel() {
  const panel = currentPanel();
  const focused = document.activeElement?.dataset.part;
  const column = (context) => {
    const heading = contexts.length > 1 ? html("h3", {class: "side"}, context.info.name) : null;
    const notes = (context.data?.notes ?? []).map((note) => html("p", {class: "warning"}, note));
    return html("div", {class: "column"}, heading, notes, panel.draw(context));
  };
  parts.body.replaceChildren(...contexts.map(column));
  parts.body.classList.toggle("two", contexts.length > 1);
  restoreChoices();
  if (focused) parts.body.querySelector(`[data-part="${CSS.escape(focused)}"]`)?.focus();
  parts.answers.replaceChildren(...contexts.filter((one) => one.data).map(answerLine));
  parts.answers.classList.toggle("two", contexts.length > 1);
  drawWalk();
  root.dataset.ready = panel.name;
}

function panelMenus() {
  return [...parts.body.querySelectorAll("select:not([data-state])")];
}

/** Choose again in the menus of the panel what was chosen before it was drawn anew. */
function restoreChoices() {
  const [chosen, menus] = [state.choices.split("-").map(Number), panelMenus()];
  if (!state.choices || chosen.length !== menus.length) return;
  menus.forEach((menu, i) => {
    if (menu.selectedIndex === chosen[i] || chosen[i] >= menu.options.length) return;
    menu.selectedIndex = chosen[i];
    menu.dispatchEvent(new Event("change"));
  });
}

function drawWalk() {
  const focused = document.activeElement?.closest(".walk") ? document.activeElement.textContent : "";
  parts.walk.replaceChildren(state.step ? walkCard({state, update, context: contexts[0] ?? {}}) : "");
  const buttons = [...parts.walk.querySelectorAll("button")];
  if (focused) (buttons.find((one) => one.textContent === focused && !one.disabled) ?? buttons[0])?.focus();
}

function showControls() {
  parts.title.textContent = currentPanel().title;
  parts.sentence.textContent = currentPanel().sentence;
  const index = (name) => Math.max(0, models.indexOf(name));
  parts.controls.replaceChildren(
    choice("Model", models, (i) => update({model: models[i], off: [], position: null, head: ""}), index(state.model)),
    choice(
      "Beside it",
      ["no second model", ...models],
      (i) => update({other: i ? models[i - 1] : "", otherOff: []}),
      state.other ? 1 + index(state.other) : 0,
    ),
    html(
      "button",
      {type: "button", class: "quiet", onclick: () => update({step: state.step || 1, panel: stepPanel(state.step || 1)})},
      "What is attention? Try it",
    ),
    linkButton(),
  );
  if (parts.text.value !== state.text) parts.text.value = state.text;
  if (parts.target.value !== state.target) parts.target.value = state.target;
  for (const link of parts.nav.querySelectorAll("a")) {
    if (link.dataset.panel !== currentPanel().name) link.removeAttribute("aria-current");
    else {
      link.setAttribute("aria-current", "page");
      if (parts.nav.scrollWidth > parts.nav.clientWidth) parts.nav.scrollLeft = link.offsetLeft - 60; // on a narrow screen
    }
  }
}

function linkButton() {
  const button = html("button", {type: "button", class: "quiet"}, "Copy link");
  button.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    button.textContent = "Link copied";
    setTimeout(() => (button.textContent = "Copy link"), 2000);
  });
  return button;
}

function navigation() {
  return PANELS.map(({name, title}) =>
    html(
      "a",
      {
        href: `#${name}`,
        "data-panel": name,
        onclick: (event) => {
          event.preventDefault();
          update({panel: name});
        },
      },
      title,
    ),
  );
}

async function start() {
  parts.body.addEventListener("change", () => {
    const choices = panelMenus().map((menu) => menu.selectedIndex);
    update({choices: choices.join("-")}, {quiet: true});
  });
  parts.nav.append(...navigation());
  parts.targetLine.append(parts.targetLabel, parts.target);
  const savers = pictureButtons(
    () => parts.body,
    () => state.panel,
  );
  root.replaceChildren(
    html("header", {class: "top"}, html("h1", {}, "qkv studio"), parts.controls, themeButton()),
    html(
      "div",
      {role: "region", "aria-label": "Text and answer"},
      html(
        "div",
        {class: "fields"},
        html("div", {class: "field"}, html("label", {for: "text"}, "Text"), parts.text),
        parts.targetLine,
      ),
      parts.error,
      parts.answers,
    ),
    parts.nav,
    html(
      "main",
      {},
      parts.walk,
      html("div", {class: "panel-head"}, parts.title, parts.busy, html("div", {class: "buttons"}, savers)),
      parts.sentence,
      parts.body,
    ),
  );
  await connect();
}

/** Read the list of models, and trace the text. */
async function connect() {
  try {
    forgetInfos();
    const found = await get("models");
    models.splice(0, models.length, ...found.models);
    if (!models.includes(state.model)) state.model = models[0] ?? "";
    if (!models.includes(state.other)) state.other = "";
    update({});
  } catch (error) {
    fail(error);
  }
}

window.addEventListener("hashchange", () => {
  Object.assign(state, fromLink(location.hash));
  if (!models.includes(state.model)) state.model = models[0] ?? "";
  update({});
});
start();
