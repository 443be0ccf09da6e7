// Keys: everything that the pointer does, without one.

import { deviceOf } from "weft/data.js";
import { byId, el } from "weft/dom.js";
import { focusOn } from "weft/hover.js";

const KEYS = [
  ["← →", "the action before and after, on the same lane"],
  ["↑ ↓", "the device above and below, at the same time"],
  ["Enter", "zoom to the selected action"],
  ["w", "go to what the selected action waited for"],
  ["g G", "the next idle stretch and the one before, with their chain of waits"],
  ["+ −", "zoom in and out"],
  ["Shift ← →", "move the view"],
  ["0", "the whole step"],
  ["/", "find an action"],
  ["Space", "play and pause"],
  ["m i c s", "memory, idle causes, critical path, streams"],
  ["Esc", "select nothing"],
  ["?", "these keys"],
];

export function showKeys() {
  const help = byId("help");
  help.replaceChildren(
    el("h2", {}, "Keys, while the timeline has the focus"),
    el("dl", {}, ...KEYS.flatMap(([key, does]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, does)])),
    el("p", { class: "note" }, "The wheel zooms (with Ctrl, where rows do not fit), dragging moves, a double click zooms to an action. Timelines and other pages can be dropped on this one; live, programs and torch CSVs too."),
    el("form", { method: "dialog" }, el("button", {}, "Close")),
  );
  help.showModal();
}

export function watchKeys(app, canvas) {
  const bound = keysOf(app);
  canvas.addEventListener("keydown", (event) => {
    const name = (event.shiftKey && event.key.startsWith("Arrow") ? "Shift" : "") + event.key;
    if (event.ctrlKey || event.metaKey || event.altKey || !bound[name]) return;
    event.preventDefault();
    bound[name]();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || /INPUT|SELECT/.test(event.target.tagName)) return;
    event.preventDefault();
    byId("search").focus();
  });
}

function keysOf(app) {
  const span = () => app.view.to - app.view.from;
  const flip = (option) => () => app.set(option, !app.options[option]);
  return {
    ArrowRight: () => along(app, 1),
    ArrowLeft: () => along(app, -1),
    ArrowDown: () => across(app, 1),
    ArrowUp: () => across(app, -1),
    ShiftArrowRight: () => app.pan(span() / 5),
    ShiftArrowLeft: () => app.pan(-span() / 5),
    ShiftArrowDown: () => app.scrollBy(60),
    ShiftArrowUp: () => app.scrollBy(-60),
    Enter: () => focusOn(app, app.selection),
    w: () => toDecider(app),
    g: () => toGap(app, 1),
    G: () => toGap(app, -1),
    "+": () => app.zoom(1 / 1.5),
    "=": () => app.zoom(1 / 1.5),
    "-": () => app.zoom(1.5),
    0: () => app.fit(),
    " ": () => app.player.toggle(),
    m: flip("memory"),
    i: flip("idle"),
    c: flip("critical"),
    s: flip("streams"),
    Escape: () => { app.player.stop(); app.select(null); },
    "?": showKeys,
  };
}

const firstOf = (app) => {
  const [timeline] = app.shown();
  return timeline?.count ? { timeline, action: 0 } : null;
};

const current = (app) => (app.selection?.action === undefined ? null : app.selection);

function along(app, step) {
  const at = current(app);
  if (!at) return go(app, firstOf(app));
  const lane = at.timeline.laneOf[at.action];
  const next = at.action + step;
  const isWithin = next >= at.timeline.bounds[lane] && next < at.timeline.bounds[lane + 1];
  return go(app, isWithin ? { timeline: at.timeline, action: next } : at);
}

/** The action of the next device that runs at the same time, or comes next. */
function across(app, step) {
  const at = current(app);
  if (!at) return go(app, firstOf(app));
  const { timeline, action } = at;
  const { start } = timeline.columns;
  const device = deviceOf(timeline, action) + step;
  const lane = timeline.lanes.findIndex((one) => one.device === device && one.stream === "compute");
  if (lane < 0) return go(app, at);
  let best = timeline.bounds[lane];
  for (let other = best; other < timeline.bounds[lane + 1] && start[other] <= start[action]; other++) best = other;
  return go(app, best < timeline.bounds[lane + 1] ? { timeline, action: best } : at);
}

function toDecider(app) {
  const at = current(app);
  const decider = at ? at.timeline.columns.decider[at.action] : -1;
  if (decider >= 0) go(app, { timeline: at.timeline, action: decider });
}

/** From gap to gap, device by device; from an action, to the gap next to it. */
function toGap(app, step) {
  const timeline = app.selection?.timeline ?? app.shown()[0];
  const count = timeline?.idle.start.length;
  if (!count) return;
  const gap = app.selection?.gap ?? gapBeside(timeline, app.selection?.action, step);
  go(app, { timeline, gap: (gap + step + count) % count });
}

/** The last gap before an action, or the first after it where one goes back. */
function gapBeside(timeline, action, step) {
  const { device, start } = timeline.idle;
  if (action === undefined) return step > 0 ? -1 : 0;
  const here = deviceOf(timeline, action);
  const isBefore = (gap) => device[gap] < here || (device[gap] === here && start[gap] < timeline.columns.start[action]);
  const before = [...device.keys()].filter(isBefore).length;
  return step > 0 ? before - 1 : before;
}

/** Select, and move the view where the selection lies outside. */
function go(app, target) {
  if (!target) return;
  app.select(target);
  const { timeline, action, gap } = target;
  const begin = (gap === undefined ? timeline.columns.start[action] : timeline.idle.start[gap]) - timeline.opening;
  const { from, to } = app.view;
  if (begin < from || begin > to) app.show(begin - (to - from) / 2, begin + (to - from) / 2);
}
