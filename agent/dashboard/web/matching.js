// Matching as it happens: queries fall from their batch size onto the instance type that the leader
// sent them to, over a map of which sizes went where in the last minute.

import { byId, choices, label, say, table, tip } from "./dom.js";
import { count, list, percent } from "./format.js";
import { groupsOf } from "./fleet.js";
import { canvas, colour, faded, font, modelColour, ramp, shortened, typeColour, write } from "./paint.js";
import { binsOf, mapHeight } from "./scale.js";
import { title, typeName } from "./state.js";

const mostModels = 8; // in the legend
const mostMarked = 5; // models whose largest batch in time is marked at once
const falling = 560; // ms
const landed = 800; // ms that a dot stays

export class Matching {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.canvas = byId("rain");
    this.map = document.createElement("canvas"); // what stays between beats
    this.dots = [];
    this.due = []; // shots of the last beat that have not begun to fall
    this.flashes = new Map(); // by row and column: brightness
    this.shown = ""; // key of the only model shown; "": all
    this.at = null; // the cell that is pointed at: [row, column]
    this.models = choices(byId("rainmodels"), (key) => {
      this.shown = key;
      this.dots = [];
      this.show();
    });
    this.canvas.addEventListener("mousemove", (e) => this.point(e.offsetX, e.offsetY));
    this.canvas.addEventListener("mouseleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.state.fleet && this.show()).observe(this.canvas.parentElement);
  }

  // chosen begins with the model that the view names now, or with all.
  chosen() {
    this.shown = this.view.model;
    this.dots = [];
  }

  // beat takes the shots of a beat, which fall during the second that follows; it draws nothing.
  beat() {
    const { state } = this;
    const shots = state.beat.shots.map(([size, type, model, late], i) => ({
      size, type: state.fleet.types[type]?.name, model, late, key: state.keys[model], i,
      delay: (1000 * i) / Math.max(1, state.beat.shots.length),
      // Where in its cell a dot lands; always the same for the same shot.
      jitter: hash(state.beat.second * 61 + i),
    })).filter((s) => s.type !== undefined && s.key !== undefined);
    this.due = shots;
    if (this.view.still) this.dots = shots.map((s) => ({ ...s, age: falling }));
    this.weight = state.beat.shot_weight ?? 1;
  }

  // read sums the heat by row and column.
  read() {
    const { state } = this;
    this.groups = groupsOf(state);
    const rows = new Map(this.groups.map((g, i) => [g.name, i]));
    this.rows = rows;
    const { bins, column } = binsOf(state.largest || 1000);
    Object.assign(this, { bins, column });
    const n = bins.count;
    this.cells = this.groups.map(() => new Float64Array(n)); // counts
    this.split = this.groups.map(() => Array.from({ length: n }, () => new Map())); // by model
    this.sizes = new Map(); // counts by column, of each model
    for (const s of state.heat.sums.values()) {
      const row = rows.get(s.type);
      if (row === undefined || (this.shown && s.model !== this.shown)) continue;
      let sizes = this.sizes.get(s.model);
      if (!sizes) {
        sizes = new Float64Array(n);
        this.sizes.set(s.model, sizes);
      }
      s.bins.forEach((v, bin) => {
        const c = column[bin] < 0 ? n - 1 : column[bin];
        if (!(v > 0)) return;
        this.cells[row][c] += v;
        sizes[c] += v;
        this.split[row][c].set(s.model, (this.split[row][c].get(s.model) ?? 0) + v);
      });
    }
    this.all = new Float64Array(n); // counts by column
    for (const row of this.cells) row.forEach((v, i) => { this.all[i] += v; });
    this.total = this.all.reduce((a, b) => a + b, 0);
    // A column of few whole numbers gets fewer queries than its width is worth.
    this.worth = Float64Array.from(this.all, (_, i) => {
      if (i === 0) return 1;
      const low = bins.first(i) - 0.5;
      const high = bins.edges[i] + 0.5;
      return Math.log(125) / 42 / Math.log(high / low);
    });
  }

