// Costs that a reader chooses: of a device's share in units, or of a model on devices.

import { el } from "weft/dom.js";
import { choice, labelled, slider } from "weft/fields.js";

export const USUAL_COSTS = {
  costs: "units", forward: 1, input_grad: 1, weight_grad: 1,
  model: "gpt-6.2b", device: "a100", microbatch_size: 0, expert_parallel: 1,
  latency: 0, bandwidth: 0, capacity: 0, lengths: [],
};
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
  const { model, device, microbatch_size: size, expert_parallel } = state;
  return { ...shared, model, device, expert_parallel, ...(size ? { microbatch_size: size } : {}) };
}

/** The form; `change` takes what is new, `rebuild` too where another form follows from it. */
export function costFields(state, catalogue, { change, rebuild }) {
  const set = (name) => (value) => change({ [name]: value });
  const kinds = [
    { value: "units", words: "in units, of a device's share" },
    { value: "model", words: "of a model on devices" },
  ];
  const kind = choice("Costs", kinds, state.costs, (costs) => rebuild({ costs, latency: 0, bandwidth: 0, capacity: 0 }));
  return [
    el("div", { class: "field" }, kind),
    ...(state.costs === "units" ? shareFields(state, set) : modelFields(state, catalogue, set)),
    ...Object.entries(LIMITS[state.costs]).map(([name, { words, ...range }]) => slider(words, range, state[name], set(name))),
  ];
}

const shareFields = (state, set) => Object.entries(SHARES).map(([name, words]) =>
  slider(words, { most: 4, step: 0.05 }, state[name], set(name)));

function modelFields(state, { models, devices }, set) {
  const named = (presets) => presets.map(({ name, summary }) => ({ value: name, words: name, title: summary }));
  return [
    labelled("Model", choice("Model", named(models), state.model, set("model"))),
    labelled("Device", choice("Device", named(devices), state.device, set("device"))),
    slider("Sequences of a microbatch, 0: the model's", { most: 16, step: 1 }, state.microbatch_size, set("microbatch_size")),
    slider("Devices that share a stage's experts", { least: 1, most: 64, step: 1 }, state.expert_parallel, set("expert_parallel")),
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
