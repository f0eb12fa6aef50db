// The stream of beats: server-sent events, read by fetch, because that shows the status of an answer
// that is no stream, and lets the page say the last second that it has.

// A Parser takes the stream's text in pieces of any size, and tells each event.
export class Parser {
  constructor(tell) {
    this.tell = tell;
    this.rest = "";
    this.fields = { event: "message", data: [], id: undefined };
  }

  push(text) {
    const all = this.rest + text;
    const half = all.endsWith("\r") ? 1 : 0; // of a line's end, perhaps
    const lines = all.slice(0, all.length - half).split(/\r\n|\n|\r/);
    this.rest = lines.pop() + all.slice(all.length - half);
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === "") {
      const { event, data, id } = this.fields;
      this.fields = { event: "message", data: [], id: undefined };
      if (data.length) this.tell(event, data.join("\n"), id);
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.fields.data.push(value);
    else if (name === "event") this.fields.event = value;
    else if (name === "id") this.fields.id = value;
  }
}

// patience is how long to wait before attempt n, from 0 on, in ms: at once, then 1, 2, 4, 8, 15 s.
export function patience(n) {
  return n === 0 ? 250 : Math.min(15000, 1000 * 2 ** (n - 1));
}

// silence is how long, in ms, a stream may say nothing before the page opens another. Beats come
// each second, also without a leader.
export const silence = 6000;

// A Stream keeps a stream open. tell is called with each event's name and value; changed with
// "connecting", "live", "lost" or "login", and a text.
export class Stream {
  constructor({ url, tell, changed, fetch, timers = globalThis }) {
    Object.assign(this, { url, tell, changed, fetch, timers });
    this.id = undefined;
    this.attempt = 0;
    this.running = null; // of the request that is open
  }

  start() {
    if (this.running || this.timer) return;
    this.open();
  }

  // stop ends the stream; start opens it again from the last second that came.
  stop() {
    this.timers.clearTimeout(this.timer);
    this.timer = null;
    this.running?.abort();
    this.running = null;
  }

  async open() {
    const abort = new AbortController();
    this.running = abort;
    this.timer = null;
    let reason = "the agent has ended the stream";
    let least = 0;
    this.watch(abort);
    try {
      const headers = { Accept: "text/event-stream" };
      if (this.id !== undefined) headers["Last-Event-ID"] = this.id;
      const answer = await this.fetch(this.url,
        { headers, signal: abort.signal, cache: "no-store", credentials: "same-origin" });
      if (answer.status === 401) {
        if (this.running === abort) {
          this.stop();
          this.changed("login", await said(answer));
        }
        return;
      }
      if (!answer.ok) {
        least = 1000 * (Number(answer.headers.get("Retry-After")) || 0);
        throw new Error(await said(answer));
      }
      await this.read(answer.body.getReader(), abort);
    } catch (e) {
      reason = abort.silent ? "nothing came for " + silence / 1000 + " s"
        : e instanceof TypeError ? "the agent does not answer" : e.message;
    } finally {
      this.timers.clearTimeout(abort.watch);
    }
    if (this.running !== abort) return; // stopped
    this.running = null;
    this.changed("lost", reason);
    this.timer = this.timers.setTimeout(() => this.open(), Math.max(least, patience(this.attempt++)));
  }

  async read(reader, abort) {
    const decoder = new TextDecoder();
    const parser = new Parser((event, data, id) => {
      if (this.running !== abort) return;
      let value;
      try {
        value = JSON.parse(data);
      } catch {
        return; // an event that is not whole
      }
      if (event === "beat") {
        this.attempt = 0;
        this.changed("live", "");
      }
      if (id !== undefined) this.id = id;
      this.tell(event, value);
    });
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.running !== abort) return;
      this.watch(abort);
      parser.push(decoder.decode(value, { stream: true }));
    }
  }

  // watch ends the request if nothing comes.
  watch(abort) {
    this.timers.clearTimeout(abort.watch);
    abort.watch = this.timers.setTimeout(() => {
      abort.silent = true;
      abort.abort();
    }, silence);
  }
}

// said is what an answer says is wrong.
export async function said(answer) {
  const text = await answer.text().catch(() => "");
  try {
    return JSON.parse(text).error || answer.statusText;
  } catch {
    return text.trim().slice(0, 200) || answer.statusText || "status " + answer.status;
  }
}
