// Pictures of stretches of time: columns of pixels that stay as they are while the window moves.

import { lowerBound } from "./tiles.js";
import { ROW } from "./layout.js";

const LETTER = 6.1; // px of the font below, about
const FONT = "11px system-ui, 'Noto Sans CJK SC', sans-serif";
const LEAST_LABEL = 22;

/** Black or white, whichever is read on a colour. */
export function inkOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111111" : "#ffffff";
}

/** The colours of a track's events, by their class. */
export function palette(track, colours) {
  if (track.kind === "overlap") return colours.states;
  if (track.kind === "stream") return colours.classes;
  if (track.kind === "host") return colours.host;
  if (track.kind === "path") return colours.path;
  if (track.kind === "whatif") return colours.whatif;
  return [colours.groups[track.group] ?? colours.groups.unknown];
}

/** Draw strips between two instants onto a canvas whose left edge is `from`; `sceneOf` a strip tells
 * its capture's tiles and their level, and how much later that stands on the axis than in its own
 * time. Tells how many rectangles of events that took. */
export function drawStrips(context, strips, scrollTop, height, shownFrom, shownTo, nsPerPx, sceneOf) {
  let drawn = 0;
  context.font = FONT;
  context.textBaseline = "middle";
  for (const strip of strips) {
    const top = strip.y - scrollTop;
    if (top > height || top + strip.height < 0) continue;
    if (strip.type === "capture") {
      context.fillStyle = sceneOf(strip).colours.head;
      context.fillRect(0, top, (shownTo - shownFrom) / nsPerPx, strip.height - 1);
      continue;
    }
    const scene = sceneOf(strip);
    const [from, to] = [shownFrom - scene.shift, shownTo - scene.shift];
    const draw = { track: drawTrack, curve: drawCurve, rank: drawRank }[strip.type];
    drawn += draw?.(context, strip, top, from, to, nsPerPx, scene) ?? 0;
  }
  return drawn;
}

function drawTrack(context, strip, top, from, to, nsPerPx, scene) {
  const fills = palette(strip.track, scene.colours);
  const isOverlap = strip.track.kind === "overlap";
  const isFlat = isOverlap || strip.track.kind === "path";
  const needle = scene.searched;
  let drawn = 0;
  const shown = scene.tiles.shown(strip.part, strip.rank, scene.level, from, to);
  for (const { tile, low, high, level: of } of shown) {
    const columns = tile.get(strip.number);
    if (!columns) continue;
    const bucket = 2 ** of;
    const first = lowerBound(columns.start, low - columns.longest);
    const { start, dur, row, count, cls, name } = columns;
    for (let at = first; at < start.length && start[at] < high; at++) {
      const several = count[at] > 1;
      const end = start[at] + (several ? bucket : dur[at]);
      if (end <= low) continue;
      const line = isFlat ? 0 : row[at];
      const y = top + line * ROW;
      if (line >= 12 || y > scene.height || y + ROW < 0) continue;
      const left = (Math.max(start[at], low - 1e3 * nsPerPx) - from) / nsPerPx;
      const right = (Math.min(end, high + 1e3 * nsPerPx) - from) / nsPerPx;
      const width = Math.max(right - left, 0.7);
      const fill = fills[cls[at]] ?? fills[0];
      const share = several ? Math.min(dur[at] / bucket, 1) : 1;
      context.globalAlpha = needle && !name[at].toLowerCase().includes(needle)
        ? 0.15 : several ? Math.max(share, 0.25) : 1;
      context.fillStyle = fill;
      context.fillRect(left, y + 1, width > 3 ? width - 0.5 : width, ROW - 2);
      drawn++;
      context.globalAlpha = 1;
      if (width > LEAST_LABEL && !isOverlap) {
        const x = Math.max(left, 0) + 3;
        const letters = Math.floor((right - x - 3) / LETTER);
        if (letters >= 3) {
          context.fillStyle = inkOn(fill);
          const text = name[at];
          context.fillText(
            text.length <= letters ? text : `${text.slice(0, letters - 1)}…`, x, y + ROW / 2 + 0.5,
          );
        }
      }
    }
  }
  return drawn;
}

