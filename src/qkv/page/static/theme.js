// Light and dark. The system's choice applies until the reader presses the button.

import {html} from "./dom.js";

const listeners = new Set();

/** Call `redraw` now and whenever the theme changes, until the element is removed from the page. */
export function onTheme(element, redraw) {
  redraw();
  const listener = () => (element.isConnected ? redraw() : listeners.delete(listener));
  listeners.add(listener);
}

/** Whether the page is dark now. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The button that switches between light and dark. */
export function themeButton() {
  const button = html("button", {type: "button", class: "quiet"});
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Switch to the light theme" : "Switch to the dark theme");
    for (const listener of listeners) listener();
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return button;
}
