// What a live page asks for: the usual, and what an address says.

import { USUAL_COSTS, chosenBy } from "weft/costs.js";

export const USUAL = {
  chosen: [{ schedule: "1f1b", variant: "", relief: "" }],
  devices: 4, microbatches: 8, updates: 2, ...USUAL_COSTS,
};
export const MOST = 6; // schedules at once

/** What the address says, as far as it makes sense, and the usual for the rest, with what files describe; the server judges it. */
export function fromAddress(described) {
  const chosen = (state, one) => ({ ...state, ...chosenBy(state, one) });
  return { ...described.reduce(chosen, structuredClone(USUAL)), ...sound(given()) };
}

function given() {
  try {
    return JSON.parse(new URLSearchParams(location.hash.slice(1)).get("live") ?? "{}");
  } catch {
    return {};
  }
}

function sound(given) {
  const isAlike = (value, usual) => typeof value === typeof usual && Array.isArray(value) === Array.isArray(usual);
  const found = Object.fromEntries(Object.entries(USUAL)
    .filter(([name, usual]) => isAlike(given?.[name], usual)).map(([name]) => [name, given[name]]));
  const chosen = (found.chosen ?? []).filter((one) => typeof one?.schedule === "string").slice(0, MOST)
    .map((one) => ({ ...USUAL.chosen[0], ...one }));
  if (chosen.length) found.chosen = chosen;
  else delete found.chosen;
  for (const own of ["own_models", "own_devices"]) {
    if (!found[own]?.every((one) => typeof one?.name === "string" && typeof one.fields === "object")) delete found[own];
  }
  if (!["units", "model"].includes(found.costs)) delete found.costs;
  return found;
}
