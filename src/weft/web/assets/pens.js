// Pens: one drawing, on a canvas or as the text of an SVG.

const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";

export class CanvasPen {
  constructor(context, ratio) {
    this.context = context;
    this.ratio = ratio;
    this.scratch = new OffscreenCanvas(1, 1);
    this.hatching = null;
  }

  rect(x, y, width, height, colour) {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  /** Many rectangles of one colour: x, y, width, height, x, … */
  rects(numbers, colour) {
    const { context } = this;
    context.fillStyle = colour;
    for (let at = 0; at < numbers.length; at += 4) {
      context.fillRect(numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]);
    }
  }

  hatch(numbers) {
    this.hatching ??= this.context.createPattern(stripes(), "repeat");
    this.rects(numbers, this.hatching);
  }

  outline(x, y, width, height, colour, thickness = 1) {
    this.context.strokeStyle = colour;
    this.context.lineWidth = thickness;
    this.context.strokeRect(x, y, width, height);
  }

  line(points, colour, thickness = 1, dash = []) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.setLineDash(dash);
    context.beginPath();
    points.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
    context.setLineDash([]);
  }

  area(points, colour) {
    const { context } = this;
    context.fillStyle = colour;
    context.beginPath();
    for (let at = 0; at < points.length; at += 2) context.lineTo(points[at], points[at + 1]);
    context.fill();
  }

  text(x, y, words, colour, { size = 11, weight = 400, align = "left" } = {}) {
    const { context } = this;
    const font = `${weight} ${size}px ${FONT}`;
    if (context.font !== font) context.font = font;
    context.fillStyle = colour;
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(words, x, y);
  }

  /** A row of pixels, stretched to a height. */
  strip(x, y, width, height, pixels) {
    const count = pixels.length / 4;
    if (this.scratch.width < count) this.scratch = new OffscreenCanvas(count, 1);
    this.scratch.getContext("2d").putImageData(new ImageData(pixels, count, 1), 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.scratch, 0, 0, count, 1, x, y, width, height);
  }

  clipped(x, y, width, height, draw) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    draw();
    context.restore();
  }
}

function stripes() {
  const tile = new OffscreenCanvas(6, 6);
  const context = tile.getContext("2d");
  context.strokeStyle = "rgba(0,0,0,0.28)";
  context.lineWidth = 1.2;
  for (const shift of [-6, 0, 6]) {
    context.beginPath();
    context.moveTo(shift, 6);
    context.lineTo(shift + 6, 0);
    context.stroke();
  }
  return tile;
}

const SIGNS = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (words) => String(words).replace(/[&<>"]/g, (sign) => SIGNS[sign]);
const short = (value) => Number(value.toFixed(2));
const ANCHORS = { left: "start", center: "middle", right: "end" };

export class SvgPen {
  constructor(width, height) {
    this.size = [width, height];
    this.ratio = 1;
    this.parts = [];
    this.clips = 0;
  }

  rect(x, y, width, height, colour) {
    this.parts.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" fill="${colour}"/>`);
  }

  rects(numbers, colour) {
    let path = "";
    for (let at = 0; at < numbers.length; at += 4) {
      const [x, y, width, height] = [0, 1, 2, 3].map((index) => short(numbers[at + index]));
      path += `M${x} ${y}h${width}v${height}h${-width}z`;
    }
    if (path) this.parts.push(`<path d="${path}" fill="${colour}"/>`);
  }

  hatch(numbers) {
    this.rects(numbers, "url(#hatch)");
  }

  outline(x, y, width, height, colour, thickness = 1) {
    this.parts.push(`<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}" fill="none" stroke="${colour}" stroke-width="${thickness}"/>`);
  }

  line(points, colour, thickness = 1, dash = []) {
    const path = points.map(([x, y]) => `${short(x)},${short(y)}`).join(" ");
    const dashes = dash.length ? ` stroke-dasharray="${dash}"` : "";
    this.parts.push(`<polyline points="${path}" fill="none" stroke="${colour}" stroke-width="${thickness}"${dashes}/>`);
  }

  area(points, colour) {
    const path = [];
    for (let at = 0; at < points.length; at += 2) path.push(`${short(points[at])},${short(points[at + 1])}`);
    this.parts.push(`<polygon points="${path.join(" ")}" fill="${colour}"/>`);
  }

  text(x, y, words, colour, { size = 11, weight = 400, align = "left" } = {}) {
    this.parts.push(`<text x="${short(x)}" y="${short(y + size * 0.36)}" fill="${colour}" font-size="${size}" font-weight="${weight}" text-anchor="${ANCHORS[align]}">${escaped(words)}</text>`);
  }

  /** Pixels as rectangles, neighbours of one colour as one. */
  strip(x, y, width, height, pixels) {
    const words = new Uint32Array(pixels.buffer);
    const step = width / words.length;
    let first = 0;
    for (let at = 1; at <= words.length; at++) {
      if (at < words.length && words[at] === words[first]) continue;
      const [red, green, blue, alpha] = pixels.subarray(first * 4, first * 4 + 4);
      if (alpha) this.rect(x + first * step, y, (at - first) * step, height, `rgb(${red},${green},${blue})`);
      first = at;
    }
  }

  clipped(x, y, width, height, draw) {
    const name = `clip${this.clips++}`;
    this.parts.push(`<clipPath id="${name}"><rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"/></clipPath><g clip-path="url(#${name})">`);
    draw();
    this.parts.push("</g>");
  }

  toString() {
    const [width, height] = this.size;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${escaped(FONT)}">`
      + '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"><path d="M-1 7L7 -1" stroke="#000" stroke-opacity=".28" stroke-width="1.2"/></pattern></defs>'
      + `${this.parts.join("\n")}\n</svg>\n`;
  }
}
