// A timeline in Weft's JSON as the page shows it: its actions, its times and where it is idle.
//
// Causes, memory and the critical path are Weft's to work out; `is_plain` says that they are not.

import { NOT_WORKED_OUT } from "weft/details.js";

const DEFAULTS = { microbatch: -1, span: 1, version: -1, pipe: 0, edge: -1, segment: -1, joined: 0 };
const ROWS = { compute: "compute", experts: "comm", wire: "comm", reduce: "comm", offload: "copy", onload: "copy" };
const NO_UNIT = { name: "", size: 1 };
const SECONDS = { name: "s", size: 1 };
const MOST_DEVICES = 4096;
const MOST_ACTIONS = 2_000_000;
const CAUSE = "unexplained";

export const WORDS_OF_PLAIN = (words) => ({ ...words, causes: { ...words.causes, [CAUSE]: NOT_WORKED_OUT } });

/** What Python writes of a timeline, as far as a file says it; an Error where that makes no sense. */
export function viewOf(document, words) {
  check(document);
  const { program, start, end } = document;
  const lanes = program.lanes.map(({ device, stream = "compute" }) => ({ device, stream, row: ROWS[stream] ?? "comm" }));
  const bounds = boundsOf(program.lanes);
  const numbers = numbersOf(program, start.length, words);
  const opening = start.reduce((least, time) => Math.min(least, time), Infinity);
  const makespan = end.reduce((most, time) => Math.max(most, time), -Infinity) - opening;
  const devices = Math.max(...lanes.map((lane) => lane.device)) + 1;
  const name = String(program.name ?? "dropped").slice(0, 80);
  return {
    name, title: `${name}: ${devices} devices, from a file`, digest: `file ${name} ${start.length} ${makespan}`,
    is_plain: true, is_measured: document.measured === true, has_versions: numbers.version.some((version) => version > 0),
    devices, edges: edgesOf(program.graph), lanes, bounds, opening, makespan,
    units: { time: document.measured === true ? SECONDS : NO_UNIT, memory: NO_UNIT },
    ...figuresOf(program, numbers, makespan),
    columns: columnsOf(numbers, start, end),
    reads: { consumer: packed([]), producer: packed([]), value: packed([]), values: [] },
    idle: idleOf({ lanes, bounds, start, end, devices, opening, closing: opening + makespan }),
    critical: packed([]),
    memory: { categories: [], peaks: Array(devices).fill(0), capacity: null,
      devices: Array.from({ length: devices }, () => ({ times: packed([0], "f8"), levels: {} })) },
  };
}

/** The time of a step: of several, on average. */
function figuresOf(program, numbers, makespan) {
  const step = isCount(program.microbatches, MOST_ACTIONS) ? Math.max(1, program.microbatches) : 1;
  const last = numbers.microbatch.reduce((most, microbatch) => Math.max(most, microbatch), 0);
  const steps = Number.isInteger(program.microbatches) ? Math.floor(last / step) + 1 : 1;
  const means = steps > 1 ? `of ${step} microbatches, on average of ${steps} steps` : "from the first start to the last end";
  return { steps, step, figures: [
    { name: "step", value: makespan / steps, unit: "time", means },
    { name: "per microbatch", value: makespan / steps / step, unit: "time", means: "the step, shared out" },
  ] };
}

const isCount = (value, most) => Number.isInteger(value) && value >= 0 && value <= most;

function check({ program, start, end }) {
  const say = (problem) => { throw new Error(problem); };
  if (!Array.isArray(program?.lanes) || !program.lanes.length || !program.columns || !Array.isArray(start) || !Array.isArray(end)) {
    say("the timeline lacks its program, its starts or its ends");
  }
  for (const lane of program.lanes) {
    if (!isCount(lane?.device ?? 0, MOST_DEVICES - 1) || !isCount(lane?.actions, MOST_ACTIONS)) say("a lane has no device, or no number of actions");
  }
  const count = program.lanes.reduce((sum, lane) => sum + lane.actions, 0);
  if (count > MOST_ACTIONS) say(`${count} actions; a page in a file opens ${MOST_ACTIONS}`);
  if (start.length !== count || end.length !== count) say(`${count} actions, but ${start.length} starts and ${end.length} ends`);
  if (!start.every(Number.isFinite) || !end.every(Number.isFinite)) say("a start or an end is no number");
  for (const [name, column] of Object.entries(program.columns)) {
    if (Array.isArray(column) && column.length !== count) say(`${count} actions, but ${column.length} entries in the column ${name}`);
  }
}

