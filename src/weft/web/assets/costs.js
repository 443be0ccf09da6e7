// Costs that a reader chooses: of a device's share in units, or of a model on devices.

import { el } from "weft/dom.js";
import { choice, counter, filePicker, labelled, slider, toggle } from "weft/fields.js";

export const USUAL_COSTS = {
  costs: "units", forward: 1, input_grad: 1, weight_grad: 1,
  model: "gpt-6.2b", device: "a100", microbatch_size: 0, sequence: 0, is_balanced: false,
  cluster: 0, tensor_parallel: 1, expert_parallel: 1, data_parallel: 0, ends_with_update: false,
  latency: 0, bandwidth: 0, capacity: 0, lengths: [],
  own_models: [], own_devices: [], // { name, summary, fields }: files that were dropped or picked
};
const OF_A_MODEL = ["microbatch_size", "sequence", "is_balanced", "cluster", "tensor_parallel", "expert_parallel", "data_parallel", "ends_with_update"];
const SHARES = { forward: "Forward", input_grad: "Input gradient", weight_grad: "Weight gradient" };
const MOST_LENGTHS = 32; // parts of the model that have a slider

/** Links and memory; `size` is what the server counts as one. */
const LIMITS = {
  units: {
    latency: { words: "Latency of a link", most: 2, step: 0.01, size: 1 },
    bandwidth: { words: "Bandwidth: messages per unit of time, 0: no limit", most: 20, step: 0.5, size: 1 },
    capacity: { words: "Memory of a device, 0: no limit", most: 40, step: 0.5, size: 1 },
  },
  model: {
    latency: { words: "Latency of a link, µs, 0: the device's", most: 100, step: 1, size: 1e-6 },
    bandwidth: { words: "Bandwidth of a link, GB/s, 0: the device's", most: 400, step: 5, size: 1e9 },
    capacity: { words: "Memory of a device, GiB, 0: its own", most: 256, step: 1, size: 2 ** 30 },
  },
};

/** What the server is asked for; in a model's costs, what is 0 is left to the model. */
export function costsAsked(state) {
  const limits = Object.entries(LIMITS[state.costs]).map(([name, { size }]) => [name, state[name] * size]);
  const lengths = state.lengths.slice(0, state.devices);
  const shared = { ...Object.fromEntries(limits), lengths };
  if (state.costs === "units") {
    return { ...shared, ...Object.fromEntries(Object.keys(SHARES).map((name) => [name, state[name]])) };
  }
  const asked = Object.fromEntries(OF_A_MODEL.map((name) => [name, state[name]]));
  const { model, device, own_models: models, own_devices: devices } = state;
  return { ...shared, ...asked, model: fieldsOf(model, models), device: fieldsOf(device, devices) };
}

/** What a file says, or the name of what the server knows itself. */
const fieldsOf = (name, own) => own.find((one) => one.name === name)?.fields ?? name;

/** What a file describes becomes what is asked with. */
export function chosenBy(state, { kind, devices, ...described }) {
  const list = kind === "model" ? "own_models" : "own_devices";
  const others = state[list].filter((one) => one.name !== described.name);
  const chosen = { costs: "model", [list]: [...others, described] };
  if (kind === "model") return { ...chosen, model: described.name };
  return { ...chosen, device: described.name, ...(devices ? { cluster: devices } : {}) };
}

/** The form; `change` takes what is new, `rebuild` too where another form follows, `open` a file. */
export function costFields(state, catalogue, { change, rebuild, open }) {
  const set = (name) => (value) => change({ [name]: value });
  const kinds = [
    { value: "units", words: "in units, of a device's share" },
    { value: "model", words: "of a model on devices" },
  ];
  const kind = choice("Costs", kinds, state.costs, (costs) => rebuild({ costs, latency: 0, bandwidth: 0, capacity: 0 }));
  return [
    el("div", { class: "field" }, kind),
    ...(state.costs === "units" ? shareFields(state, set) : modelFields(state, catalogue, set, open)),
    ...Object.entries(LIMITS[state.costs]).map(([name, { words, ...range }]) => slider(words, range, state[name], set(name))),
  ];
}

const shareFields = (state, set) => Object.entries(SHARES).map(([name, words]) =>
  slider(words, { most: 4, step: 0.05 }, state[name], set(name)));

function modelFields(state, { models, devices }, set, open) {
  const named = (presets, own) => [...own, ...presets].map(({ name, summary }) => ({ value: name, words: name, title: summary }));
  return [
    labelled("Model", choice("Model", named(models, state.own_models), state.model, set("model"))),
    filePicker("Own model: a config.json …", open),
    counter("Sequences of a microbatch, 0: the model's", { most: 16, step: 1 }, state.microbatch_size, set("microbatch_size")),
    counter("Tokens of a sequence, 0: the model's", { most: 32768, step: 512 }, state.sequence, set("sequence")),
    toggle("Layers of the stages", ["as many on each", "by the time they take"], state.is_balanced, set("is_balanced")),
    el("h3", {}, "Cluster"),
    labelled("Device", choice("Device", named(devices, state.own_devices), state.device, set("device"))),
    filePicker("Own device or cluster file …", open),
    counter("Devices of the cluster, 0: as many as it takes", { most: 1024, step: 1 }, state.cluster, set("cluster")),
    counter("Devices that share every layer (tensor parallel)", { least: 1, most: 8, step: 1 }, state.tensor_parallel, set("tensor_parallel")),
    counter("Devices that share a stage's experts", { least: 1, most: 64, step: 1 }, state.expert_parallel, set("expert_parallel")),
    counter("Copies (data parallel), 0: as many as the cluster holds", { most: 64, step: 1 }, state.data_parallel, set("data_parallel")),
    toggle("A step ends", ["with its last backward", "with sums and the update"], state.ends_with_update, set("ends_with_update")),
    el("p", { class: "note" }, "With copies, a step always ends with the sums of their gradients and the update."),
  ];
}

/** How long each part of the model takes: as many equal parts as there are devices. */
export function lengthFields(state, change) {
  const parts = Array.from({ length: Math.min(state.devices, MOST_LENGTHS) }, (_, part) => part);
  const set = (part, value) => {
    const lengths = Array.from({ length: Math.max(state.lengths.length, part + 1) }, (_, index) => state.lengths[index] ?? 1);
    lengths[part] = value;
    change({ lengths });
  };
  return parts.map((part) =>
    slider(`${partName(state, part)} takes this many times as long`, { most: 4, step: 0.05 }, state.lengths[part] ?? 1, (value) => set(part, value)));
}

/** By its stages, where all schedules cut the model into as many. */
function partName({ chosen, devices }, part) {
  const counts = new Set(chosen.map((one) => one.stages_per_device));
  if (counts.size > 1) return `Part ${part + 1} of ${devices} of the model`;
  const [count] = counts;
  return count === 1 ? `Stage ${part}` : `Stages ${part * count} to ${part * count + count - 1}`;
}
