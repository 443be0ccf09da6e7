// What an action is called: the word of the notation, and the short label of a picture.

const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
const subscript = (number) => [...String(number)].map((digit) => SUBSCRIPTS[digit]).join("");

/** The part of a layer that an action is, or null for a whole stage. */
function partOf({ columns, words }, action) {
  const segment = columns.segment[action];
  return segment < 0 ? null : words.parts[segment % words.parts.length];
}

/** Whether an action is communication between experts. */
export const isMoved = (timeline, action) => partOf(timeline, action)?.is_moved ?? false;

function covered(columns, action) {
  const first = columns.microbatch[action];
  if (first < 0) return "";
  const span = columns.span[action];
  return span > 1 ? `${first}..${first + span - 1}` : String(first);
}

/** 2F13, send:1-2F0, 2U@0: the stable name of an action. */
export function tokenOf(timeline, action) {
  const { columns, words, edges } = timeline;
  const kind = words.kinds[columns.kind[action]];
  const edge = edges[columns.edge[action]];
  const place = edge ? `${edge[0]}-${edge[1]}` : String(columns.stage[action]);
  let token = `${kind.prefix}${place}${kind.token}${covered(columns, action)}`;
  if (columns.version[action] >= 0) token += `@${columns.version[action]}`;
  const part = partOf(timeline, action);
  if (part) token += `/${Math.floor(columns.segment[action] / words.parts.length)}.${part.word.split(" ")[0]}`;
  return token;
}

/** F13'₂: kind, microbatch, a prime for each earlier stage of the device, version. */
export function labelOf(timeline, action) {
  const { columns } = timeline;
  return letterOf(timeline, action) + covered(columns, action)
    + "'".repeat(columns.place[action]) + versionOf(timeline, action);
}

/** What is left where there is less room: 13₂, then 13. */
export function shortLabelsOf(timeline, action) {
  const microbatch = covered(timeline.columns, action);
  return microbatch ? [microbatch + versionOf(timeline, action), microbatch] : [];
}

function versionOf({ columns, has_versions: hasVersions }, action) {
  return hasVersions && columns.version[action] >= 0 ? subscript(columns.version[action]) : "";
}

function letterOf(timeline, action) {
  const { columns, words } = timeline;
  const kind = words.kinds[columns.kind[action]];
  const part = partOf(timeline, action);
  if (!part || kind.prefix) return kind.letter; // a copy of it
  return kind.name === "F" || kind.name === "R" ? part.letter : part.letter.toLowerCase();
}

/** How many letters wide a label is: what stands lower is smaller. */
export const widthOf = (label) => [...label].reduce((width, sign) => width + widthOfSign(sign), 0);
const widthOfSign = (sign) => (SUBSCRIPTS.includes(sign) ? 0.65 : sign === "W" ? 1.5 : 1);

/** forward, weight gradient, dispatch to experts … */
export function wordOf(timeline, action) {
  const { columns, words } = timeline;
  const { word, prefix } = words.kinds[columns.kind[action]];
  const part = partOf(timeline, action);
  return part && !prefix ? `${word}: ${part.word}` : word;
}
