// The badge of the live stream, the pause switch, and polling when there is no stream. Regions do the rest: they
// listen to the events that arrive at #live and read themselves again, so nothing here carries data.
const live = document.getElementById("live");
const badge = document.getElementById("badge");
const pause = document.getElementById("pause");
const say = document.getElementById("say");
// `pulse` is for what changes without a hint: leases that end, figures that workers write.
const HINTS = ["run", "list", "hello", "resync", "poll", "pulse"];
const POLL_MS = 10_000;
const PULSE_MS = 2_000;
const STALE_MS = 30_000;

if (live && badge && pause) {
  let begun = false, streaming = false, paused = false, signedOut = false, failures = 0;
  let read = Date.now();
  const zone = document.documentElement.dataset.zone;
  const clock = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit", second: "2-digit", timeZone: zone});

  function show() {
    if (!begun && !paused) return;
    const at = clock.format(read);
    const late = Date.now() - read > STALE_MS && failures > 0;
    const [kind, text] = signedOut ? ["stale", "Signed out"]
      : paused ? ["held", `Paused at ${at}`]
      : late ? ["stale", `Stale, as of ${at}`]
      : streaming ? ["on", `Live, ${at}`]
      : ["", `Polling each 10 s, ${at}`];
    badge.className = `live ${kind}`.trim();
    if (badge.textContent !== text) badge.textContent = text;
  }

  function toggle() {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    say.textContent = paused ? "Live updates are paused" : "Live updates go on";
    if (!paused) htmx.trigger(live, "resync");
    show();
  }

  // Caught on its way down, a hint never reaches the regions.
  for (const name of HINTS) {
    document.addEventListener(name, event => {
      if (event.target !== live) return;
      if (paused || signedOut) event.stopImmediatePropagation();
    }, true);
  }

  document.addEventListener("htmx:sse:after:connection", () => { begun = streaming = true; failures = 0; show(); });
  document.addEventListener("htmx:sse:error", () => { begun = true; streaming = false; failures += 1; show(); });
  document.addEventListener("htmx:sse:close", () => { streaming = false; show(); });
  live.addEventListener("hello", () => { read = Date.now(); show(); });

  document.addEventListener("htmx:after:request", event => {
    const response = event.detail.ctx.response;
    const status = response?.raw?.status ?? response?.status ?? 0;
    if (status === 401) signedOut = true;
    else if (status >= 500 || status === 0) failures += 1;
    else { read = Date.now(); failures = 0; }
    show();
  });
  document.addEventListener("htmx:error", () => { failures += 1; show(); });

  setInterval(() => {
    begun = true;
    if ((!streaming || failures) && !paused && !signedOut && !document.hidden) htmx.trigger(live, "poll");
    show();
  }, POLL_MS);
  setInterval(() => { if (begun && !paused && !signedOut && !document.hidden) htmx.trigger(live, "pulse"); }, PULSE_MS);
  setInterval(() => { if (streaming && !paused && !failures) read = Date.now(); show(); }, 1000);

  pause.hidden = false;
  pause.addEventListener("click", toggle);
  document.addEventListener("harvest:pause", toggle);
  show();
}
