// Keyboard shortcuts. None of them changes anything but the view; they are off while a field has the focus, and can be
// switched off for good in the menu (WCAG 2.1.4).
const root = document.documentElement;
const dialog = document.getElementById("keys");
const PLACES = {
  o: "go-overview", w: "go-workflows", a: "go-audit", u: "go-usage", s: "go-start", f: "go-workers", h: "go-warmth", d: "go-shards", e: "go-erasure",
};
let prefix = -Infinity;

function follow(id) {
  const link = document.getElementById(id);
  if (link) link.click();
  return Boolean(link);
}

function step(by) {
  const links = [...document.querySelectorAll("table.rows tbody th[scope=row] a")];
  if (!links.length) return false;
  const at = links.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by));
  links[next].focus();
  return true;
}

const ACTS = {
  "/": () => { const field = document.getElementById("search"); field?.focus(); field?.select?.(); return Boolean(field); },
  "?": () => { if (!dialog) return false; dialog.showModal(); return true; },
  j: () => step(1),
  k: () => step(-1),
  o: () => { const link = document.activeElement?.closest?.("table.rows a"); link?.click(); return Boolean(link); },
  r: () => { location.reload(); return true; },
  p: () => { document.dispatchEvent(new CustomEvent("harvest:pause")); return true; },
  t: () => { const button = document.getElementById("theme-next"); button?.click(); return Boolean(button); },
  "[": () => follow("newer"),
  "]": () => follow("older"),
};

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable], dialog[open]");
}

document.addEventListener("keydown", event => {
  if (root.dataset.keys === "off" || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  const afterG = event.timeStamp - prefix < 1500;
  prefix = event.key === "g" ? event.timeStamp : -Infinity;
  const done = afterG && event.key in PLACES ? follow(PLACES[event.key]) : Object.hasOwn(ACTS, event.key) && ACTS[event.key]();
  if (done) event.preventDefault();
});

for (const opener of document.querySelectorAll("[data-opens=keys]")) {
  opener.addEventListener("click", event => {
    if (!dialog) return;
    event.preventDefault();
    dialog.showModal();
  });
}
