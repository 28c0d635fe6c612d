// Small comforts of a page: copying, ages that tick, payloads read when unfolded, the browser's time zone.
const root = document.documentElement;
const say = document.getElementById("say");
const skew = Number(root.dataset.now) - Date.now();

function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [d, h, m, s] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return h && d < 10 ? `${d} d ${h} h` : `${d} d`;
  if (h) return m ? `${h} h ${m} min` : `${h} h`;
  if (m >= 10) return `${m} min`;
  if (m) return s ? `${m} min ${s} s` : `${m} min`;
  return `${s} s`;
}

// [data-since] counts up from an instant, [data-until] down to one; both in milliseconds of the server's clock.
function tick() {
  const now = Date.now() + skew;
  for (const age of document.querySelectorAll("[data-since]")) {
    const text = span((now - Number(age.dataset.since)) / 1000);
    if (age.textContent !== text) age.textContent = text;
  }
  for (const left of document.querySelectorAll("[data-until]")) {
    const seconds = (Number(left.dataset.until) - now) / 1000;
    const text = seconds > 0 ? `in ${span(seconds)}` : "due now";
    if (left.textContent !== text) left.textContent = text;
  }
}
setInterval(() => { if (!document.hidden) tick(); }, 1000);
document.addEventListener("htmx:after:swap", tick);

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  const text = source?.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    say.textContent = "Copied";
  } catch {
    // Without a secure context there is no clipboard: select the text, so that one key press copies it.
    getSelection().selectAllChildren(source);
    say.textContent = "Selected, press Ctrl and C to copy";
  }
  const word = button.textContent;
  button.textContent = say.textContent.split(",")[0];
  setTimeout(() => { button.textContent = word; }, 1500);
}

document.addEventListener("click", event => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copy(button);
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

// Folded payloads are links to their own pages; unfolding them reads the same addresses as fragments.
document.addEventListener("toggle", event => {
  if (!event.target.open) return;
  const {base} = root.dataset;
  for (const link of event.target.querySelectorAll("a[data-fragment]")) {
    const address = `${base}/_f${link.pathname.slice(base.length)}`;
    htmx.ajax("GET", address, {source: link, target: link.parentElement, swap: "innerHTML"});
  }
}, true);

function reveal() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const button of document.querySelectorAll("button[data-zone]")) {
    if (!zone || zone === "UTC") continue;
    button.value = zone;
    button.textContent = zone;
    button.hidden = false;
  }
  for (const button of document.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
}
reveal();
document.addEventListener("htmx:after:swap", reveal);
document.querySelector("[role=alert][tabindex], [data-focus]")?.focus();
tick();
