// Serves the page as an agent does, with a fixture behind it.

import { createReadStream, existsSync } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { fixtures } from "./fixtures.js";

export const web = join(dirname(fileURLToPath(import.meta.url)), "..", "web");
const kinds = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2" };
export const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
  "font-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'";

// serve starts a server on a free port of loopback. what.fixture is what it sends; what.live: beats
// go on, one each what.live ms, what.most at most; what.answer may change its answers. What it is
// asked for is in the list asked.
export async function serve(what = {}) {
  const asked = [];
  const open = new Set();
  const server = createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    asked.push(request.method + " " + url.pathname);
    response.setHeader("Content-Security-Policy", policy);
    response.setHeader("Cache-Control", "no-cache");
    const send = (value, status = 200) => {
      response.writeHead(status, { "Content-Type": "application/json" });
      response.end(JSON.stringify(value));
    };
    if (url.pathname.startsWith("/dashboard/api/")) {
      const name = url.pathname.slice("/dashboard/api/".length);
      const answer = what.answer?.(name, request, response);
      if (answer !== undefined) return answer === true ? undefined : send(answer.value, answer.status);
      if (name === "stream") return stream(request, response);
      if (name === "fleet") return send({ mode: "", held: [] }); // it rents nothing
      if (["session", "profiles", "plan", "events", "why"].includes(name)) return send(what.fixture[name]);
      return send({ error: "no such thing" }, 404);
    }
    if (url.pathname.startsWith("/v2/models/")) {
      return send({ inputs: [{ name: "ids", datatype: "INT64", shape: [-1, 4] }] });
    }
    const path = join(web, normalize(url.pathname.replace(/^\/dashboard\/?/, "/") || "/").replace(/\/$/, "/index.html"));
    if (!path.startsWith(web) || !existsSync(path)) return send({ error: "not found" }, 404);
    response.writeHead(200, { "Content-Type": kinds[extname(path)] ?? "text/plain" });
    createReadStream(path).pipe(response);
  });
  function stream(request, response) {
    const f = what.fixture;
    const after = Number(request.headers["last-event-id"] ?? -Infinity);
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const event = (name, data, id) => response.write("event: " + name + "\n" + (id ? "id: " + id + "\n" : "") + "data: " + JSON.stringify(data) + "\n\n");
    event("hello", f.hello);
    event("fleet", f.fleet);
    const [seconds, minutes] = f.histories;
    if (after === -Infinity) {
      event("history", seconds);
      event("history", minutes);
    }
    f.beats.forEach((b, i) => {
      if (i === f.afterAt) event("fleet", f.after);
      if (b.second > after) event("beat", b, b.second);
    });
    const viewer = { response, event };
    open.add(viewer);
    if (what.live) {
      const last = f.beats[f.beats.length - 1].second;
      viewer.timer = setInterval(() => {
        if (what.frozen || what.k >= what.most) return;
        what.k = (what.k ?? 0) + 1;
        const second = last + what.k;
        event("beat", { ...f.beats[what.k % f.beats.length], second }, second);
      }, what.live);
    }
    // Without beats the page would take the stream for broken; with ?still it shows no age.
    response.on("close", () => {
      clearInterval(viewer.timer);
      open.delete(viewer);
    });
  }
  await new Promise((done) => server.listen(what.port ?? 0, "127.0.0.1", done));
  return {
    address: "http://127.0.0.1:" + server.address().port + "/dashboard/",
    port: server.address().port, asked, open, what,
    close: () => new Promise((done) => {
      server.close(done);
      server.closeAllConnections();
    }),
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const s = await serve({ fixture: fixtures[process.argv[2] ?? "busy"](), live: 1000 });
  console.log(s.address);
}
