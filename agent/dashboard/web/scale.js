// Where a number lies in a picture. All functions are pure.

// ticks are the round numbers from 0 to max: at most n above 0, in steps of 1, 2 or 5 times a power of
// ten. Of nothing it is 0 alone.
export function ticks(max, n = 4) {
  if (!(max > 0) || !Number.isFinite(max)) return [0];
  let power = 10 ** Math.floor(Math.log10(max / (n + 1)));
  let step = power;
  for (let digit = 0; Math.floor(max / step + 1e-9) > n; digit++) {
    if (digit === 3) {
      digit = 0;
      power *= 10;
    }
    step = [1, 2, 5][digit] * power;
  }
  const all = [];
  for (let i = 0; i * step <= max * (1 + 1e-9); i++) all.push(i * step);
  return all;
}

// Bins divides batch sizes: edges[i] is the largest size of bin i.
export class Bins {
  constructor(edges) {
    this.edges = edges;
  }

  get count() { return this.edges.length; }

  // of is the bin of a batch size; sizes beyond the last edge are in the last bin.
  of(size) {
    let low = 0;
    let high = this.edges.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (size <= this.edges[middle]) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // first is the least size of a bin.
  first(bin) { return bin === 0 ? 1 : this.edges[bin - 1] + 1; }

  // place is where a size lies between 0 and 1, each bin being equally wide, and sizes within a bin
  // lying logarithmically.
  place(size) {
    const bin = this.of(size);
    const low = this.first(bin);
    const high = this.edges[bin] + 1;
    const within = Math.log(Math.min(Math.max(size, low), high) / low) / Math.log(high / low);
    return (bin + Math.min(1, within)) / this.count;
  }

  // label writes the sizes of a bin.
  label(bin) {
    const low = this.first(bin);
    const high = this.edges[bin];
    return low === high ? String(low) : low + " to " + high;
  }
}

// height is how full a tile is: the time, in ms, until its lane is free, on a log scale from 1 ms to
// most. A lane that is not free has at least 0.06.
export function height(remaining, most) {
  if (!(remaining > 0)) return 0;
  return Math.max(0.06, Math.min(1, Math.log1p(remaining) / Math.log1p(most)));
}

// tileSize is the largest of the sizes with which groups of tiles fit into a height, and the last
// size if none does. Each group is a row of its own, with as many lines as it needs.
export function tileSize(groups, width, room, sizes, gap, between) {
  for (const size of sizes) {
    const columns = Math.max(1, Math.floor((width + gap) / (size + gap)));
    let needed = between * Math.max(0, groups.length - 1);
    for (const n of groups) {
      const lines = Math.ceil(n / columns);
      needed += Math.max(size, lines * (size + gap) - gap);
    }
    if (needed <= room) return size;
  }
  return sizes[sizes.length - 1];
}

// mapHeight is the least height in px of the map of so many types, and of the tiles beside it: of one
// type the map says little, and needs little room.
export function mapHeight(types) {
  return Math.max(types < 2 ? 240 : types < 3 ? 310 : 380, 110 + types * 34);
}

// binsOf are the columns of batch sizes that a fleet's beats count, and the column of each of their
// 44 bins. Bin 0 is 1 to 8, bins 1 to 42 divide 8 to 1000 logarithmically, bin 43 is above 1000; -1 is
// a bin that holds no whole number, or none that the models take.
export function binsOf(largest) {
  const edges = [8];
  const column = [0];
  for (let bin = 1; bin <= 42; bin++) {
    const edge = bin === 42 ? 1000 : Math.floor(8 * 125 ** (bin / 42) + 1e-9);
    const empty = edge === edges[edges.length - 1] || edges[edges.length - 1] >= Math.max(16, largest);
    column.push(empty ? -1 : edges.length);
    if (!empty) edges.push(edge);
  }
  column.push(largest > 1000 ? edges.length : -1);
  if (largest > 1000) edges.push(largest);
  return { bins: new Bins(edges), column };
}
