// Timelines as typed arrays. Everything here was computed by Weft; it is only unpacked.

const TYPES = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, i4: Int32Array,
  f4: Float32Array, f8: Float64Array,
};

function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
}

function unpacked(packed) {
  const Type = TYPES[packed.type];
  if ("all" in packed) return new Type(packed.count).fill(packed.all);
  return new Type(bytes(packed.base64).buffer);
}

const unpackedAll = (columns) =>
  Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, unpacked(column)]));

/** A timeline from what Python wrote; `reads` and `memory` are unpacked when first asked for. */
export function timelineOf(view, words) {
  const { columns: packed, reads, idle, memory, critical, ...facts } = view;
  const columns = unpackedAll(packed);
  const { causes, sums, ...stretches } = idle;
  return {
    ...facts,
    words,
    count: columns.start.length,
    columns,
    closing: facts.opening + facts.makespan,
    critical: unpacked(critical),
    laneOf: laneOf(facts.bounds, columns.start.length),
    idle: { causes, sums, ...unpackedAll(stretches) },
    idleOf: null,
    packedReads: reads,
    packedMemory: memory,
    capacity: memory.capacity,
    categories: memory.categories,
    peaks: memory.peaks,
  };
}

function laneOf(bounds, count) {
  const lanes = new Uint32Array(count);
  for (let lane = 0; lane + 1 < bounds.length; lane++) lanes.fill(lane, bounds[lane], bounds[lane + 1]);
  return lanes;
}

/** For each device, when its memory changes and what each category holds from then on. */
export function memoryOf(timeline) {
  timeline.memory ??= timeline.packedMemory.devices.map(({ times, levels }) => ({
    times: unpacked(times),
    levels: timeline.categories.map((name) => (levels[name] ? unpacked(levels[name]) : null)),
  }));
  return timeline.memory;
}

/** The rows of `reads` grouped by one end: entries[first[i]] … entries[first[i + 1] - 1]. */
function grouped(keys, count) {
  const first = new Uint32Array(count + 1);
  for (const key of keys) first[key + 1]++;
  for (let index = 0; index < count; index++) first[index + 1] += first[index];
  const place = first.slice(0, count);
  const entries = new Uint32Array(keys.length);
  keys.forEach((key, row) => { entries[place[key]++] = row; });
  return { first, entries };
}

function readsOf(timeline) {
  if (!timeline.reads) {
    const { consumer, producer, value, values } = timeline.packedReads;
    const ends = { consumer: unpacked(consumer), producer: unpacked(producer) };
    timeline.reads = {
      ...ends,
      value: unpacked(value),
      values,
      byConsumer: grouped(ends.consumer, timeline.count),
      byProducer: grouped(ends.producer, timeline.count),
    };
  }
  return timeline.reads;
}

const rowsOf = ({ first, entries }, action) => [...entries.subarray(first[action], first[action + 1])];

/** What an action reads: the producers and the values. */
export function readBy(timeline, action) {
  const reads = readsOf(timeline);
  return rowsOf(reads.byConsumer, action)
    .map((row) => ({ action: reads.producer[row], value: reads.values[reads.value[row]] }));
}

/** Who reads what an action computes. */
export function readersOf(timeline, action) {
  const reads = readsOf(timeline);
  return rowsOf(reads.byProducer, action)
    .map((row) => ({ action: reads.consumer[row], value: reads.values[reads.value[row]] }));
}

/** The idle stretches of one device, in order of time. */
export function idleOf(timeline, device) {
  if (!timeline.idleOf) {
    timeline.idleOf = Array.from({ length: timeline.devices }, () => []);
    timeline.idle.device.forEach((of, index) => timeline.idleOf[of]?.push(index));
  }
  return timeline.idleOf[device] ?? [];
}

/** The first position in a sorted part of an array whose value is above `value`. */
export function above(sorted, value, low = 0, high = sorted.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

export const deviceOf = (timeline, action) => timeline.lanes[timeline.laneOf[action]].device;

/** The action that runs in a lane at a time, or -1. */
export function actionAt(timeline, lane, time, tolerance = 0) {
  const { start, end } = timeline.columns;
  const [first, last] = [timeline.bounds[lane], timeline.bounds[lane + 1]];
  const index = above(start, time + tolerance, first, last) - 1;
  if (index < first) return -1;
  if (end[index] + tolerance < time) return -1;
  return index;
}
