// What lies above the tracks: the ruler, and the overview of all ranks as a map.

import { instant, roundUp, span } from "./time_text.js";

export const GUTTER = 150;
const MAP_ROW = [3, 12];
const FONT = "11px system-ui, 'Noto Sans CJK SC', sans-serif";

export function drawRuler(it, context, ratio) {
  const { ruler } = it.parts;
  const { colours } = it.data;
  const height = ruler.clientHeight;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, ruler.clientWidth, height);
  context.font = FONT;
  context.textBaseline = "middle";
  const step = roundUp(it.nsPerPx * 110);
  context.fillStyle = colours.soft;
  for (let at = Math.ceil(it.view.start / step) * step; at < it.view.end; at += step) {
    const x = it.x(at);
    context.fillRect(x, height - 6, 1, 6);
    const label = instant(at, step);
    // Cut at the edge it would say another instant, or one without its unit.
    if (x + 4 + context.measureText(label).width <= ruler.clientWidth)
      context.fillText(label, x + 4, height / 2);
  }
  context.fillStyle = colours.background;
  context.fillRect(0, 0, GUTTER, height);
  context.fillStyle = colours.text;
  context.fillText(span(it.view.end - it.view.start), 6, height / 2);
  if (it.cursor !== undefined) context.fillRect(it.x(it.cursor), 0, 1, height);
}

export function drawMap(it, context, ratio) {
  const { map } = it.parts;
  const { colours } = it.data;
  const [width, height] = [map.clientWidth - GUTTER, map.clientHeight];
  const { least, most } = it.bounds();
  const perPx = (most - least) / width;
  if (!it.map && it.sides.some((one) => one.overview)) {
    it.map = drawOverview(it, width, height, ratio, perPx, least);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, map.clientWidth, height);
  if (it.map) context.drawImage(it.map, GUTTER, 0, width, height);
  const left = GUTTER + (it.view.start - least) / perPx;
  const right = Math.max(GUTTER + (it.view.end - least) / perPx, left + 2);
  context.fillStyle = colours.veil;
  context.fillRect(GUTTER, 0, Math.max(left - GUTTER, 0), height);
  context.fillRect(right, 0, Math.max(GUTTER + width - right, 0), height);
  context.strokeStyle = colours.accent;
  context.lineWidth = 2;
  context.strokeRect(left, 1, right - left, height - 2);
  context.fillStyle = colours.text;
  context.font = FONT;
  context.textBaseline = "middle";
  context.fillText(it.told.mapLabel(), 6, height / 2);
  if (it.cursor !== undefined) context.fillRect(GUTTER + (it.cursor - least) / perPx, 0, 1, height);
}

/** A row for each rank of either capture, a bin darker the more of it is what is looked for. */
function drawOverview(it, width, height, ratio, perPx, least) {
  const canvas = document.createElement("canvas");
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const rows = it.sides.flatMap((side) => side.ranks.map((rank) => [side, rank]));
  const row = height / rows.length;
  const [column, colour] = it.told.share();
  context.fillStyle = colour;
  rows.forEach(([side, rank], place) => {
    const cells = side.overview?.cells.get(rank);
    if (!cells) {
      context.globalAlpha = 1;
      context.fillStyle = it.data.colours.head;
      context.fillRect(0, place * row, width, Math.max(row - 0.5, 0.5));
      context.fillStyle = colour;
      return;
    }
    for (let at = 0; at < cells.start.length; at++) {
      const share = cells[column][at] / cells.active[at];
      context.globalAlpha = Math.max(0.04, Math.min(share, 1));
      const x = (Math.max(cells.start[at], 0) + side.shift - least) / perPx;
      const wide = Math.min(side.overview.width, cells.active[at]) / perPx;
      context.fillRect(x, place * row, Math.max(wide, 0.5), Math.max(row - (row > 3 ? 1 : 0), 0.5));
    }
  });
  return canvas;
}

export function mapHeight(rows) {
  const each = Math.max(MAP_ROW[0], Math.min(MAP_ROW[1], 90 / rows));
  return Math.max(28, Math.min(96, Math.round(each * rows)));
}
