// Time series, drawn by uPlot: rate, latencies, cost. Time runs to the right; the right edge is now.

import { tip } from "./dom.js";
import { axis, count, dollars, milliseconds, percent, span, target } from "./format.js";
import { colour, faded, font } from "./paint.js";
import { ticks } from "./scale.js";

// ranges are the times that the rate can be shown of: seconds, distance of labels and where narrow, and
// of how many seconds a row of the table is.
export const ranges = {
  "10 min": { seconds: 600, every: 120, narrow: 300, row: 15 },
  "1 h": { seconds: 3600, every: 600, narrow: 1800, row: 60 },
  "24 h": { seconds: 86400, every: 14400, narrow: 43200, row: 600 },
};

// before writes how long ago a time is, for an axis.
function before(seconds) {
  if (seconds <= 0) return "now";
  if (seconds < 3600 || seconds % 3600) return "−" + Math.round(seconds / 60) + " min";
  return "−" + seconds / 3600 + " h";
}

// A Plot is a uPlot in a box. It reads what to show from the function rows, which returns
// {x, lines, now, seconds, every, narrow}; lines are columns as long as x.
export class Plot {
  constructor(box, { rows, series, bands, top, left = 44, describe, marks, unit = axis, small }) {
    Object.assign(this, { box, rows, describe });
    box.tabIndex = 0;
    box.setAttribute("role", "img");
    const look = {
      stroke: () => colour("faint"), font: font(11), ticks: { show: false },
      grid: { stroke: () => colour("line"), width: 1 },
    };
    const self = this;
    const options = {
      width: Math.max(60, box.clientWidth), height: Math.max(60, box.clientHeight),
      padding: [8, small ? 4 : 16, small ? 2 : 0, 0], legend: { show: false }, select: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7, width: 0 } },
      scales: {
        x: { time: false, range: () => [self.data.now - self.data.seconds, self.data.now] },
        y: { range: () => [0, self.top] },
      },
      axes: [
        {
          ...look, grid: { show: false }, size: small ? 4 : 30, gap: small ? 0 : 12,
          splits: (u) => {
            const every = u.width < 520 ? self.data.narrow : self.data.every;
            const all = [];
            for (let s = self.data.seconds; s >= 0; s -= every) all.push(self.data.now - s);
            return all;
          },
          values: (u, splits) => splits.map((s) => (small ? "" : before(Math.round(self.data.now - s)))),
        },
        {
          ...look, size: left, gap: 6,
          splits: () => (self.empty ? [0] : ticks(self.top, small ? 3 : 4)),
          values: (u, splits) => splits.map((v) => (v === 0 ? "0" : unit(v))),
        },
      ],
      series: [{}, ...series.map((s) => ({ spanGaps: false, points: { show: false }, ...s }))],
      bands,
      hooks: {
        draw: marks ? [(u) => marks(u, self)] : [],
        setCursor: [(u) => self.point(u)],
      },
    };
    this.limitTop = top;
    this.read();
    this.plot = new uPlot(options, this.columns(), box);
    this.plot.root.setAttribute("aria-hidden", "true");
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    box.addEventListener("keydown", (e) => this.key(e));
    box.addEventListener("blur", () => this.leave());
    box.addEventListener("mouseleave", () => this.leave());
  }

  read() {
    this.data = this.rows();
    const from = Math.max(0, this.data.x.findIndex((s) => s >= this.data.now - this.data.seconds));
    this.empty = !this.data.lines.some((l) => l.some((v, i) => i >= from && v !== null));
    this.top = this.limitTop(this.data);
  }

  columns() { return [this.data.x, ...this.data.lines]; }

  // show draws what rows returns now.
  show() {
    this.read();
    this.box.classList.toggle("nothing", this.empty);
    this.plot.setData(this.columns());
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (width > 0 && height > 0 && (width !== this.plot.width || height !== this.plot.height)) {
      this.plot.setSize({ width, height });
    }
  }

  remove() {
    this.observer.disconnect();
    this.plot.destroy();
  }

  leave() {
    this.plot.setCursor({ left: -10, top: -10 }, false);
    tip();
  }

  point(u) {
    const { left, idx } = u.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined) {
      if (this.pointed) tip();
      this.pointed = false;
      return;
    }
    this.pointed = true;
    const box = u.over.getBoundingClientRect();
    const lines = this.describe(this.data, idx);
    if (lines) tip(lines, box.left + left, box.top + box.height / 2);
  }

  // key moves the cursor to earlier and later rows.
  key(e) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[e.key];
    if (e.key === "Escape") this.leave();
    if (step === undefined || !this.data.x.length) return;
    e.preventDefault();
    const x = this.data.x;
    const first = x.findIndex((s) => s >= this.data.now - this.data.seconds);
    const at = this.pointed ? this.plot.cursor.idx + step * (e.shiftKey ? 10 : 1) : x.length - 1;
    const idx = Math.max(Math.max(0, first), Math.min(x.length - 1, at));
    this.plot.setCursor({ left: this.plot.valToPos(x[idx], "x"), top: 10 });
  }
}

