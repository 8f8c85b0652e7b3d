// What the server has of the timeline, asked for once and kept: tracks, tiles, details.

import { tableFromIPC } from "@uwdata/flechette";

export const BUCKETS = 2048;
const MOST_TILES = 600; // kept, of one rank and part each
const MOST_RANKS = 16; // of one request, as the server allows

const MOST_LEVEL = 50;
const ROWS_OF_BUCKET = 2; // those too short to be seen, as one, and one that begins there
const REACHING_IN = 4; // of tiles in sight

/** What a picture may take: more would not be drawn within a frame. */
export const MOST_RECTANGLES = 200_000;

/** The level whose bucket is at most one pixel; of a view so wide and high that its rectangles could
 * be more than MOST_RECTANGLES, the next at which they cannot. */
export function levelOf(nsPerPx, width, lanes) {
  let level = Math.max(0, Math.min(MOST_LEVEL, Math.floor(Math.log2(Math.max(nsPerPx, 1)))));
  const most = (of) =>
    lanes * (ROWS_OF_BUCKET * Math.ceil((width * nsPerPx) / 2 ** of + 1) + REACHING_IN);
  while (level < MOST_LEVEL && most(level) > MOST_RECTANGLES) level++;
  return level;
}

export class Tiles {
  /** `arrived(from, to)` is called with the stretch of time of what came, in ns. */
  constructor(base, place, extent, more, arrived) {
    this.base = base;
    this.place = place;
    this.extent = extent;
    this.more = more; // what else is told of what a replay is asked: change and language
    this.reasons = new Map(); // part -> why there is nothing
    this.arrived = arrived;
    this.tracks = new Map(); // part:rank -> tracks
    this.tiles = new Map(); // part:rank:level:index -> Map of track -> columns
    this.asked = new Set();
    this.broken = false;
  }

  url(answer, params) {
    const isReplayed = answer === "slack" || params.part === "path" || params.part === "whatif";
    const more = isReplayed ? this.more : {};
    const query = new URLSearchParams({ ...this.place, ...more, ...params });
    return `${this.base}/${answer}?${query}`;
  }

  async json(answer, params) {
    const response = await fetch(this.url(answer, params));
    if (!response.ok) return null;
    return response.json();
  }

  async arrow(answer, params) {
    const response = await fetch(this.url(answer, params));
    if (!response.ok) return null;
    return tableFromIPC(await response.arrayBuffer(), { useBigInt: false });
  }

  /** Tracks of a rank; null while they are on their way. */
  tracksOf(part, rank) {
    return this.tracks.get(`${part}:${rank}`) ?? null;
  }

  /** Ask for the tracks of ranks that are not there yet. */
  async askTracks(part, ranks) {
    const missing = ranks.filter((rank) => !this.asked.has(`${part}:${rank}`));
    missing.forEach((rank) => this.asked.add(`${part}:${rank}`));
    for (let at = 0; at < missing.length; at += MOST_RANKS) {
      const some = missing.slice(at, at + MOST_RANKS);
      const told = await this.json("tracks", { part, ranks: some.join(".") });
      if (told === null) {
        this.broken = true;
        some.forEach((rank) => this.asked.delete(`${part}:${rank}`));
      } else {
        for (const rank of some) {
          this.tracks.set(`${part}:${rank}`, told[rank].tracks);
          if (told[rank].reason) this.reasons.set(part, told[rank].reason);
        }
      }
      this.arrived(-Infinity, Infinity);
    }
  }

  /** Ask for tiles of ranks between two instants, and for one more on the side that the window
   * moves to (1: later, -1: earlier, 0: none). */
  ask(part, ranks, level, from, to, towards = 0) {
    const length = BUCKETS * 2 ** level;
    const first = Math.floor(from / length);
    const last = Math.floor(to / length);
    const order = [];
    for (let index = first; index <= last; index++) order.push(index);
    if (towards > 0) order.push(last + 1);
    if (towards < 0) order.push(first - 1);
    for (const index of order) {
      const isInside = (index + 1) * length > 0 && index * length < this.extent;
      const missing = ranks.filter((rank) => !this.asked.has(`${part}:${rank}:${level}:${index}`));
      if (!isInside) {
        for (const rank of missing) this.#keep(`${part}:${rank}:${level}:${index}`, new Map());
      } else {
        for (let at = 0; at < missing.length; at += MOST_RANKS) {
          this.#fetch(part, missing.slice(at, at + MOST_RANKS), level, index, length);
        }
      }
    }
  }

