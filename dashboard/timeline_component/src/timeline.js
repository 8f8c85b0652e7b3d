// The timeline itself: what is in sight, how it is drawn, and what gestures change.

import { drawStrips, eventAt } from "./draw.js";
import { ROW, pinOf, strips } from "./layout.js";
import { Tiles, levelOf } from "./tiles.js";

const CHUNK = 256; // px of a picture that is drawn once
const GUTTER = 150;
const LEAST_NS = 50; // no window is shorter
const SETTLED_MS = 30;
const EAGER_MS = 150;
const BUDGET_MS = 7; // of a frame, for pictures that are missing
const MAP_ROW = [3, 12];

export class Timeline {
  constructor(parts, data, told) {
    this.parts = parts; // map, ruler, canvas
    this.told = told; // called with what others are to know
    this.view = { start: 0, end: 1 };
    this.state = { open: new Set(), pins: [], marks: [] };
    this.scrollTop = 0;
    this.chunks = new Map();
    this.scale = 0;
    this.scaledAt = 0;
    this.selection = null;
    this.details = null;
    this.measure = null;
    this.hover = null;
    this.searched = "";
    this.past = [];
    this.moves = new Set();
    this.isDirty = true;
    this.setData(data);
    this.loop = (now) => {
      this.frame(now);
      this.request = requestAnimationFrame(this.loop);
    };
    this.request = requestAnimationFrame(this.loop);
  }

  close() {
    cancelAnimationFrame(this.request);
    clearTimeout(this.settling);
  }

  setData(data) {
    const isOther = !this.data || data.version !== this.data.version
      || JSON.stringify(data.place) !== JSON.stringify(this.data.place);
    const more = { change: data.change, lang: data.lang };
    const isAsked = JSON.stringify(data.window) !== JSON.stringify(this.data?.window);
    this.data = data;
    if (isOther) {
      this.tiles = new Tiles(data.base, data.place, data.extent, more,
        (from, to) => this.arrived(from, to));
      this.overview = null;
      this.askOverview();
      this.chunks.clear();
    }
    this.tiles.more = more;
    if (isOther || isAsked) {
      const [start, end] = data.window ?? [0, data.extent];
      this.view = { start, end };
    }
    this.scene = () => ({
      tiles: this.tiles, colours: this.data.colours, overview: this.overview,
      searched: this.searched, hasTiles: this.data.ranks.length <= 16,
    });
    this.lay();
  }