// smooth is the mean of k values before and after each; nulls stay.
export function smooth(column, k) {
  return column.map((v, i) => {
    if (v === null) return null;
    let sum = 0;
    let n = 0;
    for (let j = Math.max(0, i - k); j <= Math.min(column.length - 1, i + k); j++) {
      if (column[j] === null) continue;
      sum += column[j];
      n++;
    }
    return sum / n;
  });
}

const highest = (column, from) => {
  let top = 0;
  for (let i = from; i < column.length; i++) if (column[i] > top) top = column[i];
  return top;
};

const shown = (d) => Math.max(0, d.x.findIndex((s) => s >= d.now - d.seconds));

// source is what a range shows of a state: the series and its time.
export function source(state, range, now) {
  const r = ranges[range];
  return { ...r, series: r.seconds > 600 ? state.minutes : state.seconds, now };
}

// ratePlot draws the rate beside the limit, with the events on the time axis.
export function ratePlot(box, state, view) {
  const rows = () => {
    const r = source(state, view.range, view.now());
    const c = r.series.columns;
    const each = r.series.step;
    return {
      ...r, x: r.series.second,
      lines: [c.rate, smooth(c.late, 3).map((v) => (v === null ? null : (10 * v) / each)), c.limit],
    };
  };
  return new Plot(box, {
    rows, left: 44,
    top: (d) => {
      // A limit of long ago may be far above all that is shown: what the first queries made of it.
      const from = shown(d);
      const asked = highest(d.lines[0], from);
      const limit = d.lines[2].findLast((v) => v !== null) ?? 0;
      return 1.12 * Math.max(asked, limit, Math.min(highest(d.lines[2], from), 1.3 * Math.max(asked, limit))) || 10;
    },
    series: [
      {
        stroke: () => colour("accent"), width: 2,
        fill: (u) => {
          const g = u.ctx.createLinearGradient(0, u.bbox.top, 0, u.bbox.top + u.bbox.height);
          g.addColorStop(0, faded(colour("accent"), 0.38));
          g.addColorStop(1, faded(colour("accent"), 0.02));
          return g;
        },
      },
      { stroke: () => colour("bad"), width: 1.5, fill: () => faded(colour("bad"), 0.45) },
      { stroke: () => colour("dim"), width: 1.5, dash: [5, 4] },
    ],
    marks: (u, p) => markEvents(u, p, view.events()),
    describe: (d, i) => {
      const c = d.series.columns;
      if (c.rate[i] === null) return [span(d.now - d.x[i]) + " ago", "not known"];
      const lines = [
        d.now - d.x[i] < 2 ? "now" : span(d.now - d.x[i]) + " ago" + (d.series.step > 1 ? ", mean of a minute" : ""),
        count(c.rate[i]) + " queries/s" + (c.limit[i] > 0
          ? ", " + percent(c.rate[i] / c.limit[i]) + " of " + count(c.limit[i]) : ""),
      ];
      if (c.answered[i] > 0) lines.push(percent(c.late[i] / c.answered[i], 2) + " late");
      const left = u0(d, i);
      for (const e of view.events()) if (Math.abs(e.at - d.x[i]) <= left) lines.push(e.title);
      return lines;
    },
  });
}

// u0 is how near, in seconds, an event must be to a row to be said with it.
const u0 = (d) => d.seconds / 120;

function markEvents(u, p, events) {
  const g = u.ctx;
  const { left, top, width, height } = u.bbox;
  const scale = devicePixelRatio || 1;
  g.save();
  let last = -Infinity;
  for (const e of [...events].sort((a, b) => a.at - b.at)) {
    if (e.at < p.data.now - p.data.seconds || e.at > p.data.now) continue;
    const x = left + (width * (e.at - p.data.now + p.data.seconds)) / p.data.seconds;
    const c = colour(e.colour);
    g.strokeStyle = faded(c, 0.45);
    g.lineWidth = scale;
    g.beginPath();
    g.moveTo(x, top);
    g.lineTo(x, top + height);
    g.stroke();
    if (x - last < 9 * scale) continue; // the list has them all
    last = x;
    g.fillStyle = c;
    g.beginPath();
    g.arc(x, top + height, 5.5 * scale, 0, 7);
    g.fill();
    g.strokeStyle = colour("card");
    g.lineWidth = 2 * scale;
    g.stroke();
  }
  g.restore();
}

// answersPlot draws how many of a model's queries a second were answered, and how many late or failed.
export function answersPlot(box, state, view, key, range) {
  const rows = () => {
    const r = source(state, range(), view.now());
    const m = r.series.models.get(key);
    const none = new Array(r.series.length).fill(null);
    const each = (column) => smooth(column, 3).map((v) => (v === null ? null : v / r.series.step));
    const bad = m ? m.late.map((v, i) => (v === null ? null : v + (m.failed[i] ?? 0))) : none;
    return { ...r, x: r.series.second, lines: m ? [each(m.answered), each(bad)] : [none, none], m };
  };
  return new Plot(box, {
    rows, left: 44,
    top: (d) => 1.15 * Math.max(highest(d.lines[0], shown(d)), highest(d.lines[1], shown(d))) || 10,
    series: [
      { stroke: () => colour("accent"), width: 2, fill: () => faded(colour("accent"), 0.16) },
      { stroke: () => colour("bad"), width: 1.5, fill: () => faded(colour("bad"), 0.45) },
    ],
    describe: (d, i) => (d.lines[0][i] === null ? [span(d.now - d.x[i]) + " ago", "no answers"]
      : [span(d.now - d.x[i]) + " ago", count(d.lines[0][i]) + " answered a second",
        count(d.lines[1][i]) + " late or failed a second"]),
  });
}

