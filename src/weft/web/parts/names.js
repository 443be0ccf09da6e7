// What an action is called: the word of the notation, and the short label of a picture.

const SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉";
const subscript = (number) => [...String(number)].map((digit) => SUBSCRIPTS[digit]).join("");

const PARTS = 4;

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
  const segment = columns.segment[action];
  if (segment >= 0) {
    token += `/${Math.floor(segment / PARTS)}.${words.parts[segment % PARTS].word.split(" ")[0]}`;
  }
  return token;
}

/** F13'₂: kind, microbatch, a prime for each earlier stage of the device, version. */
export function labelOf(timeline, action) {
  const { columns } = timeline;
  const version = timeline.has_versions && columns.version[action] >= 0
    ? subscript(columns.version[action]) : "";
  return letterOf(timeline, action) + covered(columns, action)
    + "'".repeat(columns.place[action]) + version;
}

/** 13: what is left where there is no room. */
export const shortLabelOf = (timeline, action) => covered(timeline.columns, action);

function letterOf(timeline, action) {
  const { columns, words } = timeline;
  const kind = words.kinds[columns.kind[action]];
  const segment = columns.segment[action];
  if (segment < 0) return kind.letter;
  const letter = words.parts[segment % PARTS].letter;
  return kind.name === "F" || kind.name === "R" ? letter : letter.toLowerCase();
}

/** forward, weight gradient, dispatch to experts … */
export function wordOf(timeline, action) {
  const { columns, words } = timeline;
  const word = words.kinds[columns.kind[action]].word;
  const segment = columns.segment[action];
  return segment < 0 ? word : `${word}: ${words.parts[segment % PARTS].word}`;
}