  geometry() {
    const parent = this.canvas.parentElement;
    const narrow = parent.clientWidth < 520;
    const rows = Math.max(1, this.groups.length);
    const height = Math.max(parent.clientHeight, 110 + rows * 34);
    const left = narrow ? 88 : 124;
    const top = 74;
    return {
      narrow, left, right: this.canvas.clientWidth - 6, top, bottom: height - 24, height,
      row: (height - 24 - top) / rows, cell: (this.canvas.clientWidth - 6 - left) / this.bins.count,
    };
  }

  // show draws the map anew.
  show() {
    const { state } = this;
    if (!state.fleet) return;
    this.read();
    const parent = this.canvas.parentElement;
    parent.style.minHeight = mapHeight(this.groups.length) + "px";
    const g = this.geometry();
    // Before the page is laid out there is no room, and nothing is drawn.
    this.place = this.canvas.clientWidth < 150 ? null : g;
    if (!this.place) return;
    canvas(this.canvas, g.height);
    this.drawMap(g);
    this.draw();
    this.sayAll();
    this.view.panelTable("matching", () => this.table());
    if (this.at) this.sayCell();
  }

  drawMap(o) {
    this.map.width = this.canvas.width;
    this.map.height = this.canvas.height;
    const g = this.map.getContext("2d");
    const scale = devicePixelRatio || 1;
    g.setTransform(scale, 0, 0, scale, 0, 0);
    const { bins } = this;
    const tall = Array.from(this.all, (v, i) => v * this.worth[i]);
    const highest = Math.max(...tall, 1e-9);
    const models = this.ordered();
    // Arrivals, stacked by model.
    write(g, o.narrow ? "arrive" : "queries arrive", o.left - 12, o.top - 22, { at: "right", size: 11.5 });
    for (let i = 0; i < bins.count; i++) {
      const x = o.left + i * o.cell;
      let y = o.top - 10;
      const whole = (54 * tall[i]) / highest;
      if (!(whole > 0)) {
        g.fillStyle = colour("line");
        g.fillRect(x + 0.75, y - 1, o.cell - 1.5, 1);
        continue;
      }
      g.save();
      g.beginPath();
      g.roundRect(x + 0.75, y - Math.max(1.5, whole), Math.max(1, o.cell - 1.5), Math.max(1.5, whole), 2);
      g.clip();
      for (const m of models) {
        const h = (whole * (this.sizes.get(m.key)?.[i] ?? 0)) / this.all[i];
        g.fillStyle = faded(modelColour(m.index), 0.85);
        g.fillRect(x, y - Math.max(h, whole < 1.5 ? 1.5 : 0), o.cell, Math.max(h, whole < 1.5 ? 1.5 : 0));
        y -= h;
      }
      g.restore();
    }
    // The map: which share of a size went to the type, fainter where there are few of that size.
    this.groups.forEach((type, k) => {
      const y = o.top + o.row * k;
      for (let i = 0; i < bins.count; i++) {
        g.fillStyle = ramp(this.value(k, i, tall, highest));
        g.beginPath();
        g.roundRect(o.left + i * o.cell + 0.75, y + 3, Math.max(1, o.cell - 1.5), o.row - 6, Math.min(4, o.cell / 3));
        g.fill();
      }
      const share = this.total ? this.cells[k].reduce((a, b) => a + b, 0) / this.total : null;
      const middle = y + o.row / 2;
      const two = o.row >= 40;
      g.font = font(o.narrow ? 11.5 : 12.5, 600);
      write(g, shortened(g, typeName(type), o.left - (o.narrow ? 14 : 30)), o.left - 12, two ? middle - 9 : middle,
        { at: "right", size: o.narrow ? 11.5 : 12.5, weight: 600, fill: "text" });
      if (two && share !== null) {
        write(g, percent(share) + (o.narrow ? "" : " of queries"), o.left - 12, middle + 8, { at: "right" });
      }
      g.fillStyle = typeColour(type.index);
      g.beginPath();
      g.roundRect(o.left - 7, y + 3, 3, o.row - 6, 1.5);
      g.fill();
    });
    this.drawMarks(g, o, models);
    const sizes = [8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 8000].filter((s) => s <= bins.edges[bins.count - 1]);
    let end = -Infinity;
    sizes.forEach((s, i) => {
      const last = i === sizes.length - 1;
      const x = i === 0 ? o.left + o.cell / 2 : o.left + (o.right - o.left) * bins.place(s);
      const text = i === 0 ? "≤ 8" : String(s);
      const half = g.measureText(text).width / 2;
      if (x - half < end + 10) return;
      end = last ? x : x + half;
      write(g, text, i === 0 ? o.left : last ? o.right : x, o.bottom + 14,
        { at: i === 0 ? "left" : last ? "right" : "center", fill: "faint" });
    });
    write(g, "batch size", o.left - 12, o.bottom + 14, { at: "right", fill: "faint" });
  }

