// The fleet as tiles: one a lane, grouped by instance type.

import { byId, el, label, say, shape, table, tip } from "./dom.js";
import { count, dollars, ending, list, milliseconds, percent, things } from "./format.js";
import { canvas, colour, faded, modelColour, star, typeColour } from "./paint.js";
import { height, mapHeight, tileSize } from "./scale.js";
import { agentName, flag, title, typeName } from "./state.js";

const mostTiles = 200; // beyond, they are drawn on canvases
const starPath = "M10 1l2.600 6 6.400.5-4.900 4.200 1.600 6.300L10 14.600 4.300 18l1.600-6.300L1 7.500l6.400-.5z";
const sizes = [150, 118, 92, 72, 62, 54, 46, 38, 30, 24];

// groupsOf are the fleet's lanes by type, dearest type first.
export function groupsOf(state) {
  const { fleet } = state;
  const groups = fleet.types.map((t, index) => ({ ...t, index, lanes: [], starting: [], agents: 0 }));
  for (const lane of state.lanes()) groups[fleet.agents[lane.agent].type]?.lanes.push(lane);
  fleet.agents.forEach((a, i) => {
    const g = groups[a.type];
    if (!g) return;
    g.agents++;
    if (!a.lanes) g.starting.push(i);
  });
  return groups.filter((g) => g.agents > 0)
    .sort((a, b) => (b.price ?? -1) - (a.price ?? -1) || (a.name < b.name ? -1 : 1));
}

