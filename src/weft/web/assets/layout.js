// Layout: which rows there are, how high, and where a time lies across.

export const GUTTER = 104; // labels of rows
export const AXIS = 30;
const TITLE = 26;
const GAP = 6; // below the rows of a device, where it has several
const FEW = 24; // rows that are kept readable, even if they do not fit at once

const clamp = (value, least, most) => Math.max(least, Math.min(most, value));

/** The timelines on show that run the same program: predicted and measured. */
export function twinOf(app, timeline) {
  return app.shown().find((other) => other !== timeline && other.digest === timeline.digest) ?? null;
}

function rowsOfDevice(timeline, device, options, name) {
  const rows = [];
  for (const band of options.streams ? ["compute", "comm", "copy"] : ["compute"]) {
    const lanes = lanesOf(timeline, device, band);
    if (band === "compute" || lanes.length) rows.push({ type: "actions", timeline, device, band, lanes, name });
  }
  if (options.memory && timeline.categories.length) rows.push({ type: "memory", timeline, device, name: "" });
  return rows;
}

/** The lanes of a row that have something to show: a receive takes no time. */
function lanesOf(timeline, device, band) {
  const { start, end } = timeline.columns;
  return timeline.lanes.flatMap((lane, index) => {
    if (lane.device !== device || lane.row !== band) return [];
    for (let action = timeline.bounds[index]; action < timeline.bounds[index + 1]; action++) {
      if (end[action] > start[action]) return [index];
    }
    return [];
  });
}

function unplaced(app) {
  const { options } = app;
  const shown = app.shown();
  const isPaired = options.paired && shown.length > 1
    && shown.every((timeline) => timeline.digest === shown[0].digest);
  if (isPaired) {
    return [
      { type: "title", timeline: shown[0], text: shown.map((one) => one.title).join("   over   ") },
      ...Array.from({ length: shown[0].devices }, (_, device) => shown.flatMap((timeline) =>
        rowsOfDevice(timeline, device, options, timeline.name))).flat(),
    ];
  }
  return shown.flatMap((timeline) => [
    { type: "title", timeline, text: timeline.title },
    ...Array.from({ length: timeline.devices }, (_, device) =>
      rowsOfDevice(timeline, device, options, "")).flat(),
  ]);
}

function heights(rows, room) {
  const share = { title: 0, actions: 1, memory: 1.35 };
  const count = (type) => rows.filter((row) => row.type === type).length;
  const weight = rows.reduce((sum, row) => sum + share[row.type], 0);
  const gaps = rows.filter((row, index) => gapBefore(rows, index)).length;
  const unit = (room - count("title") * TITLE - GAP * gaps - rows.length) / Math.max(1, weight);
  const readable = count("title") > 1 ? [16, 14] : [18, 28]; // of several timelines, more at once
  const [least, leastMemory] = count("actions") <= FEW ? readable : [6, 14];
  const height = {
    title: TITLE, actions: clamp(unit, least, 36), memory: clamp(unit * 1.35, leastMemory, 64),
  };
  return (row) => height[row.type];
}

/** Whether another device begins with this row, where devices have several rows. */
function gapBefore(rows, index) {
  const before = rows[index - 1];
  if (!before || before.type === "title" || before.device === rows[index].device) return false;
  return rows[index - 2]?.device === before.device;
}

/** All rows from top to bottom; their y is counted from the top of the first. */
export function layoutOf(app, height) {
  const rows = unplaced(app);
  const heightOf = heights(rows, height - AXIS);
  let y = 0;
  rows.forEach((row, index) => {
    if (gapBefore(rows, index)) y += GAP;
    row.y = Math.floor(y);
    row.height = Math.floor(heightOf(row));
    y += row.height + (row.type === "title" ? 0 : 1);
  });
  return { rows, height: y };
}

/** When a timeline begins on the common axis: all at 0, or so that all end together. */
function shiftOf(app, timeline) {
  const { extent } = app;
  return app.options.align === "end" ? timeline.opening - (extent - timeline.makespan) : timeline.opening;
}

/** From seconds of a timeline to pixels, and back. */
export function scaleOf(app, timeline, width) {
  const perSecond = (width - GUTTER) / (app.view.to - app.view.from);
  const offset = GUTTER - (app.view.from + shiftOf(app, timeline)) * perSecond;
  return {
    perSecond,
    x: (time) => time * perSecond + offset,
    time: (x) => (x - offset) / perSecond,
    from: app.view.from + shiftOf(app, timeline),
    to: app.view.to + shiftOf(app, timeline),
  };
}
