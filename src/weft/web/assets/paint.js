// The whole picture, with any pen: rows, axis, labels, and on request the critical path.

import { lanesWithin, paintActions } from "weft/actions.js";
import { amount, tickStep } from "weft/format.js";
import { paintGaps } from "weft/gaps.js";
import { AXIS, GUTTER, layoutOf, scaleOf } from "weft/layout.js";
import { mostMemory, paintMemory } from "weft/memory.js";

/** Draw what the view shows; `scroll` is how far its rows are moved up. */
export function paint(pen, app, { width, height, scroll, theme }) {
  const layout = layoutOf(app, app.viewport.height);
  const top = AXIS - scroll;
  const most = mostMemory(app);
  pen.rect(0, 0, width, height, theme.back);
  pen.clipped(0, AXIS, width, height - AXIS, () => {
    paintGrid(pen, app, width, height, theme);
    for (const row of layout.rows) {
      const isSeen = row.y + top < height && row.y + row.height + top > AXIS;
      if (isSeen) paintRow(pen, app, row, { top, width, theme, most });
    }
    if (app.options.critical) paintCritical(pen, app, layout, top, width, theme);
  });
  paintAxis(pen, app, width, theme);
  return layout;
}

function paintRow(pen, app, row, { top, width, theme, most }) {
  const middle = row.y + top + row.height / 2;
  if (row.type === "title") {
    pen.rect(0, row.y + top, width, row.height, theme.back);
    pen.text(10, middle + 1, row.text, theme.ink, { size: 13, weight: 600 });
    return;
  }
  if (row.type === "memory") {
    paintMemory(pen, app, row, top, width, theme, most);
    const peak = amount(row.timeline.peaks[row.device], row.timeline.units.memory);
    if (row.height >= 14) pen.text(GUTTER - 8, middle, `peak ${peak}`, theme.faint, { size: 10, align: "right" });
    return;
  }
  pen.rect(GUTTER, row.y + top, width - GUTTER, row.height - 0.75, theme.row);
  if (row.band === "compute" && app.options.idle) paintGaps(pen, app, row, top, width, theme);
  paintActions(pen, app, row, top, width);
  paintName(pen, row, middle, theme);
}

function paintName(pen, row, middle, theme) {
  const every = Math.ceil(10 / row.height); // where rows are low, some names have no room
  if (row.device % every) return;
  const size = row.height >= 12 ? 11 : 9;
  const name = row.name ? row.name.slice(0, 10) : "device";
  const words = row.band === "compute" ? `${name} ${row.device}` : row.band;
  pen.text(GUTTER - 8, middle, words, row.band === "compute" ? theme.ink : theme.faint, { size, align: "right" });
}

/** Times of the ticks within the view, on the common axis. */
function ticks(app, width) {
  const { from, to } = app.view;
  const step = tickStep(to - from, (width - GUTTER) / 90);
  const found = [];
  for (let index = Math.ceil(from / step - 1e-9); index * step <= to && found.length < 200; index++) {
    found.push(index * step);
  }
  return found;
}

const xOf = (app, time, width) =>
  GUTTER + ((time - app.view.from) / (app.view.to - app.view.from)) * (width - GUTTER);

function paintGrid(pen, app, width, height, theme) {
  for (const time of ticks(app, width)) {
    const x = Math.round(xOf(app, time, width)) + 0.5;
    pen.line([[x, AXIS], [x, height]], theme.line);
  }
}

function paintAxis(pen, app, width, theme) {
  pen.rect(0, 0, width, AXIS, theme.back);
  pen.line([[0, AXIS - 0.5], [width, AXIS - 0.5]], theme.line);
  const unit = app.units.time;
  for (const time of ticks(app, width)) {
    const x = xOf(app, time, width);
    pen.line([[Math.round(x) + 0.5, AXIS - 6], [Math.round(x) + 0.5, AXIS]], theme.faint);
    const label = amount(Math.abs(time) < 1e-12 ? 0 : time, unit);
    if (x > GUTTER - 1 && x < width - 14) {
      pen.text(Math.max(x, GUTTER + 3), AXIS - 14, label, theme.faint, { align: x < GUTTER + 12 ? "left" : "center" });
    }
  }
  pen.text(10, AXIS - 14, unit.name ? "time" : "time, in units", theme.faint);
}

/** Where an action is drawn, or null where its row is not. */
export function boxOf(app, layout, timeline, action, width) {
  const lane = timeline.laneOf[action];
  const row = layout.rows.find((candidate) => candidate.type === "actions"
    && candidate.timeline === timeline && candidate.lanes.includes(lane));
  if (!row) return null;
  const { y, height } = lanesWithin(row).find((within) => within.lane === lane);
  const scale = scaleOf(app, timeline, width);
  const left = scale.x(timeline.columns.start[action]);
  return { left, right: scale.x(timeline.columns.end[action]), y, height, row };
}

function paintCritical(pen, app, layout, top, width, theme) {
  for (const timeline of app.shown()) {
    const rowOf = rowsByLane(layout, timeline);
    const scale = scaleOf(app, timeline, width);
    let before = null;
    for (const action of timeline.critical) {
      const row = rowOf.get(timeline.laneOf[action]);
      if (!row) continue;
      const left = scale.x(timeline.columns.start[action]);
      const here = { right: scale.x(timeline.columns.end[action]), middle: row.y + top + row.height / 2 };
      const isSeen = here.right >= GUTTER && left <= width;
      if (isSeen && here.right - left > 5) {
        pen.outline(left, row.y + top, here.right - left - 0.75, row.height - 1, theme.strong, 2);
      }
      if (isSeen && before && (before.middle !== here.middle || left - before.right > 2)) {
        pen.line([[before.right, before.middle], [left, here.middle]], theme.strong, 1.5);
      }
      before = here;
    }
  }
}

function rowsByLane(layout, timeline) {
  const rows = new Map();
  for (const row of layout.rows) {
    if (row.type !== "actions" || row.timeline !== timeline) continue;
    for (const within of lanesWithin(row)) rows.set(within.lane, { ...within, device: row.device });
  }
  return rows;
}

