// How numbers are written. All functions are pure, and say "–" of what is not known.

const unknown = "–";
const known = (x) => typeof x === "number" && Number.isFinite(x);

// count writes a number of things or a rate: 1,299; 12.4k; 3.1M.
export function count(x) {
  if (!known(x)) return unknown;
  const a = Math.abs(x);
  if (a >= 999.95e6) return short(x / 1e9) + "G";
  if (a >= 999.95e3) return short(x / 1e6) + "M";
  if (a >= 99999.5) return short(x / 1e3) + "k";
  if (a >= 99.5 || Number.isInteger(x)) return Math.round(x).toLocaleString("en-US");
  return a >= 9.95 ? x.toFixed(0) : x.toFixed(1);
}

const short = (x) => (Math.abs(x) >= 99.95 ? x.toFixed(0) : x.toFixed(1));

// axis writes a number beside an axis: shorter than count.
export function axis(x) {
  return known(x) && Math.abs(x) >= 10000 && Math.abs(x) < 999950 ? +(x / 1000).toFixed(1) + "k" : count(x);
}

// inTime writes the share of a model's queries that was answered in time, and that it is too small,
// where it is: the share of a late model is not one that was late.
export function inTime(share, late) {
  return late ? "late: " + percent(share, 2) + " in time" : percent(share, 2);
}

// percent writes a share: 0.998 is 99.8 %. It never rounds up to 100 %, nor down to 0 %.
export function percent(x, digits = 0) {
  if (!known(x)) return unknown;
  const unit = 10 ** -digits;
  let p = x * 100;
  if (p < 100 && p > 100 - unit) p = 100 - unit;
  if (p > 0 && p < unit / 2) return "< " + unit.toFixed(digits) + " %";
  return p.toFixed(digits) + " %";
}

// wanted writes a share that somebody has chosen, with the digits that it has: 99 %, 99.9 %.
export function wanted(x) {
  return known(x) ? +(x * 100).toFixed(4) + " %" : unknown;
}

// milliseconds writes a duration in ms: 0.42 ms, 3.9 ms, 287 ms, 1.2 s.
export function milliseconds(x) {
  if (!known(x)) return unknown;
  if (x >= 9999.5) return (x / 1000).toFixed(0) + " s";
  if (x >= 999.5) return (x / 1000).toFixed(1) + " s";
  return (x >= 9.95 ? x.toFixed(0) : x >= 0.995 ? x.toFixed(1) : x.toFixed(2)) + " ms";
}

// target writes a duration that somebody has chosen: 5 ms, not 5.0 ms.
export function target(x) {
  return milliseconds(x).replace(/\.0+ /, " ");
}

// dollars writes a price: $0.149, $4.76, $1,204.
export function dollars(x) {
  if (!known(x)) return unknown;
  const a = Math.abs(x);
  const digits = a >= 999.5 ? 0 : a === 0 || a >= 0.995 ? 2 : 3;
  const text = a.toLocaleString("en-US",
    { minimumFractionDigits: Math.min(2, digits), maximumFractionDigits: digits });
  return (x < 0 ? "−$" : "$") + text;
}

// span writes a number of seconds as people say it: 0:37, 8:05, 2 h 10 min, 3 days.
export function span(seconds) {
  if (!known(seconds)) return unknown;
  const s = Math.max(0, Math.floor(seconds));
  if (s < 3600) return Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0");
  const minutes = Math.floor(s / 60);
  if (s < 86400) return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
  const days = Math.floor(s / 86400);
  return days + (days === 1 ? " day" : " days");
}

// signed writes a difference with its sign.
export function signed(x, write = count) {
  if (!known(x)) return unknown;
  return x < 0 ? "−" + write(-x) : "+" + write(x);
}

// list joins names: a, b and c.
export function list(names) {
  if (names.length < 2) return names.join("");
  return names.slice(0, -1).join(", ") + " and " + names[names.length - 1];
}

// things writes a number with its noun: 1 lane, 3 lanes, 2 queries.
export function things(n, noun, several = noun + "s") {
  return count(n) + " " + (n === 1 ? noun : several);
}

// ending is a name in so many letters: its end, where it is longer, as names of machines differ there.
export function ending(name, letters) {
  return name.length <= letters ? name : "…" + name.slice(name.length - Math.max(1, letters - 1));
}
