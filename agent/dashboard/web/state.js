// What the page knows: the fleet, the last beat, and the rows of the past. It folds in what the
// stream says, and draws nothing.

const numbers = ["rate", "limit", "allowable", "price", "waiting", "waiting_late", "answered", "late",
  "failed", "busy"];
const modelNumbers = ["answered", "late", "failed", "p50_ms", "p99_ms"];

export const modelKey = (m) => m.name + "/" + m.version;

// A Series is rows of numbers by second, with those of each model, in columns. Rows that are missing
// between two seconds are one row of nulls, so that no line joins what was not measured.
export class Series {
  constructor(step, most) {
    this.step = step;
    this.most = most;
    this.clear();
  }

  clear() {
    this.second = [];
    this.columns = Object.fromEntries(numbers.map((n) => [n, []]));
    this.models = new Map(); // by key
  }

  // cut drops the rows from a second on.
  cut(second) {
    const at = this.second.findIndex((s) => s >= second);
    if (at >= 0) this.each((column) => column.splice(at));
  }

  get length() { return this.second.length; }

  get last() { return this.second.length ? this.second[this.second.length - 1] : -Infinity; }

  model(key) {
    let m = this.models.get(key);
    if (!m) {
      m = Object.fromEntries(modelNumbers.map((n) => [n, new Array(this.length).fill(null)]));
      this.models.set(key, m);
    }
    return m;
  }

  // add appends a row, with the rows of models by key. A row that is not newer than the last is left
  // out: a beat may come twice.
  add(second, row, models) {
    if (!Number.isFinite(second) || second <= this.last) return false;
    if (this.length && second > this.last + this.step) this.append(this.last + this.step, {}, []);
    this.append(second, row, models);
    const over = this.length - this.most;
    if (over > 0) this.each((column) => column.splice(0, over));
    return true;
  }

  // put is add, but a row of the last second replaces it: a minute has more to say when it is over.
  put(second, row, models) {
    if (second === this.last) this.each((column) => column.pop());
    return this.add(second, row, models);
  }

  append(second, row, models) {
    for (const [key] of models) this.model(key);
    this.second.push(second);
    for (const n of numbers) this.columns[n].push(row[n] ?? null);
    for (const m of this.models.values()) for (const n of modelNumbers) m[n].push(null);
    for (const [key, values] of models) {
      const m = this.models.get(key);
      for (const n of modelNumbers) m[n][this.length - 1] = values[n] ?? null;
    }
  }

  each(f) {
    f(this.second);
    for (const n of numbers) f(this.columns[n]);
    for (const [key, m] of this.models) {
      for (const n of modelNumbers) f(m[n]);
      if (m.answered.every((x) => x === null)) this.models.delete(key);
    }
  }

  // load appends the rows of a history event that are newer than what is there. The last minute that is
  // there may not have been over.
  load(history, keys) {
    history.second.forEach((second, i) => {
      const models = (history.models || []).filter((m) => keys[m.model] !== undefined)
        .map((m) => [keys[m.model], Object.fromEntries(modelNumbers.map((n) => [n, m[n]?.[i] ?? null]))]);
      const row = Object.fromEntries(numbers.map((n) => [n, history[n]?.[i] ?? null]));
      if (this.step > 1) this.put(second, row, models);
      else this.add(second, row, models);
    });
  }
}

// minuteOf is the row that the leader keeps of the minute from a second on, by the rows of its seconds:
// [second, row, models]. It is null if there are none.
function minuteOf(seconds, start) {
  const at = [];
  for (let i = seconds.length - 1; i >= 0 && seconds.second[i] >= start; i--) {
    if (seconds.second[i] < start + 60) at.push(i);
  }
  if (!at.length) return null;
  const of = picks(at);
  const models = [...seconds.models].filter(([, m]) => at.some((i) => m.answered[i] !== null)).map(([key, m]) => [key, {
    answered: total(of(m.answered)), late: total(of(m.late)), failed: total(of(m.failed)),
    p50_ms: most(of(m.p50_ms)), p99_ms: most(of(m.p99_ms)),
  }]);
  return [start, joined(seconds, at), models];
}

// picks returns the known numbers of a column at some places.
const picks = (at) => (column) => at.map((i) => column[i]).filter((x) => typeof x === "number");

// joined is the rows at some places of a series as one.
function joined(series, at) {
  const of = picks(at);
  const row = {};
  for (const n of ["answered", "late", "failed"]) row[n] = total(of(series.columns[n]));
  for (const n of ["rate", "limit", "allowable", "price", "busy"]) row[n] = mean(of(series.columns[n]));
  for (const n of ["waiting", "waiting_late"]) row[n] = most(of(series.columns[n]));
  return row;
}

