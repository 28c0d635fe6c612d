// The map of partitions: arrow keys go through it, and a partition opens in place, with the focus where it is.
const ACROSS = 32;
const {base} = document.documentElement.dataset;
let wanted = "";

const region = () => document.getElementById("partitions");

function read(address) {
  wanted = address;
  region().setAttribute("hx-get", address);
  htmx.ajax("GET", address, {source: region(), target: region(), swap: "outerMorph"});
}

document.addEventListener("click", event => {
  const link = event.target.closest?.("#partitions :is(.map a, a[data-open])");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const to = new URL(link.href);
  history.replaceState(history.state, "", to.pathname + to.search);
  read(`${base}/_f${to.pathname.slice(base.length)}${to.search}`);
});

// An answer to an earlier address may come late: what was chosen last stays.
document.addEventListener("htmx:after:swap", () => {
  const at = document.activeElement;
  if (at?.matches?.(".map a")) reach(at);
  if (!wanted) return;
  if (region().getAttribute("hx-get") !== wanted) return read(wanted);
  wanted = "";
  document.getElementById("say").textContent = document.getElementById("journal-title")?.textContent ?? "";
  if (at?.matches?.(".map a, [data-open]")) document.getElementById("journal")?.scrollIntoView({block: "nearest"});
});

function reach(cell) {
  for (const other of document.querySelectorAll('.map a[tabindex="0"]')) other.tabIndex = -1;
  cell.tabIndex = 0;
}

document.addEventListener("focusin", event => { if (event.target.matches?.(".map a")) reach(event.target); });
document.addEventListener("keydown", event => {
  const cell = event.target.closest?.(".map a");
  if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
  const cells = [...document.querySelectorAll(".map a")];
  const at = cells.indexOf(cell);
  const to = {
    ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + ACROSS, ArrowUp: at - ACROSS,
    Home: at - at % ACROSS, End: at - at % ACROSS + ACROSS - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  cells[to]?.focus();
});
