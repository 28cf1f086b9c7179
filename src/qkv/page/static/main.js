// The page: a heading, a list of views, and the views for which the document has numbers.

import {html} from "./dom.js";
import {themeButton} from "./theme.js";
import {VIEWS} from "./views.js";

const VERSION = 1;

/** Draw a document into an element. */
export function mount(root, data) {
  if (data.version !== VERSION) {
    root.replaceChildren(
      html(
        "p",
        {class: "warning"},
        `This page draws documents of version ${VERSION}, but got version ${data.version}.`,
      ),
    );
    return;
  }
  const views = VIEWS.filter(([name]) => data.views.includes(name));
  root.replaceChildren(
    html(
      "header",
      {class: "top"},
      html("div", {}, html("h1", {}, data.title), html("p", {class: "subtitle"}, data.subtitle)),
      themeButton(),
    ),
    html(
      "nav",
      {"aria-label": "Views"},
      views.map(([name, title]) => html("a", {href: `#${name}`, onclick: (event) => goTo(event, name)}, title)),
    ),
    html(
      "main",
      {},
      data.notes.map((note) => html("p", {class: "warning"}, note)),
      views.map(([name, title, sentence, view]) =>
        html(
          "section",
          {id: name, tabindex: "-1", "aria-labelledby": `${name}-title`},
          html("h2", {id: `${name}-title`}, title),
          html("p", {class: "lead"}, sentence),
          view(data),
        ),
      ),
    ),
    html("footer", {}, data.footer),
  );
  root.dataset.ready = "true";
}

/** Go to a section. The frame of a notebook has no address of its own, so its links to sections would lead nowhere. */
function goTo(event, name) {
  if (location.protocol !== "about:") return;
  event.preventDefault();
  const section = document.getElementById(name);
  section.scrollIntoView();
  section.focus({preventScroll: true});
}

const embedded = document.getElementById("look-data");
if (embedded) mount(document.getElementById("look"), JSON.parse(embedded.textContent));
