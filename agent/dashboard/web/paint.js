// What the canvases share: size, colours and letters.

let colours = new Map();

// colour is a colour of the theme, by its name in style.css.
export function colour(name) {
  let c = colours.get(name);
  if (c === undefined) {
    c = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
    colours.set(name, c);
  }
  return c;
}

// forgetColours makes colour read the theme again.
export function forgetColours() {
  colours = new Map();
}

// modelColour and typeColour are the colours of a model and of an instance type, by their places.
// Beyond eight they begin again: names say which is which.
export const modelColour = (i) => colour("model" + (i % 8));
export const typeColour = (i) => colour("type" + (i % 6));

// faded is a colour of the theme with an opacity.
export function faded(c, opacity) {
  const n = Number.parseInt(c.slice(1), 16);
  return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${opacity})`;
}

// mix is a colour between two.
export function mix(a, b, share) {
  const x = Number.parseInt(a.slice(1), 16);
  const y = Number.parseInt(b.slice(1), 16);
  const at = (shift) => {
    const from = (x >> shift) & 255;
    return Math.round(from + (((y >> shift) & 255) - from) * share);
  };
  return `rgb(${at(16)},${at(8)},${at(0)})`;
}

// ramp is the colour of a share between 0 and 1, on the theme's five heat colours.
export function ramp(share) {
  const x = Math.max(0, Math.min(1, share)) * 4;
  const i = Math.min(3, Math.floor(x));
  return mix(colour("heat" + i), colour("heat" + (i + 1)), x - i);
}

export const font = (size, weight = 400) => `${weight} ${size}px Inter, system-ui, sans-serif`;

// canvas clears a canvas whose height is given, and returns its context and size in CSS pixels.
export function canvas(c, height) {
  const scale = devicePixelRatio || 1;
  const width = c.clientWidth;
  const w = Math.round(width * scale);
  const h = Math.round(height * scale);
  if (c.width !== w || c.height !== h) {
    c.width = w;
    c.height = h;
    c.style.height = height + "px";
  }
  const g = c.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  return { g, width, height };
}

// write draws a text. Places: left, center, right; top, middle, bottom.
export function write(g, text, x, y, { size = 11, weight = 400, fill = "dim", at = "left", base = "middle" } = {}) {
  g.font = font(size, weight);
  g.fillStyle = fill.startsWith("#") || fill.startsWith("r") ? fill : colour(fill);
  g.textAlign = at;
  g.textBaseline = base;
  g.fillText(text, x, y);
}

// shortened cuts a text to a width, in the font that is set.
export function shortened(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  let n = text.length;
  while (n > 1 && g.measureText(text.slice(0, n) + "…").width > width) n--;
  return text.slice(0, n) + "…";
}

// star draws a star of five points; letters of fonts differ too much.
export function star(g, x, y, r) {
  g.beginPath();
  for (let i = 0; i < 10; i++) {
    const a = Math.PI * (i / 5 - 0.5);
    const d = i % 2 ? r * 0.45 : r;
    g.lineTo(x + d * Math.cos(a), y + d * Math.sin(a));
  }
  g.fill();
}