// modelPlot draws the band from p50 to p99 of a model beside its target. range names the time shown;
// without it, it is small: 10 minutes without a time axis.
export function modelPlot(box, state, view, key, place, hue, range) {
  const wanted = () => state.fleet.models.find((m) => m.name + "/" + m.version === key)?.target_ms ?? 0;
  const rows = () => {
    const r = source(state, range ? range() : "10 min", view.now());
    const m = r.series.models.get(key);
    const none = new Array(r.series.length).fill(null);
    return { ...r, x: r.series.second, lines: m ? [smooth(m.p99_ms, 2), smooth(m.p50_ms, 2)] : [none, none], m };
  };
  // The line is red where it is above the target.
  const stroke = (u, p) => {
    const c = hue();
    const at = 1 - Math.min(1, wanted() / (p.top || 1));
    const g = u.ctx.createLinearGradient(0, u.bbox.top, 0, u.bbox.top + u.bbox.height);
    g.addColorStop(0, colour("bad"));
    g.addColorStop(at, colour("bad"));
    g.addColorStop(at, c);
    g.addColorStop(1, c);
    return g;
  };
  let plot;
  plot = new Plot(box, {
    rows, left: range ? 44 : 36, small: !range,
    top: (d) => {
      const t = wanted();
      const peak = highest(d.lines[0], shown(d));
      if (!(t > 0)) return 1.15 * peak || 1;
      return Math.max(1.3 * t, Math.min(1.1 * peak, 4 * t));
    },
    series: [
      { stroke: (u) => (plot ? stroke(u, plot) : hue()), width: 2 },
      { stroke: () => faded(hue(), 0.7), width: 1.25 },
    ],
    bands: [{ series: [1, 2], fill: () => faded(hue(), 0.17) }],
    marks: (u, p) => {
      const t = wanted();
      if (!(t > 0)) return;
      const g = u.ctx;
      const scale = devicePixelRatio || 1;
      const y = u.valToPos(t, "y", true);
      g.save();
      g.fillStyle = faded(colour("bad"), 0.07);
      g.fillRect(u.bbox.left, u.bbox.top, u.bbox.width, y - u.bbox.top);
      g.strokeStyle = colour("bad");
      g.lineWidth = scale;
      g.setLineDash([4 * scale, 3 * scale]);
      g.beginPath();
      g.moveTo(u.bbox.left, y);
      g.lineTo(u.bbox.left + u.bbox.width, y);
      g.stroke();
      g.font = font(11 * scale);
      g.fillStyle = colour("bad");
      g.textAlign = "left";
      g.textBaseline = "bottom";
      if (y - u.bbox.top <= 14 * scale) return g.restore();
      const text = "target " + target(t);
      g.strokeStyle = faded(colour("card"), 0.85);
      g.lineWidth = 4 * scale;
      g.lineJoin = "round";
      g.setLineDash([]);
      g.strokeText(text, u.bbox.left + 4 * scale, y - 2 * scale);
      g.fillText(text, u.bbox.left + 4 * scale, y - 2 * scale);
      g.restore();
    },
    describe: (d, i) => {
      const m = d.m;
      if (!m || m.p99_ms[i] === null) return [place(), span(d.now - d.x[i]) + " ago: no answers"];
      return [place(), d.now - d.x[i] < 2 ? "now" : span(d.now - d.x[i]) + " ago",
        "p99 " + milliseconds(m.p99_ms[i]) + ", p50 " + milliseconds(m.p50_ms[i]),
        count(m.answered[i]) + " answered, " + count(m.late[i]) + " late, " + count(m.failed[i]) + " failed"];
    },
  });
  return plot;
}

// costPlot draws what a million queries cost.
export function costPlot(box, state, view) {
  const rows = () => {
    const r = source(state, "10 min", view.now());
    const c = r.series.columns;
    const cost = c.rate.map((v, i) => (v > 0 && c.price[i] > 0 ? (c.price[i] / 3600 / v) * 1e6 : null));
    return { ...r, x: r.series.second, lines: [smooth(cost, 5)] };
  };
  return new Plot(box, {
    rows, left: 44, small: true, unit: dollars,
    top: (d) => 1.2 * highest(d.lines[0], shown(d)) || 1,
    series: [{ stroke: () => colour("ok"), width: 2, fill: () => faded(colour("ok"), 0.12) }],
    describe: (d, i) => (d.lines[0][i] === null ? [span(d.now - d.x[i]) + " ago", "not known"]
      : [span(d.now - d.x[i]) + " ago", dollars(d.lines[0][i]) + " a million queries"]),
  });
}
