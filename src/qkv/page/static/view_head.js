// One head in a dialog: its pattern with its mask, and the numbers of one query.

import {choice, disclosure, html, number, scrollBox, table, tokenAt, visibleToken} from "./dom.js";
import {loadHead} from "./head_numbers.js";
import {labelledHeatmap} from "./heatmap.js";
import {REASONS} from "./mask_reasons.js";
import {saveButton} from "./save.js";
import {onTheme} from "./theme.js";
import {stepsTable, vectorStrips} from "./view_steps.js";

const READING = "Each row is a query; its weights over the keys sum to 1. Click a cell to follow its numbers.";
const MASKED = " Empty cells are masked.";

/** Show a head. Escape closes the dialog. `actions` are those of view_attention.js. */
export async function openHead(data, attention, layerIndex, headIndex, actions = {}) {
  const numHeads = attention.heads.length;
  const count = attention.layers.length * numHeads;
  let index = layerIndex * numHeads + headIndex;
  const title = html("h2", {id: "head-title", "aria-live": "polite"});
  const body = html("div", {});
  let fileName = "";
  const extra = html("span", {class: "buttons"});
  const show = async () => {
    const place = [attention, attention.layers[Math.floor(index / numHeads)], attention.heads[index % numHeads]];
    await actions.load?.(...place);
    actions.opened?.(place);
    extra.replaceChildren(...(actions.buttons?.(...place, () => dialog.close()) ?? []));
    const head = await loadHead(data, attention, Math.floor(index / numHeads), index % numHeads);
    title.textContent = `${attention.title} · layer ${head.layer} · head ${head.head}`;
    fileName = `${attention.name}-${head.layer}-${head.head}`;
    body.replaceChildren(headBody(head, data.rounding.pattern));
  };
  const stepButton = (by, text) => {
    const onclick = () => {
      index = (index + by + count) % count;
      show();
    };
    return html("button", {type: "button", class: "quiet", onclick}, text);
  };
  const close = html("button", {type: "button", class: "quiet", onclick: () => dialog.close()}, "Close");
  const save = saveButton(
    () => body.querySelector(".heatmap"),
    () => fileName,
  );
  const buttons = [extra, save, close];
  if (count > 1) buttons.unshift(stepButton(-1, "← Previous head"), stepButton(1, "Next head →"));
  const dialog = html(
    "dialog",
    {
      "aria-labelledby": "head-title",
      onclose: () => {
        dialog.remove();
        actions.opened?.(null);
      },
      onclick: (event) => event.target === dialog && dialog.close(), // a click outside
    },
    html("header", {}, title, html("div", {class: "buttons"}, buttons)),
    body,
  );
  document.body.append(dialog);
  await show();
  dialog.showModal();
  close.focus();
}

/** Everything about a head, for one query and one key at a time. */
function headBody(head, rounding) {
  const map = html("div", {});
  const vectors = html("div", {});
  const steps = html("div", {class: "steps"});
  const readout = html("p", {class: "readout", role: "status"});
  let [query, key] = head.summary.strongest;
  const names = head.queries.map((text, i) => `${i}: ${visibleToken(text)}`);
  const queryChoice = choice("Query", names, (i) => select(i, strongestKey(head, i)), query);

  function draw() {
    map.replaceChildren(drawMap(head, query, (i, j) => select(i, j < 0 ? strongestKey(head, i) : j)));
    if (head.steps) vectors.replaceChildren(...vectorStrips(head, query, key));
  }
  function select(i, j) {
    [query, key] = [i, j];
    queryChoice.lastChild.selectedIndex = i;
    readout.textContent = describePair(head, i, j);
    draw();
    if (!head.steps) return;
    const hadFocus = steps.contains(document.activeElement);
    steps.replaceChildren(...stepsTable(head, i, j, (n) => select(i, n)));
    if (hadFocus) steps.querySelector("[aria-pressed=true]").focus();
  }
  select(query, key);
  onTheme(map, draw);
  const left = [
    queryChoice,
    readout,
    scrollBox("Attention weights", map),
    html("p", {class: "note"}, READING, isMasked(head) ? MASKED : ""),
    vectors,
  ];
  return html(
    "div",
    {class: head.steps ? "head-body" : "head-body single"},
    html("div", {}, html("p", {class: "note"}, describeHead(head, rounding)), left, weightsTable(head)),
    head.steps ? steps : null,
  );
}

function isMasked(head) {
  return head.queries.some((_, i) => head.keys.some((_, j) => head.reason(i, j)));
}

function strongestKey(head, i) {
  return head.keys.reduce((best, _, j) => (head.weight(i, j) > head.weight(i, best) ? j : best), 0);
}

function drawMap(head, query, pick) {
  const {queries, keys, bytes} = head;
  return labelledHeatmap({
    label: `Attention weights, ${queries.length} queries by ${keys.length} keys`,
    queries,
    keys,
    bytes,
    selected: query,
    room: head.steps ? 500 : 1000,
    hidden: (n) => head.reason(Math.floor(n / keys.length), n % keys.length) !== 0,
    text: (i, j) => (head.weight(i, j) >= 0.005 ? head.weight(i, j).toFixed(2).replace(/^0/, "") : ""),
    pick,
  });
}

function describePair(head, i, j) {
  const reason = head.reason(i, j);
  const what = reason ? `masked (${REASONS[reason].name})` : `weight ${number(head.weight(i, j), head.steps ? 4 : 3)}`;
  return `${tokenAt(head.queries, i)} → ${tokenAt(head.keys, j)}: ${what}`;
}

/** What the head does on this text, and how exact its numbers are. */
function describeHead(head, rounding) {
  const roles = Object.entries(head.summary.roles ?? {}).map(([name, value]) => `${name} ${number(value, 2)}`);
  let text = `Mean entropy ${number(head.summary.entropy, 2)} bits.`;
  if (roles.length) text += ` Mean weight on the ${roles.join(", ")}.`;
  if (!head.steps) {
    text += ` The weights of this head are rounded to ${number(rounding, 4)}. For its exact numbers step by step, `;
    text += `run qkv look with --layers ${head.layer} --heads ${head.head}.`;
  }
  return text;
}

function weightsTable(head) {
  const cell = (i, j) => (head.reason(i, j) ? "masked" : number(head.weight(i, j), 3));
  const row = (text, i) => [visibleToken(text), ...head.keys.map((_, j) => cell(i, j))];
  return disclosure("Weights as a table", () =>
    scrollBox(
      "Weights as a table",
      table(
        "Attention weights: a row for each query, a column for each key",
        ["query", ...head.keys.map(visibleToken)],
        head.queries.map(row),
      ),
    ),
  );
}
