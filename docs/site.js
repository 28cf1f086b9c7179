// What the theme leaves out for people who use a keyboard or a screen reader: scrolling tables take the focus, and each
// group of buttons or links has a name of its own.
function complete() {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((one) => (one.tabIndex = 0));
  document.querySelectorAll(".md-code__nav").forEach((one, i) => one.setAttribute("aria-label", `Code ${i + 1}`));
  document.querySelectorAll('.md-nav[data-md-level="1"]').forEach((one, i) => {
    one.removeAttribute("aria-labelledby");
    one.setAttribute("aria-label", `Part ${i + 1}`);
  });
  document.querySelectorAll(".md-search").forEach((one) => one.setAttribute("aria-label", "Search"));
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
