// A plan as the page reads it: its steps as text, its beats, which tiles they meet and how often, who sends what to
// whom. Counts only, from the plan's steps and messages; nothing is drawn here and nothing is a time.
(function (startrail) {
'use strict';
const {sum, most} = startrail;

const KINDS = ['p2p', 'gather', 'merge', 'all_to_all'];

// Chunks or ranks as a list; a long one is cut, since the page has little room: 0,1,…,63 or 0,1,4,5,8,9,… (32).
function list_text(list) {
  if (list.length <= 8) return list.length ? list.join(',') : 'none';
  const step = list[1] - list[0], even = list.every((value, i) => value === list[0] + i * step);
  return even ? `${list[0]},${list[1]},…,${list.at(-1)}` : `${list.slice(0, 6).join(',')},… (${list.length})`;
}
function block_text(block) {
  if (!block) return 'nothing';
  return `${block[0]} ${list_text(block[1])}` + (block.length > 2 ? ' /' + block[2] : '');
}

// A step in the words of `startrail plan`.
function step_text(step, blocks) {
  const [op, a, b] = step, one = block_text(blocks[a]), two = block_text(blocks[b]);
  if (op === 'attend') return `attend ${one} × ${two}`;
  if (op === 'delta') return `delta ${one} with ${two} → ${block_text(blocks[step[3]])}`;
  if (op === 'exchange') {
    const halves = [a >= 0 ? `${one} to ${step[3]}` : '', b >= 0 ? `${two} from ${step[4]}` : ''];
    return 'exchange ' + halves.filter(Boolean).join(' and ');
  }
  return `${op} ${one} → ${two} over ${list_text(step[3].map(member => member[0]))}`;
}

// The chunks that a message carries: of a merge only the receiver's share, of an all_to_all one chunk.
function chunks_sent(pass, message) {
  const [index, from, to, kind] = message, step = pass.ranks[from][index], block = pass.blocks[step[1]];
  if (kind === 'p2p' || kind === 'gather') return block[1];
  const owner = kind === 'merge' || block.length > 2 ? to : from;
  const member = step[3].find(one => one[0] === owner);
  return member ? member[1] : block[1];
}

// The beat of each step of one rank. A beat is one attend with the exchanges that travel meanwhile, or neighbouring
// gathers, merges or all_to_alls; a delta, which is local, goes with its neighbours.
function number_beats(steps) {
  let beat = 0, last = '';
  return steps.map(([op]) => {
    const joins = last === '' || last === 'delta' || (op === 'delta' && last !== 'attend') ||
      (op === last && op !== 'attend') || (last === 'exchange' && op === 'attend');
    if (!joins) beat++;
    if (op !== 'delta' || last === '') last = op;
    return beat;
  });
}

// An attend as a tile: the rank that does it, query chunks, key chunks, and the slices of the heads that it covers.
function tile_of(pass, rank, step) {
  const queries = pass.blocks[step[1]], keys = pass.blocks[step[2]], slices = pass.slices || 1;
  const all = Array.from({length: slices}, (_, i) => i);
  const covers = queries.length < 3 ? all : queries[2] === (keys[2] ?? queries[2]) ? [queries[2]] : [];
  return {rank, queries: queries[1], keys: keys[1], slices: covers};
}

// A pass as beats: what each rank does in it, the tiles, the messages; and, after it, the share of all tiles' cells
// done and the bytes that each rank has sent so far.
function beats_of(pass) {
  const beat_of = pass.ranks.map(number_beats);
  const length = Math.max(1, ...beat_of.map(beats => (beats.at(-1) ?? 0) + 1));
  const beats = Array.from({length}, () =>
    ({tiles: [], messages: [], steps: pass.ranks.map(() => []), share: 0, sent: []}));
  pass.ranks.forEach((steps, rank) => steps.forEach((step, i) => {
    const beat = beats[beat_of[rank][i]];
    beat.steps[rank].push(i);
    if (step[0] === 'attend') beat.tiles.push(tile_of(pass, rank, step));
  }));
  for (const message of pass.messages) beats[beat_of[message[1]][message[0]]].messages.push(message);
  const cells = beats.map(beat => sum(beat.tiles.map(t => t.queries.length * t.keys.length * t.slices.length)));
  const total = sum(cells) || 1, sent = pass.ranks.map(() => 0);
  let done = 0;
  beats.forEach((beat, i) => {
    done += cells[i];
    beat.share = done / total;
    for (const [, from, , , size] of beat.messages) sent[from] += size;
    beat.sent = sent.slice();
  });
  return beats;
}

// How often the attends meet each (slice, query chunk, key chunk), and what is wrong with that.
function count_met(plan, pass, beats) {
  const ranks = plan.ranks, slices = pass.slices || 1, times = new Uint16Array(slices * ranks * ranks);
  const at = (slice, query, key) => (slice * ranks + query) * ranks + key;
  for (const {tiles} of beats)
    for (const tile of tiles)
      for (const slice of tile.slices)
        for (const query of tile.queries) for (const key of tile.keys) times[at(slice, query, key)]++;
  let missed = 0, twice = 0, first = null;
  times.forEach((n, i) => {
    if (n === 1) return;
    if (n) twice++; else missed++;
    first ||= {query: Math.floor(i / ranks) % ranks, key: i % ranks, slice: Math.floor(i / ranks / ranks), times: n};
  });
  return {total: times.length, missed, twice, first, once: missed + twice === 0, times, at};
}

// The pass to show beside another's: forward beside forward, else the backward that is cheaper for this plan, as
// `startrail plan` compares.
function pass_beside(plan, name) {
  const wanted = name === 'forward' ? name : plan.backward;
  return plan.passes.find(pass => pass.pass === wanted) || plan.passes[0];
}

// What the messages alone tell: the busiest link, the busiest border between two nodes, the most ranks any sends to.
function traffic_of(plan, pass) {
  const {ranks, nodes} = plan, to = pass.ranks.map(() => new Float64Array(ranks)), borders = new Map();
  for (const [, from, into, , size] of pass.messages) {
    to[from][into] += size;
    if (!nodes || nodes[from] === nodes[into]) continue;
    const border = nodes[from] + '>' + nodes[into];
    borders.set(border, (borders.get(border) || 0) + size);
  }
  return {
    to,
    link: Math.max(0, ...to.map(row => most([...row]))),
    border: nodes ? Math.max(0, ...borders.values()) : null,
    partners: Math.max(0, ...to.map(row => row.reduce((n, size) => n + (size > 0), 0))),
  };
}

// A colour for each rank: a hue for each concentric ring and a lightness for each place on it. Where there is one
// ring, or none, the places go through the hues.
function colours_of(plan) {
  const lines = plan.axes.ring > 1 ? plan.lines.rings : [Array.from({length: plan.ranks}, (_, r) => r)], out = [];
  lines.forEach((line, k) => line.forEach((rank, i) => {
    const many = lines.length > 1, light = many && line.length > 1 ? .47 + .33 * i / (line.length - 1) : .62;
    const hue = (many ? k / lines.length : i / line.length) * 330 + 250;
    out[rank] = {fill: `oklch(${light.toFixed(3)} .125 ${(hue % 360).toFixed(0)})`, dark: light <= .66};
  }));
  return out;
}

// Which side goes round: its chunks are what a rank's band in the rings, and a cell of the strip, show.
const riding_side = pass => pass.pass === 'backward_queries' ? 1 : 2;

Object.assign(startrail, {
  KINDS, list_text, step_text, chunks_sent, beats_of, count_met, pass_beside, traffic_of, colours_of, riding_side,
});
})(window.startrail);