  // value is how bright a cell is, between 0 and 1.
  value(k, i, tall, highest) {
    if (!(this.all[i] > 0)) return 0;
    const share = this.cells[k][i] / this.all[i];
    return share * (0.3 + 0.7 * Math.sqrt(tall[i] / highest));
  }

  ordered() {
    return this.state.models().filter((m) => !this.shown || m.key === this.shown)
      .sort((a, b) => a.index - b.index);
  }

  // drawMarks marks the largest batch that is in time on a type, of each model.
  drawMarks(g, o, models) {
    const busiest = [...models].sort((a, b) => b.rate - a.rate).slice(0, mostMarked);
    this.groups.forEach((type, k) => {
      const y = o.top + o.row * k;
      for (const m of busiest) {
        const most = this.view.inTime(m.key, type.name);
        if (most === undefined || most >= (m.largest || 1000)) continue;
        const x = most > 0 ? o.left + (o.right - o.left) * this.bins.place(most) : o.left;
        const c = modelColour(m.index);
        g.strokeStyle = colour("card");
        g.lineWidth = 4;
        g.beginPath();
        g.moveTo(x, y + 3);
        g.lineTo(x, y + o.row - 3);
        g.stroke();
        g.strokeStyle = c;
        g.lineWidth = 1.75;
        g.stroke();
        g.fillStyle = c;
        g.strokeStyle = colour("card");
        g.lineWidth = 1.5;
        g.beginPath();
        g.moveTo(x - 6, y + 1.5);
        g.lineTo(x + 6, y + 1.5);
        g.lineTo(x, y + 10);
        g.closePath();
        g.stroke();
        g.fill();
      }
    });
  }

  // draw draws the map and what falls over it; passed is the time since it was last drawn, in ms.
  draw(passed = 0) {
    const o = this.place;
    if (!o || this.canvas.clientWidth < 150) return;
    const { g, width, height } = canvas(this.canvas, o.height);
    g.drawImage(this.map, 0, 0, width, height);
    for (const [key, v] of this.flashes) {
      const left = v - passed / 520;
      if (left <= 0) {
        this.flashes.delete(key);
        continue;
      }
      this.flashes.set(key, left);
      const [k, i] = key.split(" ").map(Number);
      if (k >= this.groups.length) continue;
      g.fillStyle = faded(colour("heat4"), 0.38 * Math.min(1, left));
      g.beginPath();
      g.roundRect(o.left + i * o.cell + 0.75, o.top + o.row * k + 3, Math.max(1, o.cell - 1.5), o.row - 6, Math.min(4, o.cell / 3));
      g.fill();
    }
    if (!this.view.still) this.fall(passed);
    for (const d of this.dots) this.dot(g, o, d);
    if (this.at) {
      const [k, i] = this.at;
      g.strokeStyle = colour("text");
      g.lineWidth = 1.5;
      g.beginPath();
      g.roundRect(o.left + i * o.cell, o.top + o.row * k + 2, o.cell, o.row - 4, 4);
      g.stroke();
    }
  }

  // fall lets shots begin, and dots fall and fade.
  fall(passed) {
    for (const s of this.due) s.delay -= passed;
    for (const s of this.due) if (s.delay <= 0 && (!this.shown || s.key === this.shown)) this.dots.push({ ...s, age: 0 });
    this.due = this.due.filter((s) => s.delay > 0);
    for (const d of this.dots) {
      const before = d.age;
      d.age += passed;
      if (before < falling && d.age >= falling) {
        const row = this.rows.get(d.type);
        if (row !== undefined) {
          const key = row + " " + this.bins.of(d.size);
          this.flashes.set(key, Math.min(1, (this.flashes.get(key) ?? 0) + 0.55));
        }
      }
    }
    this.dots = this.dots.filter((d) => d.age < falling + landed);
  }

