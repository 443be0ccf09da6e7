// Numbers for people: four digits in the unit that Python chose for a timeline.

const plain = (value, digits) => {
  const text = Number(value.toPrecision(digits));
  return Math.abs(text) >= 1e6 || (text !== 0 && Math.abs(text) < 1e-4)
    ? text.toExponential(2) : String(text);
};

export function amount(value, unit) {
  if (!unit.name) return plain(value, 6);
  return `${plain(value / unit.size, 4)} ${unit.name}`;
}

export const percent = (share) => `${(100 * share).toFixed(1)}%`;

/** What a picture shows from its first start to its last end. */
export const spanOf = (timeline) => (timeline.steps > 1 ? "run" : "step");

/** A figure in its unit: time, memory, share or count. */
export function figureText(figure, units) {
  if (figure.unit === "share") return percent(figure.value);
  if (figure.unit === "count") return plain(figure.value, 6);
  return amount(figure.value, units[figure.unit]);
}

/** How a figure differs from another: in points for shares, in percent for the rest. */
export function change(value, base, unit) {
  if (value === base) return "=";
  const sign = value > base ? "+" : "−";
  if (unit === "share") return `${sign}${Math.abs(100 * (value - base)).toFixed(1)} pt`;
  if (!base) return "";
  return `${sign}${Math.abs(100 * (value / base - 1)).toFixed(1)}%`;
}

/** Round distances between ticks: 1, 2 or 5 times a power of ten. */
export function tickStep(span, most) {
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= rough * 0.999);
  return factor * power;
}
