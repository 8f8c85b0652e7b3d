// A capture on the axis: what the server has of it, and how much later it stands than in its own time.

import { Tiles } from "./tiles.js";

const NAMES = ["rank", "bin_start_ns", "active_ns", "computing_ns", "overlapped_ns",
  "exposed_communication_ns", "free_ns"];

export class Side {
  /** `told` has place, name, extent, ranks, steps and silent ranks; `arrived` gets the stretch of
   * the axis of what came, in ns. */
  constructor(told, base, more, arrived) {
    this.shift = 0;
    this.arrived = arrived;
    this.tiles = new Tiles(base, told.place, told.extent, more,
      (from, to) => arrived(from + this.shift, to + this.shift));
    this.overview = null;
    this.tell(told, more);
  }

  tell(told, more) {
    const { name, extent, ranks, steps, silent, place, version } = told;
    Object.assign(this, { name, extent, ranks, steps, silent });
    this.is = JSON.stringify([place, version]);
    this.tiles.more = more;
  }

  async askOverview() {
    const table = await this.tiles.arrow("overview", { columns: 1000 });
    if (!table) return;
    const width = Number(table.schema.metadata?.get("width_ns") ?? 0);
    const [rank, start, active, computing, masked, exposed, free] = NAMES.map((one) =>
      table.getChild(one).toArray());
    const cells = new Map();
    for (let at = 0; at < table.numRows; at++) {
      if (!cells.has(rank[at])) {
        cells.set(rank[at], {
          start: [], active: [], computing: [], masked: [], exposed: [], free: [],
        });
      }
      const one = cells.get(rank[at]);
      one.start.push(start[at]);
      one.active.push(active[at]);
      one.computing.push(computing[at] ?? 0);
      one.masked.push(masked[at] ?? 0);
      one.exposed.push(exposed[at] ?? 0);
      one.free.push(free[at] ?? 0);
    }
    this.overview = { width, cells };
    this.arrived(-Infinity, Infinity);
  }

  /** Tracks and tiles of strips of this capture, for a view of the axis. */
  ask(strips, pins, level, view, towards) {
    const wanted = { device: new Set(), overlap: new Set(), host: new Set(), curves: new Set(),
      path: new Set(), whatif: new Set() };
    for (const strip of strips) {
      if (strip.type === "rank" && strip.isOpen) wanted.device.add(strip.rank);
      else if (strip.type === "rank" && this.hasFew) wanted.overlap.add(strip.rank);
      else if (strip.type === "fold" && strip.isOpen) wanted[strip.part].add(strip.rank);
      else if (strip.part && strip.track) wanted[strip.part].add(strip.rank);
    }
    for (const pin of pins) wanted[pin.part]?.add(pin.rank);
    for (const [part, ranks] of Object.entries(wanted)) {
      if (!ranks.size) continue;
      const listed = [...ranks].sort((a, b) => a - b);
      this.tiles.askTracks(part === "overlap" ? "device" : part, listed);
      const isKnown = (rank) => rank >= 0 || this.tiles.tracksOf(part, rank)?.length;
      if (!listed.every(isKnown)) continue;
      this.tiles.ask(part, listed, level, view.start - this.shift, view.end - this.shift, towards);
    }
  }

  /** Whether tiles of a strip are there, of a level. */
  has(strip, level, view) {
    const part = strip.type !== "rank" ? strip.part : strip.isOpen ? "device" : "overlap";
    const isNeeded = strip.track || strip.isOpen || (strip.type === "rank" && this.hasFew);
    if (!isNeeded) return true;
    const tracks = this.tiles.tracksOf(part === "overlap" ? "device" : part, strip.rank);
    if (!tracks) return false;
    if (!tracks.length) return true;
    const length = 2048 * 2 ** level;
    const [start, end] = [view.start - this.shift, view.end - this.shift];
    for (let at = Math.floor(start / length); at * length < end; at++) {
      if (!this.tiles.tiles.has(`${part}:${strip.rank}:${level}:${at}`)) return false;
    }
    return true;
  }

  /** Of few ranks even those that are folded are drawn from tiles. */
  get hasFew() {
    return this.ranks.length <= 16;
  }

  /** From where a step begins, in its own time; of none where all begins. */
  startOf(step) {
    return this.steps.find((one) => one.step === step)?.start ?? 0;
  }
}
