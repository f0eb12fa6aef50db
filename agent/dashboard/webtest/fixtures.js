// Fleets that exist only here: what an agent would send of them, as docs/dashboard.md has it. Each is
// simulated second by second from fixed numbers, so that it is the same at each run.

// Lines of the shipped profiles: [floor ms, ms an item].
const types = {
  "c5n.2xlarge": { price: 0.432, cores: 8, provider: "cpu", wnd: [1.6, 0.0312], dien: [1.7, 0.075], rm2: [1.1, 0.3865], ncf: [0.25, 0.0062] },
  "g4dn.xlarge": { price: 0.526, cores: 4, provider: "cuda", wnd: [2.38, 0.007], dien: [6.15, 0.0124], rm2: [2.8, 0.258], ncf: [0.59, 0.0019] },
  "r5n.large": { price: 0.149, cores: 2, provider: "cpu", wnd: [1.8, 0.0348], dien: [2.14, 0.082], rm2: [1.7, 0.4025], ncf: [0.33, 0.0065] },
  "local:intel-xeon-8375c:2": { price: 0.1, cores: 2, provider: "cpu", wnd: [1.8, 0.0348], dien: [2.14, 0.082], rm2: [1.7, 0.4025], ncf: [0.33, 0.0065] },
};
const catalogue = {
  wnd: { target_ms: 25, share: 0.5 }, ncf: { target_ms: 5, share: 0.27 },
  dien: { target_ms: 35, share: 0.17 }, rm2: { target_ms: 350, share: 0.06 },
};
const prices = { "local:intel-xeon-8375c:2": 1, "g4dn.xlarge": 2.35, "c5n.2xlarge": 1.05, "r5n.large": 1 }; // of a type's time
export const start = 1763848000; // the second of the last beat

function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export const binOf = (b) => (b <= 8 ? 0 : b > 1000 ? 43 : Math.ceil((42 * Math.log(b / 8)) / Math.log(125) - 1e-12));