/** A chain says only how many stages it has. */
function edgesOf(graph) {
  if (Array.isArray(graph?.edges)) return graph.edges;
  const stages = Array.isArray(graph?.stages) ? graph.stages.length : graph?.stages;
  return Array.from({ length: isCount(stages, MOST_ACTIONS) ? Math.max(0, stages - 1) : 0 }, (_, stage) => [stage, stage + 1]);
}

function boundsOf(lanes) {
  const found = [0];
  for (const lane of lanes) found.push(found.at(-1) + lane.actions);
  return found;
}

/** All columns but the times, as lists of numbers. */
function numbersOf(program, count, words) {
  const full = (name, otherwise) => {
    const column = program.columns[name] ?? otherwise;
    return Array.isArray(column) ? column : Array(count).fill(column);
  };
  const numbers = { stage: full("stage", 0), kind: full("kind", "F").map((name) => kindOf(name, words)) };
  for (const [name, otherwise] of Object.entries(DEFAULTS)) numbers[name] = full(name, otherwise);
  const wrong = Object.keys(numbers).find((name) => !numbers[name].every(Number.isInteger));
  if (wrong) throw new Error(`the column ${wrong} has an entry that is not a whole number`);
  return { ...numbers, place: placesOf(program, numbers), decider: Array(count).fill(-1) };
}

function kindOf(name, words) {
  const kind = words.kinds.findIndex((known) => known.name === String(name).toUpperCase().replaceAll(" ", "_"));
  if (kind < 0) throw new Error(`no kind of action is called ${name}`);
  return kind;
}

/** For each action, which of its device's stages it belongs to, in the order of pipes and stages. */
function placesOf({ placement }, { stage, pipe }) {
  const places = new Map();
  const held = new Map();
  (Array.isArray(placement) ? placement : []).forEach((devices, index) => (Array.isArray(devices) ? devices : []).forEach((device, at) => {
    places.set(`${index} ${at}`, held.get(device) ?? 0);
    held.set(device, (held.get(device) ?? 0) + 1);
  }));
  return stage.map((at, action) => places.get(`${pipe[action]} ${at}`) ?? 0);
}

const TYPES = { i4: Int32Array, f8: Float64Array, f4: Float32Array };

/** As Python packs columns. */
function packed(values, type = "i4") {
  const content = new Uint8Array(TYPES[type].from(values).buffer);
  let text = "";
  for (let at = 0; at < content.length; at += 8192) text += String.fromCharCode(...content.subarray(at, at + 8192));
  return { type, base64: btoa(text) };
}

function columnsOf(numbers, start, end) {
  const made = Object.fromEntries(Object.entries(numbers).map(([name, column]) => [name, packed(column)]));
  const nothing = packed(Array(start.length).fill(0), "f4");
  return { ...made, start: packed(start, "f8"), end: packed(end, "f8"), slack: nothing, gain: nothing };
}

/** Where compute streams are idle, without a reason. */
function idleOf({ lanes, bounds, start, end, devices, opening, closing }) {
  const found = { device: [], start: [], end: [], before: [] };
  const sums = Array.from({ length: devices }, () => ({ work: 0 }));
  const wait = (device, from, to, before) => {
    if (to - from <= (closing - opening) * 1e-9) return;
    found.device.push(device);
    found.start.push(from);
    found.end.push(to);
    found.before.push(before);
    sums[device][CAUSE] = (sums[device][CAUSE] ?? 0) + to - from;
  };
  lanes.forEach(({ device, row }, lane) => {
    if (row !== "compute") return;
    let free = opening;
    for (let action = bounds[lane]; action < bounds[lane + 1]; action++) {
      wait(device, free, start[action], action);
      sums[device].work += Math.max(0, end[action] - Math.max(free, start[action]));
      free = Math.max(free, end[action]);
    }
    wait(device, free, closing, -1);
  });
  const nobody = packed(found.device.map(() => -1));
  return {
    causes: [CAUSE], sums, device: packed(found.device), cause: packed(found.device.map(() => 0)),
    start: packed(found.start, "f8"), end: packed(found.end, "f8"), before: packed(found.before), waits_for: nobody,
  };
}
