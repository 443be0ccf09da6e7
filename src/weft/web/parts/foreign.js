// A timeline in Weft's JSON as the page shows it: its actions and times, and nothing worked out.
//
// Causes, memory and the critical path are Weft's to compute; a page in a file goes without.

const DEFAULTS = { span: 1, version: -1, pipe: 0, edge: -1, segment: -1, joined: 0 };
const ROWS = { compute: "compute", experts: "comm", wire: "comm", reduce: "comm", offload: "copy", onload: "copy" };
const NO_UNIT = { name: "", size: 1 };

export function viewOf(document, words) {
  const { program, start, end } = document;
  const problem = fault(document);
  if (problem) throw new Error(problem);
  const count = start.length;
  const lanes = program.lanes.map((lane) => ({ device: lane.device, stream: lane.stream ?? "compute", row: ROWS[lane.stream ?? "compute"] ?? "comm" }));
  const opening = start.reduce((least, time) => Math.min(least, time), Infinity);
  const makespan = end.reduce((most, time) => Math.max(most, time), -Infinity) - opening;
  const devices = Math.max(...lanes.map((lane) => lane.device)) + 1;
  const name = String(program.name ?? "dropped");
  return {
    name, title: `${name}: ${devices} devices, from a file`, digest: `file ${name} ${count} ${makespan}`,
    is_measured: document.measured === true, has_versions: false,
    devices, stages: program.placement[0].length, microbatches: program.microbatches,
    edges: edgesOf(program.graph), lanes, bounds: bounds(program.lanes),
    opening, makespan, units: { time: NO_UNIT, memory: NO_UNIT },
    figures: [{ name: "step", value: makespan, unit: "time", means: "from the first start to the last end" }],
    columns: columns(program.columns, { start, end }, count, words),
    reads: { consumer: packed([]), producer: packed([]), value: packed([]), values: [] },
    idle: { causes: [], sums: [], ...Object.fromEntries(["device", "cause", "start", "end", "before", "waits_for"].map((key) => [key, packed([])])) },
    critical: packed([]),
    memory: { categories: [], peaks: Array(devices).fill(0), capacity: null,
      devices: Array.from({ length: devices }, () => ({ times: packed([0], "f8"), levels: {} })) },
  };
}

function fault({ program, start, end }) {
  if (!program?.lanes?.length || !program.columns || !Array.isArray(start) || !Array.isArray(end)) {
    return "the timeline lacks its program, its starts or its ends";
  }
  const count = program.lanes.reduce((sum, lane) => sum + lane.actions, 0);
  if (start.length !== count || end.length !== count) return `${count} actions, but ${start.length} starts and ${end.length} ends`;
  if (![...start, ...end].every(Number.isFinite)) return "a start or an end is no number";
  return "";
}

/** A chain says only how many stages it has. */
function edgesOf(graph) {
  if (graph.edges) return graph.edges;
  const stages = Array.isArray(graph.stages) ? graph.stages.length : graph.stages;
  return Array.from({ length: Math.max(0, stages - 1) }, (_, stage) => [stage, stage + 1]);
}

function bounds(lanes) {
  const found = [0];
  for (const lane of lanes) found.push(found.at(-1) + lane.actions);
  return found;
}

const TYPES = { i4: Int32Array, f8: Float64Array, f4: Float32Array };

/** As Python packs columns. */
function packed(values, type = "i4") {
  const content = new Uint8Array(TYPES[type].from(values).buffer);
  let text = "";
  for (let at = 0; at < content.length; at += 8192) text += String.fromCharCode(...content.subarray(at, at + 8192));
  return { type, base64: btoa(text) };
}

function columns(given, times, count, words) {
  const full = (name, otherwise) => {
    const column = given[name] ?? otherwise;
    return Array.isArray(column) ? column : Array(count).fill(column);
  };
  const kinds = full("kind", "F").map((name) => words.kinds.findIndex((kind) => kind.name === name || kind.name === String(name).toUpperCase().replaceAll(" ", "_")));
  const numbers = { stage: full("stage", 0), microbatch: full("microbatch", -1), kind: kinds.map((kind) => Math.max(0, kind)) };
  for (const [name, otherwise] of Object.entries(DEFAULTS)) numbers[name] = full(name, otherwise);
  numbers.place = Array(count).fill(0);
  numbers.decider = Array(count).fill(-1);
  const made = Object.fromEntries(Object.entries(numbers).map(([name, column]) => [name, packed(column)]));
  for (const name of ["start", "end"]) made[name] = packed(times[name], "f8");
  for (const name of ["slack", "gain"]) made[name] = packed(Array(count).fill(0), "f4");
  return made;
}
