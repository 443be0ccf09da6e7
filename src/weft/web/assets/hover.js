// The pointer: what lies under it, described in a box beside it; drag, wheel and click.

import { lanesWithin } from "weft/actions.js";
import { actionAt, deviceOf, readersOf } from "weft/data.js";
import { el, byId } from "weft/dom.js";
import { amount } from "weft/format.js";
import { causeOf, gapAt } from "weft/gaps.js";
import { AXIS, GUTTER, scaleOf } from "weft/layout.js";
import { memoryAt } from "weft/memory.js";
import { tokenOf, wordOf } from "weft/names.js";

const NEAR = 2; // pixels

/** What lies at a point of the picture: an action, a gap, a device's memory, or nothing. */
export function hitAt(app, x, y) {
  const within = y - AXIS + app.view.scroll;
  const row = app.layout.rows.find((one) => within >= one.y && within < one.y + one.height);
  if (!row || row.type === "title" || x < GUTTER || y < AXIS) return null;
  const { timeline, device } = row;
  const scale = scaleOf(app, timeline, app.viewport.width);
  const time = scale.time(x);
  if (row.type === "memory") return { timeline, device, time, isMemory: true };
  const lane = lanesWithin(row).find((one) => within >= one.y && within < one.y + one.height);
  const action = lane ? actionAt(timeline, lane.lane, time, NEAR / scale.perSecond) : -1;
  if (action >= 0) return { timeline, action: half(timeline, action, lane, within) };
  const gap = row.band === "compute" ? gapAt(timeline, device, time) : -1;
  return gap >= 0 ? { timeline, gap } : null;
}

/** Of a pair, the half that is meant. */
function half(timeline, action, lane, within) {
  const { joined } = timeline.columns;
  const isLower = within >= lane.y + lane.height / 2;
  if (joined[action] && !isLower) return action - 1;
  const isFirst = action + 1 < timeline.bounds[lane.lane + 1] && joined[action + 1];
  return isFirst && isLower ? action + 1 : action;
}

export function watchPointer(app, canvas) {
  let held = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, isMoved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) drag(app, held, event);
    else hoverAt(app, ...at(event));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.isMoved) click(app, hitAt(app, ...at(event)));
    held = null;
  });
  canvas.addEventListener("pointerleave", () => hoverAt(app, -1, -1));
  canvas.addEventListener("dblclick", (event) => focusOn(app, hitAt(app, ...at(event))));
  canvas.addEventListener("wheel", (event) => wheel(app, event, ...at(event)), { passive: false });
}

function drag(app, held, event) {
  const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
  if (!held.isMoved && Math.hypot(dx, dy) < 4) return;
  Object.assign(held, { isMoved: true, x: event.clientX, y: event.clientY });
  const perPixel = (app.view.to - app.view.from) / (app.viewport.width - GUTTER);
  app.pan(-dx * perPixel);
  app.scrollBy(-dy);
  hideTip();
}

/** The wheel zooms; where rows do not fit it scrolls, and zooms with Ctrl. */
function wheel(app, event, x, y) {
  event.preventDefault();
  const isTall = app.layout.height + AXIS > app.viewport.height + 1;
  const perPixel = (app.view.to - app.view.from) / (app.viewport.width - GUTTER);
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    app.pan((event.deltaX || event.deltaY) * perPixel);
  } else if (isTall && !event.ctrlKey && !event.metaKey) {
    app.scrollBy(event.deltaY);
  } else {
    app.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(0.5, Math.abs(event.deltaY) / 300)), x);
  }
}

function click(app, hit) {
  app.select(hit && !hit.isMemory ? hit : null);
  hideTip();
}