  dot(g, o, d) {
    const row = this.rows.get(d.type);
    if (row === undefined || (this.shown && d.key !== this.shown)) return;
    const c = modelColour(d.model);
    const bin = this.bins.of(d.size);
    const x = o.left + Math.min(this.bins.count - 0.2, Math.max(bin + 0.2, bin + 0.2 + 0.6 * d.jitter[0])) * o.cell;
    const from = o.top - 12;
    const to = o.top + o.row * row + Math.min(16, o.row * 0.3) + (o.row - 2 * Math.min(16, o.row * 0.3)) * d.jitter[1];
    const r = 1.6 + 3.4 * Math.min(1, Math.sqrt(d.size / 1000));
    if (d.age < falling) {
      const t = d.age / falling;
      const y = from + (to - from) * t * t;
      const tail = Math.min(y - from, 8 + 46 * t);
      const light = g.createLinearGradient(0, y - tail, 0, y);
      light.addColorStop(0, faded(c, 0));
      light.addColorStop(1, faded(c, 0.75));
      g.fillStyle = light;
      g.fillRect(x - Math.max(0.7, r * 0.32), y - tail, Math.max(1.4, r * 0.64), tail);
      g.fillStyle = c;
      g.globalAlpha = 0.8;
      g.beginPath();
      g.arc(x, y, r * 0.6, 0, 7);
      g.fill();
      g.globalAlpha = 1;
      return;
    }
    const t = (d.age - falling) / landed;
    g.globalAlpha = 1 - t * t;
    g.beginPath();
    g.arc(x, to, r, 0, 7);
    g.fillStyle = c;
    g.fill();
    g.strokeStyle = colour("card");
    g.lineWidth = 1.25;
    g.stroke();
    if (d.late) {
      g.beginPath();
      g.arc(x, to, r + 2.2, 0, 7);
      g.strokeStyle = colour("bad");
      g.lineWidth = 2;
      g.stroke();
    } else if (t > 0) {
      g.globalAlpha = 0.5 * (1 - t);
      g.beginPath();
      g.arc(x, to, r + 9 * Math.sqrt(t), 0, 7);
      g.strokeStyle = c;
      g.lineWidth = 1.25;
      g.stroke();
    }
    g.globalAlpha = 1;
  }

  sayAll() {
    const { state } = this;
    const models = state.models().sort((a, b) => a.index - b.index);
    const some = models.length > mostModels
      ? [...models].sort((a, b) => b.rate - a.rate).slice(0, mostModels).sort((a, b) => a.index - b.index) : models;
    if (this.view.model) this.shown = this.view.model;
    else if (this.shown && !models.some((m) => m.key === this.shown)) this.shown = "";
    byId("rainmodels").hidden = Boolean(this.view.model);
    this.models.set([["", "all", "Show all models"], ...some.map((m) => {
      const name = title(m, state.fleet.models);
      return [m.key, name, "Show only " + name];
    })], this.shown);
    for (const b of byId("rainmodels").children) {
      const m = some.find((x) => x.key === b.dataset.key);
      if (m) b.style.setProperty("--c", modelColour(m.index));
    }
    const hidden = models.length - some.length;
    const marks = this.marked();
    const span = state.heat.span;
    say(byId("rainnote"), [
      hidden ? hidden + " more in the table" : "",
      this.total ? (span < 60 ? "last " + span + " s" : "last minute") + ": share of a size that goes to the type" : "",
      this.weight > 1 && !this.view.still ? "1 dot: " + count(this.weight) + " queries" : "",
      state.beat?.shots.some((s) => s[3]) ? "ringed red: will be late" : "",
      marks ? "triangle: largest batch in time" : "",
    ].filter(Boolean).join("  ·  "));
    const empty = byId("rainempty");
    empty.hidden = this.total > 0;
    say(empty, state.beat?.leaderless ? "Without a leader nobody knows all decisions."
      : this.noQuery() + ". Each falls from its batch size onto the type that serves it.");
    label(this.canvas, "aria-label", this.inWords());
  }