  async askOverview() {
    const table = await this.tiles.arrow("overview", { columns: 1000 });
    if (!table) return;
    const width = Number(table.schema.metadata?.get("width_ns") ?? 0);
    const names = ["rank", "bin_start_ns", "active_ns", "computing_ns", "overlapped_ns",
      "exposed_communication_ns", "free_ns"];
    const [rank, start, active, computing, masked, exposed, free] = names.map((one) =>
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
    this.map = null;
    this.arrived(-Infinity, Infinity);
  }

  // ---- what is in sight -------------------------------------------------------------------

  get width() {
    return Math.max(this.parts.canvas.clientWidth - GUTTER, 50);
  }

  get height() {
    return this.parts.canvas.clientHeight;
  }

  get nsPerPx() {
    return (this.view.end - this.view.start) / this.width;
  }

  x(ns) {
    return GUTTER + (ns - this.view.start) / this.nsPerPx;
  }

  ns(x) {
    return this.view.start + (x - GUTTER) * this.nsPerPx;
  }

  /** Strips anew, after something was folded, pinned, or arrived. */
  lay() {
    const ranks = this.data.ranks;
    const replayed = this.data.change ? ["path", "whatif"] : ["path"];
    const made = strips(this.state, this.tiles, ranks, replayed);
    this.strips = made.strips;
    this.total = made.height;
    this.scrollTop = Math.max(0, Math.min(this.scrollTop, this.total - this.height));
    this.chunks.clear();
    this.isDirty = true;
    this.settle();
  }

  /** Strips that can be seen. */
  visible() {
    return this.strips.filter(
      (one) => one.y < this.scrollTop + this.height && one.y + one.height > this.scrollTop,
    );
  }

  look(start, end, isKept = true) {
    const extent = this.data.extent;
    let length = Math.max(end - start, LEAST_NS);
    length = Math.min(length, extent * 1.1);
    const least = -0.05 * extent;
    const most = 1.05 * extent;
    start = Math.min(Math.max(start, least), most - length);
    if (isKept && (!this.past.length || performance.now() - this.scaledAt > 700)) {
      this.past.push({ ...this.view });
      this.past.splice(0, this.past.length - 100);
    }
    const isPanned = Math.abs(length - (this.view.end - this.view.start)) < 1e-6 * length;
    this.towards = isPanned ? Math.sign(start - this.view.start) : 0;
    this.view = { start, end: start + length };
    this.scaledAt = performance.now();
    this.isDirty = true;
    // The first of some gestures asks at once, the last when it is known to be that.
    if (this.scaledAt - (this.askedAt ?? 0) > EAGER_MS) {
      this.askedAt = this.scaledAt;
      this.askShown();
    }
    this.settle();
  }

  zoom(factor, at = (this.view.start + this.view.end) / 2) {
    const { start, end } = this.view;
    this.look(at - (at - start) * factor, at + (end - at) * factor);
  }

  pan(px) {
    const by = px * this.nsPerPx;
    this.look(this.view.start + by, this.view.end + by);
  }

  back() {
    const before = this.past.pop();
    if (before) this.look(before.start, before.end, false);
  }

  scroll(px) {
    const before = this.scrollTop;
    this.scrollTop = Math.max(0, Math.min(this.scrollTop + px, this.total - this.height));
    if (this.scrollTop === before) return;
    this.chunks.clear();
    this.isDirty = true;
    this.settle();
  }

  toggle(fold) {
    if (!this.state.open.delete(fold)) this.state.open.add(fold);
    this.lay();
  }

  pin(strip) {
    const name = pinOf(strip);
    const at = this.state.pins.indexOf(name);
    if (at >= 0) this.state.pins.splice(at, 1);
    else this.state.pins.push(name);
    this.lay();
  }

  settle() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.askShown();
      this.told.settled();
    }, SETTLED_MS);
  }

  /** Tracks and tiles of all that is in sight. */
  askShown() {
    const level = levelOf(this.nsPerPx);
    const wanted = { device: new Set(), overlap: new Set(), host: new Set(), curves: new Set(),
      path: new Set(), whatif: new Set() };
    const few = this.data.ranks.length <= 16;
    for (const strip of this.visible()) {
      if (strip.type === "rank" && strip.isOpen) wanted.device.add(strip.rank);
      else if (strip.type === "rank" && few) wanted.overlap.add(strip.rank);
      else if (strip.type === "fold" && strip.isOpen) wanted[strip.part].add(strip.rank);
      else if (strip.part && strip.track) wanted[strip.part].add(strip.rank);
    }
    for (const pin of this.state.pins) {
      const [rank, part] = pin.split(":");
      wanted[part]?.add(Number(rank));
    }
    for (const [part, ranks] of Object.entries(wanted)) {
      if (!ranks.size) continue;
      const listed = [...ranks].sort((a, b) => a - b);
      this.tiles.askTracks(part === "overlap" ? "device" : part, listed);
      if (!listed.every((rank) => rank >= 0 || this.tiles.tracksOf(part, rank)?.length)) continue;
      this.tiles.ask(part, listed, level, this.view.start, this.view.end, this.towards);
    }
  }

  arrived(from, to) {
    if (from === -Infinity) {
      this.lay();
      return;
    }
    for (const [index, chunk] of this.chunks) {
      if (chunk.from < to && chunk.to > from) chunk.isOld = true;
    }
    this.isDirty = true;
  }

  /** Whether all that is in sight is drawn from tiles of its own level. */
  isSettled() {
    if (this.scale !== this.nsPerPx || !this.chunks.size) return false;
    const level = levelOf(this.nsPerPx);
    const length = 2048 * 2 ** level;
    for (const strip of this.visible()) {
      const part = strip.type !== "rank" ? strip.part : strip.isOpen ? "device" : "overlap";
      const isNeeded = strip.track || strip.isOpen
        || (strip.type === "rank" && this.data.ranks.length <= 16);
      if (!isNeeded) continue;
      const tracks = this.tiles.tracksOf(part === "overlap" ? "device" : part, strip.rank);
      if (!tracks) return false;
      if (!tracks.length) continue;
      for (let at = Math.floor(this.view.start / length); at * length < this.view.end; at++) {
        if (!this.tiles.tiles.has(`${part}:${strip.rank}:${level}:${at}`)) return false;
      }
    }
    return [...this.chunks.values()].every((chunk) =>
      !chunk.isOld || chunk.to <= this.view.start || chunk.from >= this.view.end);
  }

  // ---- pictures ---------------------------------------------------------------------------

  frame(now) {
    this.keep(now);
    const { canvas, map, ruler } = this.parts;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const one of [canvas, map, ruler]) {
      const [width, height] = [one.clientWidth * ratio, one.clientHeight * ratio];
      if (one.width !== Math.round(width) || one.height !== Math.round(height)) {
        [one.width, one.height] = [Math.round(width), Math.round(height)];
        this.chunks.clear();
        this.map = null;
        this.isDirty = true;
      }
    }
    if (!this.isDirty || !canvas.width) return;
    this.isDirty = false;
    this.ratio = ratio;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, this.height);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, this.width, this.height);
    context.clip();
    this.drawChunks(context, now);
    this.told.overlay(context, this);
    context.restore();
    this.drawLabels(context);
    this.drawRuler(ruler.getContext("2d"), ratio);
    this.drawMap(map.getContext("2d"), ratio);
  }

  drawChunks(context, now) {
    const scale = this.nsPerPx;
    const isMoving = scale !== this.scale && now - this.scaledAt < SETTLED_MS && this.chunks.size;
    if (isMoving) {
      // Until the scale stands, what was drawn is stretched.
      for (const chunk of this.chunks.values()) this.blit(context, chunk);
      this.isDirty = true;
      return;
    }
    if (scale !== this.scale) {
      this.before = this.chunks;
      this.chunks = new Map();
      this.scale = scale;
    }
    const began = performance.now();
    const [first, last] = [this.view.start, this.view.end].map((ns) => Math.floor(ns / scale / CHUNK));
    let isWhole = true;
    for (let index = first; index <= last; index++) {
      const chunk = this.chunks.get(index);
      const isLate = performance.now() - began > BUDGET_MS;
      if (!chunk || chunk.isOld) {
        if (isLate && (chunk || this.before)) {
          isWhole = false;
          if (!chunk) for (const one of this.before.values()) this.blit(context, one, index);
        } else this.chunks.set(index, this.drawChunk(index, scale, chunk));
      }
      const drawn = this.chunks.get(index);
      if (drawn) this.blit(context, drawn);
    }
    if (isWhole) {
      this.before = null;
      // One more on either side while there is time, so that panning meets it ready.
      for (const index of [last + 1, first - 1]) {
        if (performance.now() - began > BUDGET_MS / 2) break;
        if (!this.chunks.has(index)) this.chunks.set(index, this.drawChunk(index, scale));
      }
    } else this.isDirty = true;
    for (const index of this.chunks.keys()) {
      if (index < first - 8 || index > last + 8) this.chunks.delete(index);
    }
  }

  drawChunk(index, scale, before) {
    const canvas = before?.canvas ?? document.createElement("canvas");
    canvas.width = CHUNK * this.ratio;
    canvas.height = this.height * this.ratio;
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const from = index * CHUNK * scale;
    const to = from + CHUNK * scale;
    const [top, height] = [this.scrollTop, this.height];
    drawStrips(context, this.strips, top, height, from, to, scale, this.scene());
    return { canvas, from, to, isOld: false };
  }

  blit(context, chunk, only = null) {
    const left = this.x(chunk.from);
    const width = (chunk.to - chunk.from) / this.nsPerPx;
    if (left > GUTTER + this.width || left + width < GUTTER || width < 0.01) return;
    if (only !== null) {
      const begin = only * CHUNK * this.scale;
      if (chunk.to < begin || chunk.from > begin + CHUNK * this.scale) return;
    }
    const isSame = Math.abs(width - CHUNK) < 1e-6;
    const x = isSame ? Math.round(left * this.ratio) / this.ratio : left;
    context.drawImage(chunk.canvas, x, 0, isSame ? CHUNK : width, this.height);
  }

  drawLabels(context) {
    const { colours } = this.data;
    context.font = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colours.background;
    context.fillRect(0, 0, GUTTER, this.height);
    for (const strip of this.visible()) {
      const top = strip.y - this.scrollTop;
      const told = this.told.label(strip);
      const isHead = strip.type === "rank" || strip.type === "fold";
      context.fillStyle = strip.type === "rank" ? colours.head : colours.background;
      context.fillRect(0, top, GUTTER, strip.height - 1);
      context.fillStyle = isHead ? colours.text : colours.soft;
      if (strip.type === "rank") context.font = "600 12px system-ui, 'Noto Sans CJK SC', sans-serif";
      const indent = strip.type === "rank" ? 6 : strip.type === "fold" ? 16 : 28;
      const sign = isHead ? (strip.isOpen ? "▾ " : "▸ ") : "";
      const middle = top + Math.min(strip.height - 1, ROW) / 2 + 1;
      context.fillText(fitted(`${sign}${told}`, GUTTER - indent - 4), indent, middle);
      context.font = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
      if (strip.isPinned) context.fillText("★", 8, middle);
    }
    context.fillStyle = colours.line;
    context.fillRect(GUTTER - 1, 0, 1, this.height);
  }

  drawRuler(context, ratio) {
    const { ruler } = this.parts;
    const { colours } = this.data;
    const height = ruler.clientHeight;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, ruler.clientWidth, height);
    context.font = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
    context.textBaseline = "middle";
    const step = roundUp(this.nsPerPx * 110);
    context.fillStyle = colours.soft;
    for (let at = Math.ceil(this.view.start / step) * step; at < this.view.end; at += step) {
      const x = this.x(at);
      context.fillRect(x, height - 6, 1, 6);
      context.fillText(instant(at, step), x + 4, height / 2);
    }
    context.fillStyle = colours.background;
    context.fillRect(0, 0, GUTTER, height);
    context.fillStyle = colours.text;
    const length = this.view.end - this.view.start;
    context.fillText(span(length), 6, height / 2);
    if (this.cursor !== undefined) {
      context.fillStyle = colours.text;
      context.fillRect(this.x(this.cursor), 0, 1, height);
    }
  }

  drawMap(context, ratio) {
    const { map } = this.parts;
    const { colours } = this.data;
    const [width, height] = [map.clientWidth - GUTTER, map.clientHeight];
    const perPx = this.data.extent / width;
    if (!this.map && this.overview) this.map = this.drawOverview(width, height, ratio, perPx);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, map.clientWidth, height);
    if (this.map) context.drawImage(this.map, GUTTER, 0, width, height);
    const left = GUTTER + this.view.start / perPx;
    const right = Math.max(GUTTER + this.view.end / perPx, left + 2);
    context.fillStyle = colours.veil;
    context.fillRect(GUTTER, 0, Math.max(left - GUTTER, 0), height);
    context.fillRect(right, 0, Math.max(GUTTER + width - right, 0), height);
    context.strokeStyle = colours.accent;
    context.lineWidth = 2;
    context.strokeRect(left, 1, right - left, height - 2);
    context.fillStyle = colours.text;
    context.font = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
    context.textBaseline = "middle";
    context.fillText(this.told.mapLabel(), 6, height / 2);
    if (this.cursor !== undefined) context.fillRect(GUTTER + this.cursor / perPx, 0, 1, height);
  }

  drawOverview(width, height, ratio, perPx) {
    const canvas = document.createElement("canvas");
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const ranks = this.data.ranks;
    const row = height / ranks.length;
    const [column, colour] = this.told.share();
    context.fillStyle = colour;
    ranks.forEach((rank, place) => {
      const cells = this.overview.cells.get(rank);
      if (!cells) {
        context.globalAlpha = 1;
        context.fillStyle = this.data.colours.head;
        context.fillRect(0, place * row, width, Math.max(row - 0.5, 0.5));
        context.fillStyle = colour;
        return;
      }
      for (let at = 0; at < cells.start.length; at++) {
        const share = cells[column][at] / cells.active[at];
        context.globalAlpha = Math.max(0.04, Math.min(share, 1));
        const x = Math.max(cells.start[at], 0) / perPx;
        const wide = Math.min(this.overview.width, cells.active[at]) / perPx;
        context.fillRect(x, place * row, Math.max(wide, 0.5), Math.max(row - (row > 3 ? 1 : 0), 0.5));
      }
    });
    return canvas;
  }

  mapHeight() {
    const each = Math.max(MAP_ROW[0], Math.min(MAP_ROW[1], 90 / this.data.ranks.length));
    return Math.max(28, Math.min(96, Math.round(each * this.data.ranks.length)));
  }

  // ---- gestures that go on while a key is held --------------------------------------------

  keep(now) {
    const passed = Math.min(now - (this.kept ?? now), 50);
    this.kept = now;
    if (!this.moves.size) return;
    const by = (passed / 1000) * this.width * 1.2;
    if (this.moves.has("a")) this.pan(-by);
    if (this.moves.has("d")) this.pan(by);
    const at = this.cursor ?? (this.view.start + this.view.end) / 2;
    if (this.moves.has("w")) this.zoom(Math.pow(0.25, passed / 400), at);
    if (this.moves.has("s")) this.zoom(Math.pow(4, passed / 400), at);
  }

  /** The strip and event below a point of the canvas. */
  at(x, y) {
    const strip = this.visible().find(
      (one) => y + this.scrollTop >= one.y && y + this.scrollTop < one.y + one.height,
    );
    if (!strip || x < GUTTER) return { strip: strip ?? null, event: null };
    if (strip.type !== "track") return { strip, event: null };
    const row = Math.floor((y + this.scrollTop - strip.y) / ROW);
    return { strip, event: eventAt(strip, row, this.ns(x), this.nsPerPx, this.scene()) };
  }
}

export { GUTTER };

function fitted(text, px) {
  const letters = Math.floor(px / 6);
  return text.length <= letters ? text : `${text.slice(0, letters - 1)}…`;
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value);
}

const UNITS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];

/** A length of time for people. */
export function span(ns) {
  const [unit, size] = UNITS.find(([, one]) => Math.abs(ns) >= one) ?? UNITS[3];
  return `${(ns / size).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
}

function instant(ns, step) {
  const [unit, size] = UNITS.find(([, one]) => step >= one) ?? UNITS[3];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size)));
  return `${(ns / size).toLocaleString("en", { maximumFractionDigits: digits })} ${unit}`;
}
