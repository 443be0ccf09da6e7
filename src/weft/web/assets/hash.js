// The address: what is shown, so that a view can be shared as a link.

import { debounced } from "weft/dom.js";
import { CHOICES, OPTIONS } from "weft/app.js";

/** Follow the address, and let it follow the view; inside another page there is none. */
export function watchHash(app) {
  if (location.protocol === "about:") return;
  readView(app);
  const write = debounced(150, () => history.replaceState(null, "", `#${written(app)}`));
  for (const event of ["view", "select", "timelines"]) app.on(event, write);
  addEventListener("hashchange", async () => {
    readOptions(app);
    app.emit("timelines");
    await app.followAddress?.();
    readView(app);
  });
}

function written(app) {
  const words = new URLSearchParams();
  const { view, options, selection } = app;
  if (view.from > 0 || view.to < app.extent) {
    words.set("from", view.from.toPrecision(9));
    words.set("to", view.to.toPrecision(9));
  }
  for (const [name, usual] of Object.entries(OPTIONS)) {
    if (options[name] !== usual) words.set(name, String(options[name]));
  }
  if (app.tab !== "idle") words.set("tab", app.tab);
  if (app.hidden.size) words.set("show", app.shown().map((timeline) => timeline.key).join(","));
  if (selection) {
    const what = selection.gap !== undefined ? `gap${selection.gap}` : selection.action;
    words.set("at", `${selection.timeline.key}:${what}`);
  }
  if (app.asked) words.set("live", JSON.stringify(app.asked));
  return words;
}

/** How things are shown, which needs no timeline. */
export function readOptions(app) {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, usual] of Object.entries(OPTIONS)) {
    const value = words.get(name);
    if (typeof usual === "boolean" && value !== null) app.options[name] = value === "true";
    else if (value !== null && Object.hasOwn(CHOICES[name], value)) app.options[name] = value;
  }
  if (words.has("tab")) app.openTab(words.get("tab"));
}

/** What of the timelines is shown. */
function readView(app) {
  const words = new URLSearchParams(location.hash.slice(1));
  if (words.has("show")) {
    const shown = new Set(words.get("show").split(","));
    app.hidden = new Set(app.timelines.map((timeline) => timeline.key).filter((key) => !shown.has(key)));
  }
  app.emit("timelines");
  const [from, to] = [Number(words.get("from")), Number(words.get("to"))];
  if (words.has("to") && to > from) app.show(from, to);
  selectAt(app, words.get("at"));
}

function selectAt(app, text) {
  const match = /^(\d+):(gap)?(\d+)$/.exec(text ?? "");
  const timeline = match && app.timelines.find((one) => one.key === match[1]);
  if (!timeline) return;
  const index = Number(match[3]);
  if (match[2] && index < timeline.idle.start.length) app.select({ timeline, gap: index });
  else if (!match[2] && index < timeline.count) app.select({ timeline, action: index });
}
