// The picture of the ranks: concentric rings with their teams, stripes and heads, what each rank works on, and the
// chunks that travel in a beat. SVG; it only draws what it is told and reports which rank was pressed.
(function (startrail) {
'use strict';
const {h, s, clamp, tip, KINDS, chunks_sent, riding_side} = startrail;

const SIZE = 600, CENTRE = SIZE / 2;
const at_text = (x, y) => x.toFixed(1) + ' ' + y.toFixed(1);

// The axis along which ranks are lined up: the ring, or without one the longest other.
function main_axis(axes) {
  if (axes.ring > 1) return 'ring';
  return ['stripe', 'team', 'heads'].reduce((a, b) => axes[b] > axes[a] ? b : a);
}

// Rings from the inside out; those that share teams or heads stand closer together than those that do not.
function ring_places(plan, lines) {
  const near = [...plan.lines.teams, ...plan.lines.head_groups], depth = [0], at = [];
  for (let k = 1; k < lines.length; k++) {
    const kin = near.some(line => line.includes(lines[k][0]) && line.includes(lines[k - 1][0]));
    depth[k] = depth[k - 1] + (kin ? 1 : 1.5);
  }
  const inner = lines.length > 6 ? 70 : 84;
  lines.forEach((line, k) => line.forEach((rank, i) => {
    const radius = lines.length > 1 ? inner + (264 - inner) * depth[k] / depth.at(-1) : 244;
    const twist = lines.length > 6 ? .8 * k / lines.length : 0;  // many rings: else their discs would touch
    const angle = 2 * Math.PI * (i + twist) / line.length - Math.PI / 2;
    at[rank] = {x: CENTRE + radius * Math.cos(angle), y: CENTRE + radius * Math.sin(angle), radius, angle};
  }));
  return at;
}
// Without a ring: a lattice, a row for each line.
function lattice_places(lines) {
  const at = [], columns = lines[0].length, step = Math.min(520 / columns, 520 / lines.length, 150);
  lines.forEach((line, k) => line.forEach((rank, i) => {
    at[rank] = {x: CENTRE + (i - (columns - 1) / 2) * step, y: CENTRE + (k - (lines.length - 1) / 2) * step};
  }));
  return at;
}
function places_of(plan) {
  const axis = main_axis(plan.axes);
  const lines = {ring: 'rings', team: 'teams', stripe: 'stripes', heads: 'head_groups'}[axis];
  const rows = plan.lines[lines], round = axis === 'ring' || rows.length === 1;
  const at = plan.ranks === 1 ? [{x: CENTRE, y: CENTRE}] : round ? ring_places(plan, rows) : lattice_places(rows);
  let near = plan.ranks === 1 ? 200 : Infinity;
  for (const p of at) for (const q of at) if (p !== q) near = Math.min(near, Math.hypot(p.x - q.x, p.y - q.y));
  return {at, round, ring: axis === 'ring' && plan.ranks > 1, disc: clamp(near * .285, 3, 22)};
}

// Ways between ranks: the path's text, and where on it one is at a share of the way. The browser could tell the latter
// too, but would lay out the picture for each question.

// A bow from one rank to another that ends before their discs.
function bow(a, b, bend, disc) {
  const dx = b.x - a.x, dy = b.y - a.y, gap = Math.min(disc * 1.45, Math.hypot(dx, dy) * .42);
  const c = {x: (a.x + b.x) / 2 - dy * bend, y: (a.y + b.y) / 2 + dx * bend};
  const towards = place => {
    const part = gap / (Math.hypot(c.x - place.x, c.y - place.y) || 1);
    return {x: place.x + (c.x - place.x) * part, y: place.y + (c.y - place.y) * part};
  };
  const from = towards(a), to = towards(b);
  const mix = (t, axis) => (1 - t) ** 2 * from[axis] + 2 * t * (1 - t) * c[axis] + t ** 2 * to[axis];
  return {
    d: `M${at_text(from.x, from.y)}Q${at_text(c.x, c.y)} ${at_text(to.x, to.y)}`,
    text_at: t => at_text(mix(t, 'x'), mix(t, 'y')),
  };
}
// Clockwise along the circle that both stand on.
function arc(a, b, disc) {
  const off = disc * 1.5 / a.radius, turn = (b.angle - a.angle + 4 * Math.PI) % (2 * Math.PI) || 2 * Math.PI;
  const text_at = t => {
    const angle = a.angle + off + t * (turn - 2 * off);
    return at_text(CENTRE + a.radius * Math.cos(angle), CENTRE + a.radius * Math.sin(angle));
  };
  const long = turn - 2 * off > Math.PI ? 1 : 0;
  return {d: `M${text_at(0)}A${a.radius} ${a.radius} 0 ${long} 1 ${text_at(1)}`, text_at};
}

// What stays: circles of the rings, capsules of the teams, dotted stripes, outlined groups of heads.
function draw_ground(plan, places) {
  const {at, disc, ring, round} = places;
  const ground = s('g', {fill: 'none', 'stroke-linecap': 'round', 'stroke-linejoin': 'round'});
  const closed = round && !ring ? 'Z' : '';  // without a ring a line that stands on the circle is all of it
  const through = line => 'M' + line.map(rank => at_text(at[rank].x, at[rank].y)).join('L') + closed;
  const capsule = (line, width, stroke, opacity) =>
    ground.append(s('path', {d: through(line), stroke, opacity, 'stroke-width': width}));
  if (plan.axes.heads > 1) for (const line of plan.lines.head_groups) {
    capsule(line, disc * 4.4 + 2.4, 'var(--all_to_all)', .55);
    capsule(line, disc * 4.4, 'var(--card)');
  }
  if (plan.axes.team > 1) for (const line of plan.lines.teams) capsule(line, disc * 3.9, 'var(--line)', .6);
  if (ring) for (const r of new Set(at.map(place => place.radius)))
    ground.append(s('circle', {cx: CENTRE, cy: CENTRE, r, stroke: 'var(--line)', 'stroke-width': 1.2}));
  const dotted = {stroke: 'var(--dim)', 'stroke-width': 1.8, 'stroke-dasharray': '1 5'};
  if (plan.axes.stripe > 1) plan.lines.stripes.forEach((line, k) => line.slice(1).forEach((rank, i) =>
    ground.append(s('path', {d: bow(at[line[i]], at[rank], k & 1 ? -.4 : .4, disc).d, ...dotted}))));
  return ground;
}

// The way of a message: those of a ring follow its circle, others go in a bow; stripes beside their dots.
function way_of(plan, places, [, from, to, kind]) {
  const {at, disc} = places, a = at[from], b = at[to];
  if (kind === 'p2p' && places.ring && Math.abs(a.radius - b.radius) < 1) return arc(a, b, disc);
  const shared = plan.axes.stripe > 1 && kind !== 'p2p';
  const stripe = shared ? plan.lines.stripes.findIndex(line => line.includes(from) && line.includes(to)) : -1;
  if (stripe < 0) return bow(a, b, .18, disc);
  const bend = stripe & 1 ? -.4 : .4;
  return bow(a, b, from < to ? bend : -1.35 * bend, disc);
}

// A band of arcs around a rank, one for each chunk. A full circle must be a circle: an SVG arc around one vanishes.
function band(chunks, radius, width, colours, opacity) {
  const look = chunk => ({fill: 'none', stroke: colours[chunk].fill, 'stroke-width': width, opacity});
  if (chunks.length === 1) return [s('circle', {r: radius, ...look(chunks[0])})];
  const gap = Math.min(.12, 1 / chunks.length);
  const on = angle => (radius * Math.cos(angle)).toFixed(2) + ' ' + (radius * Math.sin(angle)).toFixed(2);
  return chunks.map((chunk, i) => {
    const turn = 2 * Math.PI / chunks.length, a = turn * i - Math.PI / 2 + gap, b = turn * (i + 1) - Math.PI / 2 - gap;
    return s('path', {d: `M${on(a)}A${radius} ${radius} 0 ${b - a > Math.PI ? 1 : 0} 1 ${on(b)}`, ...look(chunk)});
  });
}

function arrow_head(id, kind) {
  const form = {viewBox: '0 0 10 10', refX: 9, refY: 5, markerWidth: 9, markerHeight: 9};
  return s('marker', {id: `head-${kind}-${id}`, ...form, markerUnits: 'userSpaceOnUse', orient: 'auto'},
    s('path', {d: 'M0 .5 10 5 0 9.5 2.4 5Z', fill: `var(--${kind})`}));
}

// The chunks a rank works on, or last worked on.
function worked_on(pass, beats, rank, now) {
  for (let b = now; b >= 0; b--)
    for (const i of beats[b].steps[rank].slice().reverse())
      if (pass.ranks[rank][i][0] === 'attend') return pass.blocks[pass.ranks[rank][i][riding_side(pass)]][1];
  return [rank];
}

// A picture of `plan` for a panel: {element, draw(view), frame(share)}. `about(rank)` is what the tip says of a rank.
function make_rings(plan, colours, id, select, about) {
  const places = places_of(plan), {at, disc} = places;
  const empty = rank => !plan.tokens_of[rank] && !plan.key_tokens_of[rank];
  const box = {viewBox: `0 0 ${SIZE} ${SIZE}`}, arrows = s('g', {fill: 'none'}), ranks = s('g'), moving = s('g');
  const picture = s('svg', {...box, role: 'img'}, s('defs', {}, KINDS.map(kind => arrow_head(id, kind))),
    draw_ground(plan, places), arrows, ranks);
  // What moves has a layer of its own: the rest then need not be painted again for each frame.
  const above = s('svg', {...box, class: 'above', 'aria-hidden': 'true'}, moving);
  let travellers = [];
  const bands = at.map((place, rank) => {
    const around = s('g'), hollow = empty(rank), fill = colours[rank].fill;
    const label = s('text', {
      'text-anchor': 'middle', dy: '.35em', 'font-size': clamp(disc * .86, 8, 19),
      class: hollow ? null : colours[rank].dark ? 'on-dark' : 'on-light',
    }, rank);
    const face = {r: disc, fill: hollow ? 'var(--card)' : fill, stroke: hollow ? fill : 'none'};
    ranks.append(s('g', {
      transform: `translate(${at_text(place.x, place.y)})`, 'data-rank': rank, onclick: () => select(rank),
      onpointermove: event => tip(event, about(rank)), onpointerleave: event => tip(event, ''),
    }, around, s('circle', {...face, 'stroke-dasharray': '3 2'}), disc >= 6.5 ? label : null));
    return around;
  });

  function add_message(pass, message, chosen) {
    const [, from, to, kind] = message, mine = from === chosen || to === chosen, way = way_of(plan, places, message);
    arrows.append(s('path', {
      d: way.d, stroke: `var(--${kind})`, 'marker-end': `url(#head-${kind}-${id})`,
      'stroke-width': mine ? 3.2 : 1.8, opacity: mine ? 1 : plan.ranks > 20 ? .45 : .62,
    }));
    const r = clamp(disc * .34, 2.4, 6.5), chunks = chunks_sent(pass, message).slice(0, 4), dots = s('g');
    const look = {r, stroke: 'var(--card)', 'stroke-width': 1.4};
    chunks.forEach((chunk, i) => dots.append(
      s('circle', {cx: (i - (chunks.length - 1) / 2) * r * 1.7, fill: colours[chunk].fill, ...look})));
    moving.append(dots);
    travellers.push([dots, way]);
  }
  // Draws beat `now` of `beats` (-1: before the first). Too many messages would hide each other: then only the chosen
  // rank's; returns whether there were few enough.
  function draw({pass, beats, now, rank}) {
    const beat = beats[now] || {messages: [], tiles: []}, few = beat.messages.length <= Math.min(260, 8 * plan.ranks);
    const mine = message => message[1] === rank || message[2] === rank;
    arrows.replaceChildren();
    moving.replaceChildren();
    travellers = [];
    for (const message of few ? beat.messages : beat.messages.filter(mine)) add_message(pass, message, rank);
    const working = new Set(beat.tiles.map(tile => tile.rank));
    bands.forEach((around, r) => {
      const ring = band(worked_on(pass, beats, r, now), disc * 1.36, disc * .34, colours, working.has(r) ? 1 : .4);
      const mark = s('circle', {r: disc * 1.64, fill: 'none', stroke: 'var(--ink)', 'stroke-width': 2.2});
      around.replaceChildren(...(r === rank ? [mark] : []), ...ring);
    });
    frame(.5);
    return few;
  }
  // Moves the travelling chunks to `share` of their ways.
  function frame(share) {
    for (const [dots, way] of travellers) dots.setAttribute('transform', `translate(${way.text_at(share)})`);
  }
  return {element: h('div', {class: 'rings'}, picture, above), picture, draw, frame};
}

Object.assign(startrail, {make_rings});
})(window.startrail);
