// Which track stands where: a list of strips from the top, each with its height and what it shows.

export const ROW = 17;
const HEAD = 20;
const CURVE = 30;
const GAP = 3;

/** In place of a rank: what is of all of them. */
export const ALL = -1;

/** What folds and unfolds: `path`, `whatif`, `rank`, `rank:host`, `rank:curves`. */
export function strips(state, tiles, ranks, replayed) {
  const found = [];
  let y = 0;
  const put = (strip) => {
    found.push({ ...strip, y });
    y += strip.height;
  };
  for (const pin of state.pins) {
    const [rank, part, kind, ...key] = pin.split(":");
    const tracks = tiles.tracksOf(part, Number(rank)) ?? [];
    const number = tracks.findIndex((one) => one.kind === kind && one.key === key.join(":"));
    if (number >= 0) {
      const label = `${rank} · ${tracks[number].label}`;
      put(trackStrip(Number(rank), part, number, tracks[number], label, true));
    }
  }
  for (const part of replayed) {
    const isOpen = state.open.has(part);
    const why = isOpen ? tiles.reasons.get(part) ?? (tiles.tracksOf(part, ALL) ? "" : null) : "";
    put({ type: "fold", rank: ALL, fold: part, part, isOpen, why, height: ROW + GAP });
    if (isOpen) {
      (tiles.tracksOf(part, ALL) ?? []).forEach((track, number) =>
        put(trackStrip(ALL, part, number, track)));
    }
  }
  for (const rank of ranks) {
    const isOpen = state.open.has(`${rank}`);
    put({ type: "rank", rank, fold: `${rank}`, isOpen, height: HEAD, label: `${rank}` });
    if (!isOpen) continue;
    const device = tiles.tracksOf("device", rank) ?? [];
    device.forEach((track, number) => put(trackStrip(rank, "device", number, track)));
    for (const part of ["host", "curves"]) {
      const fold = `${rank}:${part}`;
      const isUnfolded = state.open.has(fold);
      const tracks = tiles.tracksOf(part, rank);
      put({ type: "fold", rank, fold, part, isOpen: isUnfolded, height: ROW + GAP });
      if (!isUnfolded) continue;
      (tracks ?? []).forEach((track, number) => put(trackStrip(rank, part, number, track)));
    }
  }
  return { strips: found, height: y };
}

function trackStrip(rank, part, number, track, label = track.label, isPinned = false) {
  const rows = ["overlap", "path"].includes(track.kind) ? 1 : Math.min(track.rows ?? 1, 12);
  return {
    type: part === "curves" ? "curve" : "track",
    rank, part, number, track, label, isPinned,
    height: (part === "curves" ? CURVE : rows * ROW) + GAP,
  };
}

/** The name by which a track is pinned and kept in the URL. */
export function pinOf(strip) {
  return `${strip.rank}:${strip.part}:${strip.track.kind}:${strip.track.key}`;
}