export class Fleet {
  constructor(state, view) {
    Object.assign(this, { state, view });
    this.box = byId("types");
    this.groups = new Map(); // elements of a type, by name
    this.tiles = new Map(); // by agent and lane
    this.focused = null; // key of the tile that Tab reaches
    this.box.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.state.beat && this.show()).observe(this.box);
  }

  // show draws the last beat.
  show() {
    const { state } = this;
    const groups = groupsOf(state);
    const lanes = groups.reduce((n, g) => n + g.lanes.length, 0);
    this.most = Math.max(10, ...state.fleet.models.map((m) => m.target_ms ?? 0));
    this.sayHow(groups, lanes);
    const drawn = lanes > mostTiles;
    label(this.box, "data-lanes", String(lanes));
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.box.classList.toggle("drawn", drawn);
      this.box.replaceChildren();
      this.groups.clear();
      this.tiles.clear();
    }
    for (const [name, g] of this.groups) {
      if (!groups.some((x) => x.name === name)) {
        g.box.remove();
        this.groups.delete(name);
      }
    }
    groups.forEach((g, i) => {
      let e = this.groups.get(g.name);
      if (!e) {
        e = this.group(g);
        this.groups.set(g.name, e);
      }
      if (this.box.children[i] !== e.box) this.box.insertBefore(e.box, this.box.children[i] ?? null);
      this.head(e, g);
    });
    if (drawn) this.cells(groups);
    else this.arrange(groups);
    this.count(0);
    this.view.panelTable("fleet", () => this.table());
  }

  sayHow(groups, lanes) {
    const { fleet } = this.state;
    const agents = fleet.agents.length;
    const draining = fleet.agents.filter((a) => a.draining).length;
    const starting = fleet.agents.filter((a) => !a.lanes).length;
    const overdue = this.state.lanes().filter((l) => l.flags & flag.overdue).length;
    const parts = [things(agents, "agent") + " with " + things(lanes, "lane")];
    if (starting) parts.push(count(starting) + (starting === 1 ? " starts" : " start"));
    if (draining) parts.push(count(draining) + (draining === 1 ? " drains" : " drain"));
    if (overdue) parts.push(things(overdue, "lane") + " overdue");
    say(byId("fleetsays"), parts.join(", "));
    const small = lanes > mostTiles ? ["a cell is a lane; point at one for its name"] : [];
    say(byId("fleetnote"), [
      ...small, "height: time until the lane is free, 1 ms to " + milliseconds(this.most) + ", log",
      "colour: the model", "brightness" + (lanes > mostTiles ? "" : " and %") + ": how busy",
      "star: leads", "red frame: overdue",
    ].join("  ·  "));
  }

  group(g) {
    const swatch = el("i");
    swatch.style.background = typeColour(g.index);
    const name = el("span", { title: g.name }, typeName(g));
    const facts = el("p");
    const bar = el("i");
    const tiles = el("div", { class: "tiles", role: "group", "aria-label": typeName(g) });
    const box = el("div", { class: "type" },
      el("div", {}, el("div", { class: "n" }, swatch, name), facts, el("div", { class: "meter" }, bar)), tiles);
    return { box, swatch, facts, bar, tiles };
  }

  head(e, g) {
    const { fleet } = this.state;
    e.swatch.style.background = typeColour(g.index);
    const known = g.lanes.filter((l) => l.busy !== null);
    const busy = known.length ? known.reduce((s, l) => s + l.busy, 0) / known.length : null;
    const one = fleet.agents.find((a) => a.type === g.index);
    const what = [];
    if (one?.cores) what.push(things(one.cores, "core") + (one.provider && one.provider !== "cpu" ? ", " + one.provider : ""));
    if (g.price !== null && g.price !== undefined) what.push(dollars(g.price) + "/hr each");
    what.push(busy === null ? "busy: not known" : percent(busy) + " busy");
    if (e.what !== what.join("\n")) {
      e.what = what.join("\n");
      e.facts.replaceChildren(...what.flatMap((w, i) => (i ? [el("br"), w] : [w])));
    }
    e.bar.style.width = 100 * (busy ?? 0) + "%";
    e.bar.style.background = typeColour(g.index);
    label(e.tiles, "aria-label", things(g.lanes.length, "lane") + " of " + things(g.agents, "agent") + ", " + typeName(g));
  }

  // arrange makes, moves and removes the elements of tiles, and sets what does not change between
  // beats.
  arrange(groups) {
    const { state } = this;
    const narrow = matchMedia("(max-width: 640px)").matches;
    const width = this.box.clientWidth - (narrow ? 0 : 146);
    const room = narrow ? 1e9 : mapHeight(groups.length) + 12;
    const size = narrow ? (groups.reduce((n, g) => n + g.lanes.length + g.starting.length, 0) > 12 ? 62 : 92) : tileSize(groups.map((g) => g.lanes.length + g.starting.length), width, room, sizes, 6, 18);
    this.box.style.setProperty("--w", size + "px");
    this.box.style.setProperty("--h", Math.round(size > 72 ? 0.9 * size : size * (size > 40 ? 1.12 : 1)) + "px");
    this.letters = Math.floor((size - 8) / 5.6); // of a name
    this.box.classList.toggle("large", size > 72);
    this.box.style.setProperty("--gap", (size > 30 ? 6 : 4) + "px");
    this.box.classList.toggle("small", size < 38);
    const seen = new Set();
    for (const g of groups) {
      const parent = this.groups.get(g.name).tiles;
      let place = 0;
      const put = (key, make) => {
        seen.add(key);
        let t = this.tiles.get(key);
        if (!t) {
          t = make();
          this.tiles.set(key, t);
        }
        if (parent.children[place] !== t.e) parent.insertBefore(t.e, parent.children[place] ?? null);
        place++;
        return t;
      };
      for (const lane of g.lanes) {
        const agent = state.fleet.agents[lane.agent];
        const first = state.owners.indexOf(lane.agent);
        const key = agent.name + " " + (lane.index - first);
        this.dress(put(key, () => this.tile(key)), lane, agent, lane.index - first);
      }
      for (const i of g.starting) {
        const agent = state.fleet.agents[i];
        this.dress(put(agent.name, () => this.tile(agent.name)), null, agent, 0);
      }
    }
    for (const [key, t] of this.tiles) {
      if (seen.has(key)) continue;
      if (t.e === document.activeElement) tip();
      t.e.remove();
      this.tiles.delete(key);
    }
    if (!this.tiles.has(this.focused)) this.focused = this.tiles.keys().next().value ?? null;
    for (const [key, t] of this.tiles) label(t.e, "tabindex", key === this.focused ? "0" : "-1");
  }

  tile(key) {
    const f = el("span", { class: "f" });
    const m = el("span", { class: "m" });
    const t = el("span", { class: "t" });
    const n = el("span", { class: "n" });
    const runs = el("span", { class: "r" });
    const d = el("span", { class: "sr" });
    const e = el("button", { type: "button", class: "tile", "data-key": key }, f, n, m, runs, t, d);
    const made = { e, f, n, m, runs, t, d, key };
    const point = () => {
      const box = e.getBoundingClientRect();
      tip(this.describe(made), box.left, box.bottom - 8);
    };
    e.addEventListener("mouseenter", point);
    e.addEventListener("focus", () => {
      this.focused = key;
      for (const [k, other] of this.tiles) label(other.e, "tabindex", k === key ? "0" : "-1");
      point();
    });
    e.addEventListener("mouseleave", () => tip());
    e.addEventListener("blur", () => tip());
    return made;
  }

  dress(t, lane, agent, number) {
    const { fleet } = this.state;
    const leads = fleet.agents[fleet.leader] === agent;
    const flags = lane ? lane.flags : flag.starting;
    Object.assign(t, { lane, agent, number, leads });
    t.e.className = "tile" + (flags & flag.overdue ? " over" : leads ? " lead" : "") +
      (agent.draining || flags & flag.draining ? " drain" : "") + (flags & flag.starting ? " start" : "");
    const mark = leads && number === 0 ? "star" : flags & flag.overdue ? "overdue"
      : flags & flag.silent ? "silent" : flags & flag.slow ? "slow" : "";
    if (t.mark !== mark) {
      t.mark = mark;
      t.m.replaceChildren(mark === "star" ? shape(starPath, 20) : mark);
    }
    const lanes = agent.lanes > 1 ? " " + (number + 1) : "";
    say(t.n, ending(agentName(agent), this.letters - lanes.length) + lanes);
    say(t.runs, !lane || lane.busy === null ? "" : lane.model >= 0 && lane.remaining > 0 && fleet.models[lane.model]
      ? "runs " + title(fleet.models[lane.model], fleet.models) : "free");
    say(t.t, agent.draining ? "drains" : flags & flag.starting ? "starts"
      : lane.busy === null ? "" : Math.round(100 * lane.busy) + "%");
    // How busy a lane was shows as a wash, for what it runs at this moment says little of it.
    const wash = lane?.busy && !(flags & flag.draining) ? Math.round(34 * lane.busy) : 0;
    t.e.style.background = wash ? `color-mix(in srgb, var(--accent) ${wash}%, var(--card2))` : "";
    t.f.style.background = lane && lane.model >= 0 ? modelColour(lane.model) : lane ? colour("faint") : "";
    say(t.d, " " + this.describe(t).join(", "));
  }

  describe({ lane, agent, number, leads }) {
    const { fleet } = this.state;
    const name = agentName(agent);
    const lines = [name + (agent.lanes > 1 ? ", lane " + (number + 1) + " of " + agent.lanes : "") + (leads ? ", leads" : "")];
    if (name !== agent.name) lines.push("agent " + agent.name);
    if (!lane) return [...lines, "starts: has not said what it is"];
    const states = [
      [flag.overdue, "overdue: gets no more queries until it answers"], [flag.silent, "asked, and does not answer"],
      [flag.draining, "drains"], [flag.starting, "starts"],
    ].filter(([bit]) => (lane.flags | (agent.draining ? flag.draining : 0)) & bit).map(([, text]) => text);
    if (states.length) lines.push(states.join(", "));
    const left = this.left(lane);
    lines.push((left > 0 ? "free in " + milliseconds(left) : "free") + (lane.busy === null ? "" : ", " + percent(lane.busy) + " busy"));
    if (lane.model >= 0 && fleet.models[lane.model]) lines.push("runs " + title(fleet.models[lane.model], fleet.models));
    if (typeof agent.factor === "number") lines.push((lane.flags & flag.slow ? "slow: takes " : "takes ") + agent.factor.toFixed(2) + " times as long as its type");
    if (agent.models?.length) {
      const held = agent.models.map((m) => fleet.models[m]).filter(Boolean).map((m) => title(m, fleet.models));
      lines.push("holds " + (held.length > 6 ? held.slice(0, 6).join(", ") + " and " + (held.length - 6) + " more" : list(held)));
    }
    return lines;
  }

  // left is the time until a lane is free: as of the beat, counted down since.
  left(lane) {
    return lane.remaining === null ? 0 : Math.max(0, lane.remaining - (this.view.still ? 0 : this.since ?? 0));
  }

  // count draws the time until lanes are free; since is the time since the beat in ms.
  count(since) {
    this.since = since;
    if (this.drawn) return;
    for (const t of this.tiles.values()) {
      if (!t.lane) continue;
      const v = height(this.left(t.lane), this.most);
      if (t.v !== v) {
        t.v = v;
        t.f.style.transform = `scaleY(${v.toFixed(3)})`;
      }
    }
  }

  // key moves the focus among tiles.
  key(e) {
    if (this.drawn) return;
    const all = [...this.box.querySelectorAll(".tile")];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const lines = (dir) => {
      const from = all[at].getBoundingClientRect();
      let best = at;
      let least = Infinity;
      all.forEach((x, i) => {
        const box = x.getBoundingClientRect();
        const down = (box.top - from.top) * dir;
        if (down < 4) return;
        const d = down * 3 + Math.abs(box.left - from.left);
        if (d < least) [least, best] = [d, i];
      });
      return best;
    };
    const to = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, Home: () => 0, End: () => all.length - 1,
      ArrowDown: () => lines(1), ArrowUp: () => lines(-1) }[e.key];
    if (!to) return;
    e.preventDefault();
    all[Math.max(0, Math.min(all.length - 1, to()))].focus();
  }

  // cells draws the lanes of each type on a canvas of its own.
  cells(groups) {
    const narrow = matchMedia("(max-width: 640px)").matches;
    const width = this.box.clientWidth - (narrow ? 0 : 146);
    const room = mapHeight(groups.length) + 12;
    const size = tileSize(groups.map((g) => g.lanes.length), width, narrow ? 1e9 : room, [16, 14, 12, 10, 8], 2, 18);
    for (const g of groups) {
      const e = this.groups.get(g.name);
      if (!e.canvas) {
        e.canvas = el("canvas", { tabindex: "0", role: "img" });
        e.canvas.addEventListener("mousemove", (ev) => this.pointCell(e, ev.offsetX, ev.offsetY));
        e.canvas.addEventListener("mouseleave", () => tip());
        e.canvas.addEventListener("blur", () => tip());
        e.canvas.addEventListener("keydown", (ev) => this.keyCell(e, ev));
        e.tiles.append(e.canvas);
      }
      const columns = Math.max(1, Math.floor((width + 2) / (size + 2)));
      const rows = Math.ceil(g.lanes.length / columns);
      e.canvas.style.width = columns * (size + 2) + "px";
      const { g: c } = canvas(e.canvas, rows * (size + 2));
      Object.assign(e, { lanes: g.lanes, columns, size });
      g.lanes.forEach((lane, i) => this.cell(c, lane, (i % columns) * (size + 2), Math.floor(i / columns) * (size + 2), size));
      const busy = g.lanes.filter((l) => l.busy >= 0.9).length;
      label(e.canvas, "aria-label", things(g.lanes.length, "lane") + " of " + typeName(g) + ", " + count(busy) + " of them busy for 90 % of the time or more");
    }
  }

  cell(c, lane, x, y, size) {
    const { fleet } = this.state;
    const agent = fleet.agents[lane.agent];
    c.fillStyle = colour("card2");
    c.beginPath();
    c.roundRect(x + 0.5, y + 0.5, size - 1, size - 1, 2);
    c.fill();
    const hue = lane.model >= 0 ? modelColour(lane.model) : colour("faint");
    c.fillStyle = faded(hue, 0.1 + 0.3 * (lane.busy ?? 0));
    c.fill();
    c.save();
    c.clip();
    const h = height(lane.remaining ?? 0, this.most) * size;
    c.fillStyle = faded(hue, 0.85);
    c.fillRect(x, y + size - h, size, h);
    c.restore();
    if (agent.draining || lane.flags & (flag.draining | flag.starting)) {
      c.strokeStyle = colour(lane.flags & flag.starting ? "accent" : "dim");
      c.setLineDash([2, 2]);
      c.lineWidth = 1;
      c.stroke();
      c.setLineDash([]);
    }
    if (lane.flags & (flag.overdue | flag.silent)) {
      c.strokeStyle = colour("bad");
      c.lineWidth = 1.5;
      c.stroke();
    }
    if (lane.agent === fleet.leader) {
      c.fillStyle = colour("text");
      star(c, x + size / 2, y + size / 2, size * 0.36);
    }
  }

  pointCell(e, x, y) {
    const pitch = e.size + 2;
    const i = Math.floor(y / pitch) * e.columns + Math.floor(x / pitch);
    this.sayCell(e, x < e.columns * pitch ? i : -1);
  }

  sayCell(e, i) {
    const lane = e.lanes[i];
    if (!lane) return tip();
    e.at = i;
    const box = e.canvas.getBoundingClientRect();
    const pitch = e.size + 2;
    const agent = this.state.fleet.agents[lane.agent];
    const lines = this.describe({
      lane, agent, number: lane.index - this.state.owners.indexOf(lane.agent), leads: lane.agent === this.state.fleet.leader,
    });
    tip(lines, box.left + (i % e.columns) * pitch, box.top + Math.floor(i / e.columns) * pitch);
  }

  keyCell(e, ev) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: e.columns, ArrowUp: -e.columns }[ev.key];
    if (step === undefined) return;
    ev.preventDefault();
    this.sayCell(e, Math.max(0, Math.min(e.lanes.length - 1, (e.at ?? -step) + step)));
  }

  table() {
    const { fleet } = this.state;
    const lanes = this.state.lanes();
    const rows = fleet.agents.map((a, i) => {
      const own = lanes.filter((l) => l.agent === i);
      const known = own.filter((l) => l.busy !== null);
      const states = [];
      if (i === fleet.leader) states.push("leads");
      if (i === fleet.successor) states.push("follows");
      if (a.draining) states.push("drains");
      if (!a.lanes || own.some((l) => l.flags & flag.starting)) states.push("starts");
      if (own.some((l) => l.flags & flag.overdue)) states.push("overdue");
      if (own.some((l) => l.flags & flag.silent)) states.push("silent");
      return [agentName(a), typeName(fleet.types[a.type]), count(a.lanes),
        known.length ? percent(known.reduce((s, l) => s + l.busy, 0) / known.length) : "–",
        own.length ? milliseconds(Math.min(...own.map((l) => l.remaining ?? 0))) : "–",
        typeof a.factor === "number" ? a.factor.toFixed(2) : "–", states.join(", ")];
    });
    return table("Agents", ["agent", "type", "lanes", "busy", "free in", "factor", "state"], rows);
  }
}