  #keep(key, tile) {
    this.asked.add(key);
    this.tiles.set(key, tile);
  }

  async #fetch(part, ranks, level, index, length) {
    const keys = ranks.map((rank) => `${part}:${rank}:${level}:${index}`);
    keys.forEach((key) => this.asked.add(key));
    const table = await this.arrow("tile", { part, ranks: ranks.join("."), level, index });
    if (table === null) {
      keys.forEach((key) => this.asked.delete(key));
      this.broken = true;
      return;
    }
    this.broken = false;
    const made = part === "curves" ? curves(table) : events(table);
    ranks.forEach((rank, at) => this.tiles.set(keys[at], made.get(rank) ?? new Map()));
    while (this.tiles.size > MOST_TILES) {
      const oldest = this.tiles.keys().next().value;
      this.tiles.delete(oldest);
      this.asked.delete(oldest);
    }
    this.arrived(index * length, (index + 1) * length);
  }

  /** Tiles that show a rank between two instants: of the level where they are there, else of the
   * next coarser one. Each with the stretch of time that is to be drawn of it. */
  *shown(part, rank, level, from, to) {
    const length = BUCKETS * 2 ** level;
    for (let index = Math.floor(from / length); index * length < to; index++) {
      const low = Math.max(from, index * length);
      const high = Math.min(to, (index + 1) * length);
      for (let above = 0; above < 12; above++) {
        const key = `${part}:${rank}:${level + above}:${Math.floor(index / 2 ** above)}`;
        const tile = this.tiles.get(key);
        if (tile) {
          yield { tile, low, high, level: level + above };
          break;
        }
      }
    }
  }
}

/** rank -> track -> columns, those of a row together and in order of start. */
function events(table) {
  const columns = ["rank", "track", "row", "start_ns", "dur_ns", "count", "name", "class"];
  const [rank, track, row, start, dur, count, name, cls] = columns.map((one) =>
    table.getChild(one).toArray(),
  );
  const found = new Map();
  for (let first = 0; first < rank.length; ) {
    let end = first;
    let isOrdered = true;
    const [r, t] = [rank[first], track[first]];
    while (end < rank.length && rank[end] === r && track[end] === t) {
      isOrdered &&= end === first || start[end] >= start[end - 1];
      end++;
    }
    // Rows of a track follow each other, each in order: sorting merges what is in order already.
    const order = isOrdered ? null
      : Array.from({ length: end - first }, (_, at) => first + at)
        .sort((a, b) => start[a] - start[b]);
    const pick = (column) => (order ? column.slice(first, end).map((_, at) => column[order[at]])
      : column.slice(first, end));
    const one = {
      row: pick(row), start: pick(start), dur: pick(dur), count: pick(count), cls: pick(cls),
      name: pick(name),
    };
    one.longest = one.dur.reduce((most, value) => Math.max(most, value), 0);
    if (!found.has(r)) found.set(r, new Map());
    found.get(r).set(t, one);
    first = end;
  }
  return found;
}

function curves(table) {
  const columns = ["rank", "track", "at_ns", "value", "high"];
  const [rank, track, at, value, high] = columns.map((one) => table.getChild(one).toArray());
  const found = new Map();
  for (let n = 0; n < table.numRows; n++) {
    if (!found.has(rank[n])) found.set(rank[n], new Map());
    const mine = found.get(rank[n]);
    if (!mine.has(track[n])) mine.set(track[n], { at: [], value: [], high: [] });
    const one = mine.get(track[n]);
    one.at.push(at[n]);
    one.value.push(value[n]);
    one.high.push(high[n]);
  }
  return found;
}

/** The first position whose value is not below. */
export function lowerBound(values, wanted) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