// coarser is what a series has from a second on in rows of so many seconds, the latest first: each its
// first second and its numbers. Rows of which nothing is known are left out.
export function coarser(series, seconds, from) {
  const places = new Map(); // by first second
  for (let i = series.length - 1; i >= 0; i--) {
    const start = series.second[i] - (series.second[i] % seconds);
    if (start < from) break;
    if (!places.has(start)) places.set(start, []);
    places.get(start).push(i);
  }
  return [...places].map(([start, at]) => ({ second: start, ...joined(series, at) })).filter((row) => row.rate !== null);
}

const total = (all) => all.reduce((a, b) => a + b, 0);
const mean = (all) => (all.length ? total(all) / all.length : null);
const most = (all) => (all.length ? Math.max(...all) : null);

// A Window sums the heat of the last minute, by type, model and bin.
export class Window {
  constructor(seconds = 60) {
    this.seconds = seconds;
    this.beats = [];
    this.sums = new Map(); // by type and model: counts by bin
  }

  add(second, heat) { // heat: [type name, model key, [[bin, count], …]]
    this.beats.push({ second, heat });
    for (const h of heat) this.count(h, 1);
    while (this.beats.length && this.beats[0].second <= second - this.seconds) {
      for (const h of this.beats.shift().heat) this.count(h, -1);
    }
  }

  count([type, model, bins], sign) {
    const key = type + "\u0000" + model;
    let sums = this.sums.get(key);
    if (!sums) {
      sums = { type, model, bins: new Float64Array(44), total: 0 };
      this.sums.set(key, sums);
    }
    for (const [bin, n] of bins) {
      if (bin < 0 || bin > 43) continue;
      sums.bins[bin] += sign * n;
      sums.total += sign * n;
    }
    if (sums.total <= 0) this.sums.delete(key);
  }

  // span is how many seconds the sums are of.
  get span() {
    return this.beats.length ? Math.min(this.seconds,
      this.beats[this.beats.length - 1].second - this.beats[0].second + 1) : 0;
  }
}

const mostEvents = 600; // as agents tell them; of each other they tell the same

export class State {
  constructor() {
    this.hello = null;
    this.fleet = null; // the last fleet event
    this.beat = null;
    this.seconds = new Series(1, 600);
    this.minutes = new Series(60, 1440);
    this.minute = null; // when that of the last beat began
    this.heat = new Window();
    this.events = []; // by time, the latest first
    this.eventsTaken = 0; // how often there were new ones
    this.seen = new Set(); // of events
    this.largest = 0;
    this.earlier = 0; // beats in a row that were not newer than the last
  }

  // forget drops what is from a second on, for time is counted anew from there.
  forget(second) {
    this.seconds.cut(second);
    this.minutes.cut(second - (second % 60));
    this.minute = null;
    this.heat = new Window();
    this.beat = null;
  }

  // take folds in an event of the stream, and returns whether it changed anything.
  take(name, data) {
    if (name === "hello") this.hello = data;
    else if (name === "fleet") this.takeFleet(data);
    else if (name === "history") this.takeHistory(data);
    else if (name === "beat") return this.takeBeat(data);
    else return false;
    return true;
  }

  takeFleet(fleet) {
    this.fleet = {
      revision: 0, epoch: 0, leader: -1, successor: -1, leaderless: false, why: "", ...fleet,
      types: fleet.types ?? [], models: fleet.models ?? [], agents: fleet.agents ?? [],
      families: fleet.families ?? [],
    };
    this.keys = this.fleet.models.map(modelKey);
    this.largest = Math.max(0, ...this.fleet.models.map((m) => m.largest ?? 0));
    this.owners = []; // of lanes: the index of the agent
    this.fleet.agents.forEach((a, i) => {
      for (let k = 0; k < a.lanes; k++) this.owners.push(i);
    });
  }

  takeHistory(history) {
    if (!this.fleet) return;
    const series = history.step === 60 ? this.minutes : this.seconds;
    series.load({ ...history, second: history.second ?? [] }, this.keys);
  }

