// The chain of waits that leads to a gap: what is awaited, what that one waited for, and so on.

const MOST = 60;

/** From what a gap waits for back to what started without waiting, each with its reason. */
export function chainOf(timeline, gap) {
  const { decider } = timeline.columns;
  const chain = [];
  let action = timeline.idle.waits_for[gap];
  if (action < 0) action = timeline.idle.before[gap] >= 0 ? decider[timeline.idle.before[gap]] : -1;
  while (action >= 0 && chain.length < MOST) {
    chain.push({ action, reason: reasonOf(timeline, action) });
    action = decider[action];
  }
  return chain;
}

/** Why an action started no sooner. */
export function reasonOf(timeline, action) {
  const decider = timeline.columns.decider[action];
  if (decider < 0) return "at once: nothing held it back";
  return timeline.laneOf[decider] === timeline.laneOf[action]
    ? "after the one before it" : "after what it reads";
}