/** Bring an action or a gap into the middle of the view, a few times its own length. */
export function focusOn(app, hit) {
  if (!hit || hit.isMemory) return;
  const { timeline } = hit;
  const [start, end] = hit.gap !== undefined
    ? [timeline.idle.start[hit.gap], timeline.idle.end[hit.gap]]
    : [timeline.columns.start[hit.action], timeline.columns.end[hit.action]];
  const shift = scaleOf(app, timeline, app.viewport.width).from - app.view.from;
  const middle = (start + end) / 2 - shift;
  const span = Math.max(end - start, app.extent * 1e-6) * 12;
  app.show(middle - span / 2, middle + span / 2);
}

function hoverAt(app, x, y) {
  const hit = hitAt(app, x, y);
  const isSame = hit && app.hover && !hit.isMemory
    && hit.timeline === app.hover.timeline && hit.action === app.hover.action && hit.gap === app.hover.gap;
  if (!isSame) {
    app.hover = hit && !hit.isMemory ? hit : null;
    app.drawOverlay();
  }
  if (hit) showTip(app, hit, x, y);
  else hideTip();
}

function hideTip() {
  byId("tip").hidden = true;
}

function showTip(app, hit, x, y) {
  const tip = byId("tip");
  tip.replaceChildren(...lines(hit).map((line, index) => el("div", { class: index ? "" : "head" }, line)));
  tip.hidden = false;
  const isRight = x > app.viewport.width - tip.offsetWidth - 24;
  const isLow = y > app.viewport.height - tip.offsetHeight - 24;
  tip.style.left = `${isRight ? x - tip.offsetWidth - 14 : x + 14}px`;
  tip.style.top = `${isLow ? y - tip.offsetHeight - 14 : y + 14}px`;
}

function lines(hit) {
  if (hit.isMemory) return memoryLines(hit);
  return hit.gap !== undefined ? gapLines(hit) : actionLines(hit);
}

function memoryLines({ timeline, device, time }) {
  const held = memoryAt(timeline, device, time);
  const total = held.reduce((sum, part) => sum + part.value, 0);
  return [
    `memory of device ${device}: ${amount(total, timeline.units.memory)}`,
    ...held.map(({ name, text }) => `${name} ${text}`),
    `at ${amount(time - timeline.opening, timeline.units.time)}`,
  ];
}

function gapLines({ timeline, gap }) {
  const { start, end, waits_for: awaited } = timeline.idle;
  const cause = causeOf(timeline, gap);
  const unit = timeline.units.time;
  return [
    `idle for ${amount(end[gap] - start[gap], unit)}: ${cause}`,
    timeline.words.causes[cause],
    ...(awaited[gap] >= 0
      ? [`waits for ${tokenOf(timeline, awaited[gap])} on device ${deviceOf(timeline, awaited[gap])}`] : []),
    ...(timeline.is_plain ? [] : ["click: the chain of waits"]),
  ];
}

function actionLines({ timeline, action }) {
  const { start, end, version, decider } = timeline.columns;
  const unit = timeline.units.time;
  const since = (time) => amount(time - timeline.opening, unit);
  return [
    `${tokenOf(timeline, action)}: ${wordOf(timeline, action)}`,
    `${since(start[action])} to ${since(end[action])}, takes ${amount(end[action] - start[action], unit)}`,
    ...(version[action] >= 0 ? [`weights of version ${version[action]}`] : []),
    ...startedBehind(timeline, decider[action]),
    ...waiting(timeline, action),
  ];
}

function startedBehind(timeline, decider) {
  if (decider >= 0) return [`started after ${tokenOf(timeline, decider)} on device ${deviceOf(timeline, decider)}`];
  return timeline.is_plain ? [] : ["started without waiting"];
}

/** Who waits for an action; the details have all of them. */
function waiting(timeline, action) {
  const readers = readersOf(timeline, action).map((reader) => reader.action);
  if (!readers.length) return [];
  const [first] = readers;
  const more = readers.length > 1 ? ` and ${readers.length - 1} more` : "";
  return [`waits for this: ${tokenOf(timeline, first)} on device ${deviceOf(timeline, first)}${more}`];
}
