// What has happened, told once: every agent has seen it, and each says so by itself. All functions are
// pure.

// kinds are those of docs/fleet.md: how an event looks, and how long after it others may still tell
// of the same, in seconds.
const kinds = {
  started: ["good", 10], joined: ["good", 10], ready: ["good", 10], left: ["quiet", 15], failed: ["error", 15],
  replaced: ["warning", 15], silent: ["warning", 15], answers: ["good", 15], leader: ["leader", Infinity],
  draining: ["quiet", 10], drained: ["quiet", 10], loaded: ["model", 60], unloaded: ["quiet", 60],
  slow: ["warning", 60], broken: ["error", 60], returned: ["good", 60], lane: ["warning", 1], demand: ["plan", 1],
  load: ["model", 5], unload: ["quiet", 5], drain: ["quiet", 5], keys: ["model", 5], refused: ["warning", 1], files: ["quiet", 5],
};
const newcomer = 10; // seconds after its start in which an agent hears of those who were there before

// about is what an event is about: an agent, a leader's epoch, a version of a model; "": itself.
function about(e) {
  const d = e.details;
  if (e.kind === "leader") return d.epoch ? "epoch " + d.epoch : "";
  if (["joined", "left", "failed", "replaced", "silent", "answers", "drain"].includes(e.kind)) return d.agent ?? d.name ?? "";
  if (["started", "ready", "draining", "drained"].includes(e.kind)) return e.agent;
  if (d.model) return d.version ? d.model + "/" + d.version : d.model;
  return "";
}

// story makes of events, the latest first, what the page lists, the latest first:
// {key, at, time, kind, look, title, details}.
export function story(events) {
  const started = new Map(); // when each agent has
  for (const e of events) if (e.kind === "started") started.set(e.agent, e.at);
  const groups = new Map();
  const all = [];
  for (const e of [...events].reverse()) {
    const since = e.at - (started.get(e.agent) ?? -Infinity);
    if (e.kind === "joined" && since >= 0 && since < newcomer) continue;
    const subject = about(e);
    // Who starts joins; others say so, too.
    const kind = e.kind === "started" ? "joined" : e.kind;
    const key = kind + " " + subject + (subject ? "" : " " + e.agent + " " + e.what);
    const [look, within] = kinds[e.kind] ?? ["other", 0];
    let g = groups.get(key);
    if (!g || e.at - g.last > within) {
      g = { key: key + " " + e.time, at: e.at, time: e.time, kind: e.kind, look, subject, first: e, by: new Set() };
      groups.set(key, g);
      all.push(g);
    }
    g.last = e.at;
    g.by.add(e.agent);
    // Who leads says it best, and others who followed at once may have said it first.
    if (e.kind === "leader" && /^leading/.test(e.what)) g.first = e;
    if (e.kind === "joined") Object.assign(g, { kind: e.kind, first: e });
  }
  return all.reverse().map((g) => ({ ...g, title: g.first.sentence, details: details(g) }));
}

// details says which agents an event is of, where its sentence does not.
function details({ kind, first, by }) {
  const agents = by.size === 1 ? [...by][0] : by.size + " agents";
  if (["loaded", "unloaded", "slow", "broken", "returned"].includes(kind)) return "on " + agents;
  if (["failed", "silent", "answers", "left"].includes(kind)) return "seen by " + agents;
  if (["lane", "demand", "target", "refused", "files"].includes(kind)) return "at " + first.agent;
  return "";
}