/** A folded rank: its overlap, from tiles where they are there, else from the overview. */
function drawRank(context, strip, top, from, to, nsPerPx, scene) {
  context.fillStyle = scene.colours.head;
  context.fillRect(0, top, (to - from) / nsPerPx, strip.height - 1);
  if (strip.isOpen) return 0;
  if (scene.tiles.tracksOf("device", strip.rank) && scene.hasTiles) {
    const track = scene.tiles.tracksOf("device", strip.rank)[0];
    if (track?.kind === "overlap") {
      const inside = { ...strip, part: "overlap", number: 0, track };
      return drawTrack(context, inside, top + 1, from, to, nsPerPx, scene);
    }
    return 0;
  }
  const cells = scene.overview?.cells.get(strip.rank);
  if (!cells) return 0;
  let drawn = 0;
  const width = scene.overview.width;
  for (let at = Math.max(lowerBound(cells.start, from - width), 0); at < cells.start.length; at++) {
    if (cells.start[at] >= to) break;
    const left = (cells.start[at] - from) / nsPerPx;
    let x = left;
    const px = cells.active[at] / nsPerPx;
    for (const [share, colour] of [
      [cells.computing[at] - cells.masked[at], scene.colours.states[0]],
      [cells.masked[at], scene.colours.states[1]],
      [cells.exposed[at], scene.colours.states[2]],
    ]) {
      const part = (share / cells.active[at]) * px || 0;
      context.fillStyle = colour;
      context.fillRect(x, top + 2, part, strip.height - 5);
      x += part;
      drawn++;
    }
  }
  return drawn;
}

function drawCurve(context, strip, top, from, to, nsPerPx, scene) {
  const { least, most, kind } = strip.track;
  const low = kind === "memory" ? 0 : Math.min(least, 0.9 * least);
  const base = top + strip.height - 4;
  const scale = (strip.height - 7) / Math.max(most - low, 1e-9);
  context.fillStyle = kind === "memory" ? scene.colours.memory : scene.colours.counter;
  let drawn = 0;
  for (const { tile, low: lowNs, high } of scene.tiles.shown(
    "curves", strip.rank, scene.level, from, to)) {
    const columns = tile.get(strip.number);
    if (!columns) continue;
    let at = Math.max(lowerBound(columns.at, lowNs) - 1, 0);
    for (; at < columns.at.length && columns.at[at] < high; at++) {
      const begin = Math.max(columns.at[at], lowNs);
      const end = Math.min(columns.at[at + 1] ?? high, high);
      const height = Math.max((columns.high[at] - low) * scale, 0.5);
      const x = (begin - from) / nsPerPx;
      context.fillRect(x, base - height, Math.max((end - begin) / nsPerPx, 0.7), height);
      drawn++;
    }
  }
  return drawn;
}

/** The event of a track at an instant and row: its columns' position, or null. */
export function eventAt(strip, row, ns, nsPerPx, scene) {
  const near = 2 * nsPerPx;
  let best = null;
  for (const { tile, level } of scene.tiles.shown(
    strip.part, strip.rank, scene.level, ns - near, ns + near)) {
    const columns = tile.get(strip.number);
    if (!columns) continue;
    const bucket = 2 ** level;
    let at = lowerBound(columns.start, ns - columns.longest - bucket);
    for (; at < columns.start.length && columns.start[at] <= ns + near; at++) {
      const { start, dur, count, row: rows } = columns;
      if (!["overlap", "path"].includes(strip.track.kind) && rows[at] !== row) continue;
      const end = start[at] + (count[at] > 1 ? bucket : dur[at]);
      if (end < ns - near) continue;
      const far = Math.max(start[at] - ns, ns - end, 0);
      if (best === null || far < best.far) {
        best = {
          far, strip, row: rows[at], start: start[at], dur: dur[at], count: count[at],
          name: columns.name[at], cls: columns.cls[at], end,
        };
      }
    }
  }
  return best;
}