// simulate returns what a fleet sends: {session, profiles, plan, events, hello, fleet, histories, beats}.
// options: pool, an object of counts by type; load, of the fluid limit; lanes an agent; late, a model
// that is; seconds, how many beats; rename, of names; idle, models that nobody asks; short: what is
// proposed does not carry the load.
export function simulate({
  pool = { "g4dn.xlarge": 3, "c5n.2xlarge": 2, "r5n.large": 12 }, load = 0.87, lanes: each = 1, late = null,
  models = Object.keys(catalogue), seconds = 61, priced = true, rename = (x) => x, families = [], special = true,
  events = true, largest = 1000, idle = [], short = false,
} = {}) {
  const rnd = random(7);
  const gauss = () => Math.sqrt(-2 * Math.log(1 - rnd())) * Math.cos(6.2832 * rnd());
  const typeNames = Object.keys(pool).sort();
  const fleet = {
    revision: 3, epoch: 12, leader: 0, successor: 1, leaderless: false, why: "",
    types: typeNames.map((name) => ({ name: rename(name), shown: rename(name).replace(/^local:.*:/, "local-2c").slice(0, name.startsWith("local:") ? 8 : 99), price: priced ? types[name].price : null, agents: pool[name] })),
    models: [], agents: [], families,
  };
  const names = [...models].sort();
  fleet.models = names.map((name) => ({
    name: rename(name), version: 1, target_ms: catalogue[name].target_ms, percentile: 0.99, largest, family: "",
    accuracy: null,
  }));
  const made = [];
  typeNames.forEach((name, type) => {
    for (let i = 0; i < pool[name]; i++) {
      const host = rename(name.startsWith("local:") ? "vm-" + (i + 1) : name.split(".")[0] + "-" + (i + 1));
      made.push({
        shown: host,
        name: name.startsWith("local:") ? host + "-3fa" + i : rename(name.split(".")[0] + "-" + (i + 1) + "-" + ((0x3fa2 + i * 7919 + type * 4211) & 0xffff).toString(16).padStart(4, "0")),
        type, address: "10.0." + type + "." + (i + 7) + ":8001", lanes: each, cores: types[name].cores, provider: types[name].provider,
        executor: "onnx", draining: false, factor: 1 + 0.025 * gauss(), software: "0.9.0",
        models: names.map((_, m) => m), price: priced ? types[name].price : null,
      });
    }
  });
  fleet.agents = made.sort((a, b) => (a.name < b.name ? -1 : 1));
  const n = fleet.agents.length;
  fleet.leader = fleet.agents.findIndex((a) => a.type === typeNames.indexOf("c5n.2xlarge"));
  if (fleet.leader < 0) fleet.leader = 0;
  fleet.successor = n > 1 ? (fleet.leader + 1) % n : -1;
  if (special && n > 10) {
    fleet.agents[n - 1].draining = true;
    fleet.agents[n - 6].factor = 1.14;
    fleet.agents.push({ ...fleet.agents.find((a) => a.type === 1), name: rename("zz-starts-0c91"), lanes: 0, factor: null, models: [] });
    fleet.types[1].agents++;
  }
  const lanes = [];
  fleet.agents.forEach((a, agent) => {
    for (let k = 0; k < a.lanes; k++) lanes.push({ agent, a, type: typeNames[a.type], typeIndex: a.type, free: 0, busy: 0, model: -1, share: load });
  });
  const time = (l, m, b) => {
    const [floor, item] = types[l.type][names[m]];
    return (floor + item * b) * l.a.factor * (late === names[m] ? 2.4 : 1);
  };
  const size = () => Math.max(1, Math.min(largest, Math.round(Math.exp(4.15 + 1.05 * gauss()))));
  const shares = names.map((m) => (idle.includes(m) ? 0 : catalogue[m].share));
  const whole = shares.reduce((a, b) => a + b, 0);
  const draw = () => {
    let u = rnd() * whole;
    let m = 0;
    while (m < names.length - 1 && u > shares[m]) u -= shares[m++];
    return m;
  };
  // How many queries a second the pool can do, by its mean time: rough, and the same each time.
  const able = lanes.filter((l) => !l.a.draining).length;
  const limit = (able * 1512) / 16 * (names.length === 4 ? 1 : 1.2);
  const target = limit * load;
  const fast = Math.min(1, 2000 / Math.max(1, target)); // of a large fleet only a sample is simulated
  const lacking = fleet.agents[1]?.shown;
  const why = late ? {
    last_seconds: 60, queries: 84000, late: 2016, sentence: "2.4 % late: 1.9 % " + lacking + " lacks CPU, 0.5 % waited for a lane",
    causes: [
      { cause: "cpu", agent: lacking, queries: 1580, mean_ms: 240, short: lacking + " lacks CPU",
        evidence: "its process was ready to run and did not for 240ms: other processes had the CPUs",
        remedy: `stop what else runs on the machine of ${lacking} (\`top\`), or give it CPUs of its own; on virtual machines look at steal` },
      { cause: "lane", queries: 420, mean_ms: 31, short: "waited for a lane", evidence: "queries waited 31ms for a lane that was free",
        remedy: "add agents, or ask for less: the fleet is at its limit" },
      { cause: "cancelled", queries: 16, short: "clients cancelled", remedy: "nothing: clients have gone" },
    ],
  } : { last_seconds: 60, queries: 0, late: 0, sentence: "", causes: [] };
  let now = 0;
  const hist = names.map(() => []);
  const sorted = [];
  const histories = [column(1), column(60)];
  const beats = [];
  function column(step) {
    return {
      step, second: [], rate: [], limit: [], allowable: [], price: [], waiting: [], waiting_late: [], answered: [], late: [], failed: [], busy: [],
      models: names.map((_, model) => ({ model, answered: [], late: [], failed: [], p50_ms: [], p99_ms: [] })),
    };
  }
  const push = (h, row) => {
    for (const k of ["second", "rate", "limit", "allowable", "price", "waiting", "waiting_late", "answered", "late", "failed", "busy"]) h[k].push(row[k]);
    row.models.forEach((m, i) => { for (const k of ["answered", "late", "failed", "p50_ms", "p99_ms"]) h.models[i][k].push(m[k]); });
  };
  const price = priced ? fleet.agents.reduce((s, a) => s + a.price, 0) : null;
  const rateAt = (s) => target * (s < -450 ? 0.81 : s < -270 ? 0.81 + (0.19 * (s + 450)) / 180 : 1) * (1 + 0.022 * Math.sin(s / 37) + 0.012 * Math.sin(s / 11));
  const first = -(load > 0 ? 600 : 0);
  const recent = [];
  const simulated = -66; // what lies before is made up around what the simulated seconds have
  const before = [];
  for (let s = Math.max(first, simulated); s <= 0; s++) {
    const second = start + s;
    const counts = names.map(() => ({ n: 0, late: 0, took: [] }));
    const heat = new Map();
    const shots = [];
    const lim = limit * (s > -338 && s < -255 ? 0.94 : 1);
    const rate = load > 0 ? rateAt(s) : 0;
    const end = now + 1000;
    for (const l of lanes) l.busy = 0;
    if (rate > 0) {
      for (;;) {
        const gap = (-Math.log(1 - rnd()) * 1000) / (rate * fast);
        if (now + gap > end) break;
        now += gap;
        const m = draw();
        const b = names[m] === "rm2" ? Math.min(700, size()) : size();
        let best = null;
        let cheapest = Infinity;
        let early = null;
        let soonest = Infinity;
        for (let tries = 0; tries < Math.min(lanes.length, 20); tries++) {
          const l = lanes.length > 20 ? lanes[Math.floor(rnd() * lanes.length)] : lanes[tries];
          if (l.a.draining) continue;
          const wait = Math.max(0, l.free - now);
          const run = time(l, m, b);
          if (wait + run < soonest) [soonest, early] = [wait + run, l];
          if (wait + run > 0.9 * catalogue[names[m]].target_ms) continue;
          const cost = run * prices[l.type] + 0.14 * wait;
          if (cost < cheapest) [cheapest, best] = [cost, l];
        }
        const l = best ?? early;
        const wait = Math.max(0, l.free - now);
        const run = time(l, m, b) * (1 + 0.035 * Math.abs(gauss()) + (rnd() < 0.016 ? 3 * rnd() : 0));
        l.free = now + wait + run;
        l.busy += run;
        l.model = m;
        const took = wait + run + 0.35 + 0.12 * rnd();
        const isLate = took > catalogue[names[m]].target_ms;
        counts[m].n++;
        counts[m].late += isLate;
        counts[m].took.push(took);
        if (s > -seconds) {
          const key = l.typeIndex + " " + m;
          if (!heat.has(key)) heat.set(key, new Map());
          heat.get(key).set(binOf(b), (heat.get(key).get(binOf(b)) ?? 0) + 1);
          if (shots.length < 60 && rnd() < 60 / (rate * fast)) shots.push([b, l.typeIndex, m, isLate ? 1 : 0]);
        }
      }
    }
    now = end;
    for (const l of lanes) l.share = 0.8 * l.share + 0.2 * Math.min(1, l.busy / 1000);
    if (fast < 1) { // of so many lanes most get no query of the sample
      for (const l of lanes) {
        l.share = Math.min(1, Math.max(0.02, 0.97 * (l.share > 0.1 ? l.share : load) + 0.05 * gauss()));
        if (rnd() > l.share) continue;
        l.model = draw();
        l.free = now + time(l, l.model, size()) * rnd();
      }
    }
    recent.push(counts);
    if (recent.length > 60) recent.shift();
    const perModel = counts.map((c, m) => {
      hist[m].push(c.took);
      if (hist[m].length > 15) hist[m].shift();
      if (s % 5 === 0 || !sorted[m]) sorted[m] = Float64Array.from(hist[m].flat()).sort();
      const all = sorted[m];
      const at = (p) => (all.length ? all[Math.min(all.length - 1, Math.floor(p * all.length))] : null);
      const sum = recent.reduce((a, r) => [a[0] + r[m].n, a[1] + r[m].late], [0, 0]);
      return {
        model: m, rate: c.n ? round(recent.slice(-10).reduce((a, r) => a + r[m].n, 0) / Math.min(10, recent.length)) : 0,
        answered: c.n, late: c.late, failed: 0, within: sum[0] ? round(1 - sum[1] / sum[0], 4) : null, p50_ms: round(at(0.5)), p99_ms: round(at(0.99)),
      };
    });
    const answered = counts.reduce((a, c) => a + c.n, 0) / fast;
    const lateCount = counts.reduce((a, c) => a + c.late, 0) / fast;
    const window = recent.reduce((a, r) => [a[0] + r.reduce((x, c) => x + c.n, 0), a[1] + r.reduce((x, c) => x + c.late, 0)], [0, 0]);
    const queued = lanes.reduce((a, l) => a + Math.max(0, Math.round((l.free - now) / 9) - 1), 0);
    const row = {
      second, rate: round(rate), limit: load > 0 ? round(lim) : null, allowable: load > 0 ? round(0.953 * lim) : null, price, waiting: queued,
      waiting_late: 0, answered: Math.round(answered), late: Math.round(lateCount), failed: 0,
      busy: round(lanes.reduce((a, l) => a + l.share, 0) / lanes.length), models: perModel,
    };
    before.push(row);
    if (s > -seconds) {
      beats.push({
        ...row, fleet: fleet.revision, epoch: fleet.epoch, leaderless: false, approximate: false,
        within: window[0] ? round(1 - window[1] / window[0], 4) : null,
        ...(late ? { why: why.sentence } : {}),
        lanes: {
          remaining_ms: lanes.map((l) => round(Math.max(0, l.free - now))), busy: lanes.map((l) => round(l.share, 2)),
          model: lanes.map((l) => l.model),
          flags: lanes.map((l) => (l.a.draining ? 4 : 0) | (l.a.factor > 1.1 ? 2 : 0)),
        },
        heat: [...heat].map(([key, bins]) => ({ type: Number(key.split(" ")[0]), model: Number(key.split(" ")[1]), bins: [...bins].sort((a, b) => a[0] - b[0]) })),
        shots, shot_weight: Math.max(1, Math.round(rate / 60)),
      });
    }
  }
  if (load > 0) {
    const steady = before.slice(20);
    const mean = (f) => steady.reduce((a, r) => a + f(r), 0) / steady.length;
    const typical = names.map((_, m) => ({
      answered: mean((r) => r.models[m].answered), late: mean((r) => r.models[m].late),
      p50: mean((r) => r.models[m].p50_ms ?? 0), p99: mean((r) => r.models[m].p99_ms ?? 0),
    }));
    let wander = names.map(() => 0);
    for (let s = first; s < -seconds + 1; s++) {
      const rate = rateAt(s);
      wander = wander.map((w) => 0.9 * w + 0.045 * gauss());
      push(histories[0], {
        second: start + s, rate: round(rate), limit: round(limit * (s > -338 && s < -255 ? 0.94 : 1)), allowable: round(0.953 * limit), price, waiting: 4,
        waiting_late: 0, answered: Math.round(rate), late: Math.round(Math.max(0, mean((r) => r.late) * (1 + 0.8 * gauss()))), failed: 0,
        busy: round(mean((r) => r.busy)),
        models: typical.map((t, m) => ({
          answered: Math.round((t.answered * rate) / target), late: Math.round(t.late), failed: 0,
          p50_ms: round(t.p50 * (1 + 0.3 * wander[m])), p99_ms: round(t.p99 * (0.97 + wander[m])),
        })),
      });
    }
  }
  if (load > 0) { // the day before, in minutes
    const day = column(60);
    const from = start - (start % 60) - 86400;
    const shape = (i) => 0.55 + 0.3 * Math.sin((i / 1440) * 6.2832 - 2.3) + 0.03 * Math.sin(i / 7);
    for (let i = 0; from + 60 * i < start - 60; i++) {
      const r = limit * Math.min(0.95, shape(i));
      const grown = i > 900 ? 1 : 0.88;
      push(day, {
        second: from + 60 * i, rate: round(Math.min(r, 0.94 * limit * grown)), limit: round(limit * grown), allowable: round(0.95 * limit * grown), price, waiting: 4,
        waiting_late: 0, answered: Math.round(60 * r), late: Math.round(0.06 * r), failed: 0, busy: round(r / limit),
        models: names.map((m, model) => ({ model, answered: Math.round(60 * r * shares[model]), late: 1, failed: 0, p50_ms: catalogue[m].target_ms * 0.2, p99_ms: catalogue[m].target_ms * 0.7 })),
      });
    }
    histories[1] = day;
  }
  const profiles = {
    models: names.map((m, model) => ({
      model, name: fleet.models[model].name, version: 1, target_ms: catalogue[m].target_ms,
      types: typeNames.map((t, k) => {
        const [floor, item] = types[t][m];
        const sizes = [1, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1000];
        const bend = [1.06, 0.94, 1.03][k % 3] * (late === m ? 2.4 : 1);
        const mean = sizes.map((b) => round((floor + item * b) * bend * (1 + 0.02 * Math.sin(b / 120 + k)), 4));
        const shipped = sizes.map((b) => round(floor + item * b, 4));
        const most = (v) => { let best = 0; for (let b = 1; b <= 1000; b++) if (between(sizes, v, b) <= catalogue[m].target_ms) best = b; return best; };
        const one = (source, v, wide) => ({ source, batch: sizes, mean_ms: v, p99_ms: v.map((x) => round(x * wide + 0.2, 4)), largest_in_time: most(v) });
        return { type: rename(t), provider: types[t].provider, cores: types[t].cores, agent: "", learned: load > 0 ? one("learned", mean, 1.13) : null, shipped: one("measured", shipped, 1.1) };
      }),
    })),
  };
  const instances = (counts) => Object.entries(counts).filter(([, c]) => c > 0).map(([type, count]) => ({ type: rename(type), count, price: priced ? types[type].price : null }));
  const sum = (counts) => (priced ? round(instances(counts).reduce((a, t) => a + t.count * t.price, 0)) : instances(counts).reduce((a, t) => a + t.count, 0));
  const other = { ...pool, "c5n.2xlarge": 0, "r5n.large": (pool["r5n.large"] ?? 0) + 3 };
  const change = priced && (n > 10 || short) && pool["c5n.2xlarge"] > 0 && !late; // a fleet that is late is made no smaller
  const plan = load > 0 && n > 1 ? {
    number: 3, state: change ? "proposed" : "in force", age_ms: 41000, trigger: "demand", priced, rate: round(target), change, gain: 0.1,
    reason: change ? "2 c5n.2xlarge run what 3 r5n.large run for half of the price"
      : late ? `94.96 % of the queries for ${late}/1 were in time in the last minute, of 99 % wanted: nothing that serves less than what runs is proposed`
        : "What runs is the cheapest mix for this demand.", notes: [],
    now: { instances: instances(pool), price: sum(pool), limit: round(limit), allowable: round(0.953 * limit), binding: "time on r5n.large" },
    proposed: change ? { instances: instances(other), price: sum(other), limit: round(1.03 * limit), allowable: round((short ? 0.7 : 0.98) * limit), binding: "time on r5n.large" } : null,
    approximate: true,
    more: ["r5n.large", "c5n.2xlarge", "g4dn.xlarge", "local:intel-xeon-8375c:2"].filter((t) => pool[t]).map((t) => ({ type: rename(t), rate: { "r5n.large": 74, "c5n.2xlarge": 103, "g4dn.xlarge": 91, "local:intel-xeon-8375c:2": 74 }[t], price: priced ? types[t].price : null })),
  } : { number: 0, reason: "The leader plans when it knows what is asked." };
  const leads = fleet.agents[fleet.leader].name;
  const happened = (ago, kind, what, sentence, details = {}) => ({
    time: new Date((start - ago) * 1000).toISOString(), agent: leads, sequence: 600 - ago, kind, what, sentence, who: "", from: "", details,
  });
  return {
    session: { agent: fleet.agents[Math.min(1, n - 1)].name, software: "0.9.0", build: "fixture", in: true, name: "", login: false, login_refused: "", may: { events: true, plan: true } },
    hello: { agent: fleet.agents[Math.min(1, n - 1)].name, software: "0.9.0", build: "fixture" },
    fleet, histories, beats, profiles, plan, why,
    events: events ? { events: [
      happened(482, "leader", "leading the fleet", `${leads} leads the fleet in epoch 12`, { epoch: "12" }),
      happened(338, "failed", "agent failed", `${rename("r5n-13-9b0c")} at 10.0.2.19:8001 failed: it no longer answers`, { agent: rename("r5n-13-9b0c") }),
      happened(255, "joined", "agent joined", `${rename("r5n-13-77de")} joined the fleet at 10.0.2.20:8001`, { agent: rename("r5n-13-77de") }),
      happened(130, "loaded", "model ready", `${rename("wnd")}: version 1 was loaded in 210 ms`, { model: rename("wnd"), version: "1" }),
      happened(34, "drain", "asked to have another agent drain", `admin (certificate) at 10.0.2.7:50412 asked ${fleet.agents[n - 1].name} to drain`, { agent: fleet.agents[n - 1].name }),
    ] } : { events: [] },
  };
}

