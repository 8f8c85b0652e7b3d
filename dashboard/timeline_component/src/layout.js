// Which track stands where: a list of strips from the top, each with its height and what it shows.

export const ROW = 17;
const HEAD = 20;
const CURVE = 30;
const GAP = 3;

/** In place of a rank: what is of all of them. */
export const ALL = -1;

/** What stands before the names of what folds in the capture beneath. */
export const BENEATH = "b:";

/** A list with what was moved where it was moved to, one move after the other: [name, place]. */
export function placed(list, nameOf, moved) {
  const found = [...list];
  for (const [name, place] of moved) {
    const at = found.findIndex((one) => nameOf(one) === name);
    if (at >= 0) found.splice(place, 0, ...found.splice(at, 1));
  }
  return found;
}

/** What folds and unfolds: `path`, `whatif`, `rank`, `rank:host`, `rank:curves`. Two captures stand
 * one under the other, each below its name. */
export function strips(state, sides, replayed) {
  const found = [];
  let y = 0;
  const put = (strip) => {
    found.push({ ...strip, y });
    y += strip.height;
  };
  for (const pin of state.pins) {
    const { side, rank, part, kind, key } = pinned(pin);
    const tracks = sides[side]?.tiles.tracksOf(part, rank) ?? [];
    const number = tracks.findIndex((one) => one.kind === kind && one.key === key);
    if (number >= 0) {
      const letter = sides.length > 1 ? `${"AB"[side]} ` : "";
      const label = `${letter}${rank} · ${tracks[number].label}`;
      put(trackStrip(side, rank, part, number, tracks[number], label, true));
    }
  }
  sides.forEach((one, side) => {
    const name = (fold) => (side ? `${BENEATH}${fold}` : fold);
    const { tiles } = one;
    const putTracks = (rank, part) => {
      const tracks = (tiles.tracksOf(part, rank) ?? []).map((track, number) =>
        trackStrip(side, rank, part, number, track));
      placed(tracks, pinOf, state.moved).forEach(put);
    };
    if (sides.length > 1) put({ type: "capture", side, rank: ALL, label: one.name, height: HEAD });
    for (const part of side ? ["path"] : replayed) {
      const fold = name(part);
      const isOpen = state.open.has(fold);
      const why = isOpen ? tiles.reasons.get(part) ?? (tiles.tracksOf(part, ALL) ? "" : null) : "";
      put({ type: "fold", side, rank: ALL, fold, part, isOpen, why, height: ROW + GAP });
      if (isOpen) putTracks(ALL, part);
    }
    for (const rank of placed(one.ranks, (own) => name(`${own}`), state.moved)) {
      const fold = name(`${rank}`);
      const isOpen = state.open.has(fold);
      put({ type: "rank", side, rank, fold, isOpen, height: HEAD, label: `${rank}` });
      if (!isOpen) continue;
      putTracks(rank, "device");
      for (const part of ["host", "curves"]) {
        const inner = `${fold}:${part}`;
        const isUnfolded = state.open.has(inner);
        put({ type: "fold", side, rank, fold: inner, part, isOpen: isUnfolded, height: ROW + GAP });
        if (isUnfolded) putTracks(rank, part);
      }
    }
  });
  return { strips: found, height: y };
}

function trackStrip(side, rank, part, number, track, label = track.label, isPinned = false) {
  const rows = ["overlap", "path"].includes(track.kind) ? 1 : Math.min(track.rows ?? 1, 12);
  return {
    type: part === "curves" ? "curve" : "track",
    side, rank, part, number, track, label, isPinned,
    height: (part === "curves" ? CURVE : rows * ROW) + GAP,
  };
}

/** The name by which a track is pinned and kept in the URL. */
export function pinOf(strip) {
  const name = `${strip.rank}:${strip.part}:${strip.track.kind}:${strip.track.key}`;
  return strip.side ? `${BENEATH}${name}` : name;
}

/** By what a track, or a rank, is moved. */
export function movedAs(strip) {
  return strip.type === "rank" ? strip.fold : pinOf(strip);
}

/** What such a name means. */
export function pinned(name) {
  const side = name.startsWith(BENEATH) ? 1 : 0;
  const [rank, part, kind, ...key] = name.slice(side * BENEATH.length).split(":");
  return { side, rank: Number(rank), part, kind, key: key.join(":") };
}
