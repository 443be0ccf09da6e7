// Exports: what is seen, as a picture, a table or a trace.

import { visible } from "weft/actions.js";
import { notify } from "weft/app.js";
import { deviceOf, memoryOf, readBy } from "weft/data.js";
import { el } from "weft/dom.js";
import { AXIS, layoutOf, scaleOf } from "weft/layout.js";
import { tokenOf } from "weft/names.js";
import { theme } from "weft/palette.js";
import { paint } from "weft/paint.js";
import { CanvasPen, SvgPen } from "weft/pens.js";

const SHARPNESS = 3; // pixels of a PNG for one of the page
const MICROSECONDS = 1e6;
const COLUMNS = ["stage", "microbatch", "version", "slack", "gain"];

export const EXPORTS = {
  "Picture, SVG": (app) => save(app, "svg", "image/svg+xml", svgOf(app)),
  "Picture, PNG": async (app) => save(app, "png", "image/png", await pngOf(app)),
  "Actions, CSV": (app) => save(app, "csv", "text/csv", csvOf(app)),
  "Trace for Perfetto": (app) => save(app, "perfetto.json", "application/json", perfettoOf(app)),
  ...(location.protocol === "about:" ? {} : { "Link to this view": copyLink }), // inside a notebook it has none
};

function save(app, ending, type, content) {
  const name = app.shown().map((timeline) => timeline.name).join("-").replace(/[^\w.-]+/g, "_") || "weft";
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: `${name}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Where the browser lets nobody copy, the link can still be read. */
async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    notify("The link to this view is copied.");
  } catch {
    notify(`The link to this view: ${location.href}`);
  }
}

/** All rows, also those that do not fit on the screen, over the stretch of time in view. */
function whole(app) {
  const { width, height } = app.viewport;
  return { width, height: Math.ceil(layoutOf(app, height).height + AXIS + 8), scroll: 0, theme: theme() };
}

function svgOf(app) {
  const size = whole(app);
  const pen = new SvgPen(size.width, size.height);
  paint(pen, app, size);
  return pen.toString();
}

async function pngOf(app) {
  const size = whole(app);
  const canvas = new OffscreenCanvas(size.width * SHARPNESS, size.height * SHARPNESS);
  const pen = new CanvasPen(canvas.getContext("2d"), SHARPNESS);
  pen.context.scale(SHARPNESS, SHARPNESS);
  paint(pen, app, size);
  return canvas.convertToBlob({ type: "image/png" });
}

/** Every action of every shown timeline that lies within the view. */
function* seen(app) {
  for (const timeline of app.shown()) {
    const scale = scaleOf(app, timeline, app.viewport.width);
    for (let lane = 0; lane < timeline.lanes.length; lane++) {
      const [first, last] = visible(timeline, lane, scale);
      for (let action = first; action < last; action++) yield { timeline, lane, action };
    }
  }
}

const quoted = (words) => (/[",\n]/.test(words) ? `"${words.replaceAll('"', '""')}"` : words);

function csvOf(app) {
  const lines = [["timeline", "device", "stream", "action", "kind", "start", "end", ...COLUMNS].join(",")];
  for (const { timeline, lane, action } of seen(app)) {
    const { columns, lanes, words } = timeline;
    lines.push([
      quoted(timeline.name), lanes[lane].device, lanes[lane].stream, tokenOf(timeline, action),
      words.kinds[columns.kind[action]].name,
      columns.start[action] - timeline.opening, columns.end[action] - timeline.opening,
      ...COLUMNS.map((name) => columns[name][action]),
    ].join(","));
  }
  return `${lines.join("\n")}\n`;
}

/** As Weft's own traces: a process for each device, a track for each lane, arrows, counters. */
function perfettoOf(app) {
  const events = [];
  let process = 1;
  for (const timeline of app.shown()) {
    events.push(...traceNames(timeline, process), ...traceSlices(app, timeline, process), ...traceMemory(timeline, process));
    process += timeline.devices;
  }
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: events });
}

const THREADS = 100_000; // no thread may be numbered like a process

function traceNames(timeline, process) {
  const devices = Array.from({ length: timeline.devices }, (_, device) =>
    ({ ph: "M", pid: process + device, name: "process_name", args: { name: `${timeline.name}, device ${device}` } }));
  const lanes = timeline.lanes.map((lane, index) =>
    ({ ph: "M", pid: process + lane.device, tid: THREADS + index, name: "thread_name", args: { name: lane.stream } }));
  return [...devices, ...lanes];
}

function traceSlices(app, timeline, process) {
  const { start, end, stage, microbatch, version } = timeline.columns;
  const scale = scaleOf(app, timeline, app.viewport.width);
  const moment = (time) => (time - timeline.opening) * MICROSECONDS;
  const place = (action) => ({ pid: process + deviceOf(timeline, action), tid: THREADS + timeline.laneOf[action] });
  const middle = (action) => moment((start[action] + end[action]) / 2);
  return timeline.lanes.flatMap((_, lane) => {
    const [first, last] = visible(timeline, lane, scale);
    return Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index).flatMap((action) => [
      { ph: "X", ...place(action), ts: moment(start[action]), dur: moment(end[action]) - moment(start[action]),
        name: tokenOf(timeline, action), args: { stage: stage[action], microbatch: microbatch[action], version: version[action] } },
      ...readBy(timeline, action)
        .filter((read) => deviceOf(timeline, read.action) !== deviceOf(timeline, action))
        .flatMap((read) => {
          const message = { id: `${process}.${read.action}.${action}`, cat: "message", name: read.value };
          return [
            { ...message, ph: "s", ...place(read.action), ts: middle(read.action) },
            { ...message, ph: "f", bp: "e", ...place(action), ts: middle(action) },
          ];
        }),
    ]);
  });
}

function traceMemory(timeline, process) {
  return memoryOf(timeline).flatMap(({ times, levels }, device) => levels.flatMap((level, category) =>
    (level ? [...times].map((time, index) => ({
      ph: "C", pid: process + device, ts: (time - timeline.opening) * MICROSECONDS,
      name: `memory: ${timeline.categories[category]}`, args: { bytes: level[index] },
    })) : [])));
}