function between(x, y, at) {
  let i = x.findIndex((v) => v >= at);
  if (i < 0) i = x.length - 1;
  i = Math.max(1, i);
  return y[i - 1] + ((y[i] - y[i - 1]) * (at - x[i - 1])) / (x[i] - x[i - 1]);
}

const round = (x, digits = 1) => (x === null ? null : Math.round(x * 10 ** digits) / 10 ** digits);

// leaderless turns the last n beats into those of a fleet without a leader.
function leaderless(f, n = 6) {
  f.beats = f.beats.map((b, i) => (i < f.beats.length - n ? b : {
    ...b, leaderless: true, rate: null, limit: null, allowable: null, within: null, busy: null, models: [], heat: [], shots: [],
    answered: null, late: null, failed: null,
    lanes: { ...b.lanes, busy: b.lanes.busy.map(() => null), model: b.lanes.model.map(() => -1), flags: b.lanes.flags.map(() => 0) },
  }));
  f.after = { ...f.fleet, revision: f.fleet.revision + 1, leader: -1, successor: -1, leaderless: true, why: "no leader is elected" };
  f.afterAt = f.beats.length - n;
  return f;
}

const long = "a-model-whose-name-somebody-has-made-much-longer-than-anybody-will-ever-want-to-read-it";

// fixtures are by name; each is made when asked for.
export const fixtures = {
  busy: () => simulate(),
  noleader: () => leaderless(simulate()),
  empty: () => simulate({ load: 0, events: false, special: false, pool: { "g4dn.xlarge": 1, "r5n.large": 2 } }),
  two: () => simulate({ pool: { "local:intel-xeon-8375c:2": 2 }, load: 0.3, models: ["ncf", "wnd"], idle: ["wnd"], special: false, priced: false, largest: 256 }),
  nine: () => simulate({ pool: { "g4dn.xlarge": 2, "c5n.2xlarge": 1, "r5n.large": 6 }, load: 0.8, special: false, short: true }),
  one: () => simulate({ pool: { "r5n.large": 1 }, load: 0.4, models: ["wnd"], largest: 256, special: false }),
  thousand: () => simulate({ pool: { "g4dn.xlarge": 180, "c5n.2xlarge": 120, "r5n.large": 700 }, special: false }),
  long: () => {
    const f = simulate({ rename: (x) => (x === "wnd" ? long : x === "c5n.2xlarge" ? "u7inh-32tb.480xlarge-of-nobody" : x.startsWith("c5n") ? x + "-<img src=x onerror=alert(1)>-ip-10-0-0-1-in-a-zone-far-away" : x) });
    return f;
  },
  late: () => simulate({ late: "dien", load: 0.95 }),
  model: () => ({ ...simulate({ late: "dien", load: 0.95 }), hash: "#model/dien/1" }),
  noprice: () => simulate({ priced: false }),
  families: () => {
    const f = simulate();
    Object.assign(f.fleet.models[1], { family: "ranking", accuracy: 0.741 });
    Object.assign(f.fleet.models[3], { family: "ranking", accuracy: 0.768 });
    f.fleet.families = [{ name: "ranking", models: [1, 3] }];
    f.fleet.agents.forEach((a, i) => { if (a.lanes) a.models = a.type === 1 ? [0, 2, 3] : i % 3 ? [0, 1, 2, 3] : [0, 1, 2]; });
    return f;
  },
};
