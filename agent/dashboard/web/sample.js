// The command that the page offers to copy while nobody sends queries. All functions are pure.

const largest = 64; // values of a query that is written out

// quoted is a word as a shell takes it: names come from the fleet, and the line goes into a terminal.
export const quoted = (word) => (/^[\w.,:/@%+=-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'");

// infer is the command that sends a query of random values.
export function infer(model, server) {
  return "muster infer " + quoted(model) + (server ? " --server " + quoted(server) : "");
}

// curl sends a query to a model with the inputs of its metadata; null if that would be too long.
export function curl(origin, model, inputs) {
  const of = (shape) => shape.reduce((n, d) => n * (d > 0 ? d : 1), 1);
  if (!inputs?.length || inputs.some((i) => i.datatype === "BYTES") ||
    inputs.reduce((n, i) => n + of(i.shape), 0) > largest) return null;
  const body = JSON.stringify({
    inputs: inputs.map((i) => ({
      name: i.name, datatype: i.datatype, shape: i.shape.map((d) => (d > 0 ? d : 1)),
      data: new Array(of(i.shape)).fill(i.datatype === "BOOL" ? true : 1),
    })),
  });
  return "curl " + quoted(origin + "/v2/models/" + encodeURIComponent(model) + "/infer") + " -d " + quoted(body);
}
