// The list of runs: rows that come later find their place, and the filter is completed by what the server offers.
const say = document.getElementById("say");

// A shard that was asked again sends its rows to the end of the table; each goes where its key belongs.
document.addEventListener("htmx:after:swap", () => {
  const body = document.getElementById("runs");
  if (!body) return;
  const comes = body.dataset.order === "asc" ? (a, b) => a < b : (a, b) => a > b;
  const rows = [...body.rows];
  for (let n = 1; n < rows.length; n++) {
    const {key} = rows[n].dataset;
    if (!comes(key, rows[n - 1].dataset.key)) continue;
    const at = rows.findIndex(row => comes(key, row.dataset.key));
    body.insertBefore(rows[n], rows[at]);
    rows.splice(at, 0, ...rows.splice(n, 1));
  }
});

const field = document.querySelector("[data-completes]");
const list = field && document.getElementById(field.dataset.list);
if (list) {
  let asked = 0, timer = 0, active = -1;
  const options = () => [...list.querySelectorAll("[role=option]")];
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", list.id]]) {
    field.setAttribute(name, value);
  }

  function close() {
    clearTimeout(timer);
    asked += 1;
    list.hidden = true;
    active = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  }

  function mark(next) {
    const all = options();
    active = (next + all.length) % all.length;
    all.forEach((option, n) => option.setAttribute("aria-selected", String(n === active)));
    all[active].scrollIntoView({block: "nearest"});
    field.setAttribute("aria-activedescendant", all[active].id);
  }

  async function ask() {
    const mine = ++asked;
    const head = field.value.slice(0, field.selectionStart ?? field.value.length);
    const answer = await fetch(`${field.dataset.completes}?head=${encodeURIComponent(head)}`).catch(() => null);
    const text = answer?.ok ? await answer.text() : "";
    if (mine !== asked || document.activeElement !== field) return;
    list.innerHTML = text;
    active = -1;
    field.removeAttribute("aria-activedescendant");
    const found = options().length;
    list.hidden = !found;
    field.setAttribute("aria-expanded", String(found > 0));
    if (found) say.textContent = found === 1 ? "1 suggestion" : `${found} suggestions`;
  }

  function take(option) {
    const {insert, start} = option.dataset;
    field.setRangeText(insert, Number(start), field.selectionStart ?? field.value.length, "end");
    close();
    ask();
  }

  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 150); });
  field.addEventListener("blur", close);
  field.addEventListener("keydown", event => {
    if (event.isComposing) return;
    const open = !list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (open) mark(active < 0 && event.key === "ArrowUp" ? -1 : active + (event.key === "ArrowDown" ? 1 : -1));
      else ask();
    } else if (event.key === "Escape" && open) close();
    else if (event.key === "Enter" && open && active >= 0) take(options()[active]);
    else return;
    event.preventDefault();
  });
  // Pressed, an option must not take the focus from the field.
  list.addEventListener("pointerdown", event => event.preventDefault());
  list.addEventListener("click", event => {
    const option = event.target.closest("[role=option]");
    if (option) take(option);
  });
}