  marked() {
    return this.groups.some((t) => this.state.fleet.models.some((m, i) => this.view.inTime(this.state.keys[i], t.name) < (m.largest || 1000)));
  }

  // The map counts what it has heard since the page was opened.
  noQuery() {
    const { span } = this.state.heat;
    return span < 60 ? "No query since this page was opened" : "No query in the last minute";
  }

  inWords() {
    if (!this.total) return this.noQuery();
    return "Of the last minute's queries " + list(this.groups.map((t, k) => {
      const n = this.cells[k].reduce((a, b) => a + b, 0);
      return percent(n / this.total) + " went to " + typeName(t) + (n ? ", of batch size " + this.median(k) + " in the middle" : "");
    }));
  }

  median(k) {
    const half = this.cells[k].reduce((a, b) => a + b, 0) / 2;
    let sum = 0;
    for (let i = 0; i < this.bins.count; i++) if ((sum += this.cells[k][i]) >= half) return this.bins.label(i);
    return "–";
  }

  point(x, y) {
    const o = this.place;
    if (!o) return;
    const k = Math.floor((y - o.top) / o.row);
    const i = Math.floor((x - o.left) / o.cell);
    if (k < 0 || k >= this.groups.length || i < 0 || i >= this.bins.count) return this.leave();
    this.at = [k, i];
    this.sayCell();
    if (this.view.still) this.draw();
  }

  sayCell() {
    const o = this.place;
    const [k, i] = this.at;
    if (k >= this.groups.length || i >= this.bins.count) return this.leave();
    const n = this.cells[k][i];
    const lines = ["batch " + this.bins.label(i) + " on " + typeName(this.groups[k])];
    lines.push(this.all[i] > 0 ? percent(n / this.all[i]) + " of this size, " + count(n) + (n === 1 ? " query" : " queries") : "none of this size came");
    const models = [...this.split[k][i]].sort((a, b) => b[1] - a[1]).slice(0, 4);
    if (models.length) {
      lines.push(models.map(([key, v]) => this.name(key) + " " + percent(v / n)).join(", "));
    }
    const box = this.canvas.getBoundingClientRect();
    tip(lines, box.left + o.left + (i + 1) * o.cell, box.top + o.top + (k + 0.5) * o.row);
  }

  name(key) {
    const m = this.state.fleet.models[this.state.keys.indexOf(key)];
    return m ? title(m, this.state.fleet.models) : key;
  }

  leave() {
    if (this.at) tip();
    this.at = null;
    if (this.view.still) this.draw();
  }

  key(e) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[e.key];
    if (e.key === "Escape") this.leave();
    if (!step || !this.groups?.length) return;
    e.preventDefault();
    const [k, i] = this.at ?? [0, -1];
    this.at = [Math.max(0, Math.min(this.groups.length - 1, k + step[0])), Math.max(0, Math.min(this.bins.count - 1, i + step[1]))];
    this.sayCell();
    this.draw();
  }

  table() {
    const parts = [[1, 8], [9, 32], [33, 128], [129, 512], [513, Infinity]].filter(([low]) => low <= this.bins.edges[this.bins.count - 1]);
    const column = (size) => parts.findIndex(([low, high]) => size >= low && size <= high);
    const sums = this.groups.map(() => parts.map(() => 0));
    const all = parts.map(() => 0);
    this.cells.forEach((row, k) => row.forEach((v, i) => {
      sums[k][column(this.bins.first(i))] += v;
      all[column(this.bins.first(i))] += v;
    }));
    return table("Share of each batch size that goes to a type, last minute",
      ["type", ...parts.map(([low, high]) => (high === Infinity ? "> " + (low - 1) : low + "–" + high)), "all"],
      this.groups.map((t, k) => [typeName(t), ...sums[k].map((v, i) => (all[i] ? percent(v / all[i]) : "–")),
        this.total ? percent(sums[k].reduce((a, b) => a + b, 0) / this.total) : "–"]));
  }
}

// hash makes two numbers between 0 and 1 of one.
function hash(n) {
  let t = (n + 0x6d2b79f5) | 0;
  t = Math.imul(t ^ (t >>> 15), 1 | t);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  const a = (t ^ (t >>> 14)) >>> 0;
  return [(a & 0xffff) / 65536, (a >>> 16) / 65536];
}