  takeBeat(beat) {
    if (!this.fleet) return false;
    if (beat.second <= this.lastSecond) {
      // It came twice; or those who count now have an earlier clock.
      if (++this.earlier < 5) return false;
      this.forget(beat.second);
    }
    this.earlier = 0;
    const models = (beat.models ?? []).filter((m) => this.keys[m.model] !== undefined)
      .map((m) => [this.keys[m.model], m]);
    this.beat = { ...beat, models: beat.models ?? [], shots: beat.shots ?? [], heat: beat.heat ?? [] };
    this.seconds.add(beat.second, beat, models);
    const start = beat.second - (beat.second % 60);
    const ended = this.minute !== null && this.minute < start ? minuteOf(this.seconds, this.minute) : null;
    if (ended) this.minutes.put(...ended);
    this.minute = start;
    this.heat.add(beat.second, this.beat.heat
      .filter((h) => this.fleet.types[h.type] && this.keys[h.model] !== undefined)
      .map((h) => [this.fleet.types[h.type].name, this.keys[h.model], h.bins ?? []]));
    if (beat.events) this.takeEvents(beat.events);
    return true;
  }

  get lastSecond() { return this.beat ? this.beat.second : -Infinity; }

  takeEvents(events) {
    for (const e of events) {
      const key = e.agent + " " + e.sequence + " " + e.time;
      if (this.seen.has(key)) continue;
      this.seen.add(key);
      this.events.push({ ...e, key, at: Date.parse(e.time) / 1000, details: e.details ?? {} });
    }
    this.eventsTaken++;
    this.events.sort((a, b) => b.at - a.at || b.sequence - a.sequence || (a.key < b.key ? 1 : -1));
    for (const e of this.events.splice(mostEvents)) this.seen.delete(e.key);
  }

  // lanes are the fleet's lanes, as of the last beat.
  lanes() {
    const l = this.beat?.lanes;
    return (this.owners ?? []).map((agent, i) => ({
      agent, index: i,
      remaining: l?.remaining_ms?.[i] ?? null,
      busy: l?.busy?.[i] ?? null,
      model: l?.model?.[i] ?? -1,
      flags: l?.flags?.[i] ?? 0,
    }));
  }

  // models are the models of the last beat with what the fleet says of them; late ones first, then
  // those with most queries.
  models() {
    const now = new Map((this.beat?.models ?? []).map((m) => [m.model, m]));
    return this.fleet.models.map((m, i) => {
      const b = now.get(i) ?? {};
      const late = typeof b.within === "number" && b.within < m.percentile;
      return { ...m, ...b, index: i, key: this.keys[i], late, rate: b.rate ?? 0 };
    }).sort((a, b) => b.late - a.late || (b.rate > 0) - (a.rate > 0) || a.index - b.index);
  }
}

// flags of lanes
export const flag = { overdue: 1, slow: 2, draining: 4, starting: 8, silent: 16 };

// agentName and typeName are the names by which people know an agent and a type of instances.
export const agentName = (a) => a?.shown || a?.name || "";
export const typeName = (t) => t?.shown || t?.name || "";

// title is a model's name, with its version if the fleet has several of it.
export function title(model, models) {
  return models.some((m) => m.name === model.name && m.version !== model.version)
    ? model.name + "/" + model.version : model.name;
}

// sentence says in one number and one line how the fleet is: {number, words, level}.
export function sentence(state) {
  const { fleet, beat } = state;
  if (!fleet || !beat) return { number: "–", words: "nothing heard yet", level: "" };
  if (beat.leaderless) {
    return { number: "No leader", words: "Gateways decide alone; rates are not known.", level: "warn", long: true };
  }
  const late = state.models().filter((m) => m.late);
  const lateness = late.length === 0 ? "" : late.length <= 2
    ? late.map((m) => title(m, fleet.models)).join(" and ") + (late.length === 1 ? " is late" : " are late")
    : late.length + " models are late";
  if (!(beat.rate > 0) && beat.within === null) {
    return { number: "Ready", words: "Nobody has asked for anything in the last minute.", level: "", long: true, idle: true };
  }
  if (!(beat.limit > 0)) {
    return { number: null, words: lateness ? "but " + lateness : "what the fleet can do is not known yet", level: lateness ? "bad" : "" };
  }
  const share = beat.rate / beat.limit;
  const level = share >= 0.97 || lateness ? "bad" : share >= 0.92 ? "warn" : "";
  const room = share >= 0.92 ? ": little room left" : "";
  const join = share >= 0.92 && lateness ? "; " : lateness ? ", but " : share >= 0.92 ? ", yet " : ", and ";
  return {
    number: Math.round(100 * share) + " %", share, level,
    words: "of what this fleet can do" + room + join + (lateness || "every model is on time"),
  };
}
