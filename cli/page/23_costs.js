// What a pass of a plan costs a rank, beside a rival and beside Ring Attention: the table, and memory's curve over the
// steps. Volumes and peaks are shown as the plan gives them; only links, borders and partners are counted here, from
// its messages.
(function (startrail) {
'use strict';
const {h, s, key, number_cell, header_row, scroller, legend, bytes, ratio, count, most, ticks, number, hover} = startrail;
const {KINDS, step_text} = startrail;

const is_ring = plan => plan.axes.ring === plan.ranks && plan.ranks > 1;

// Two bars to compare, both as parts of the greater.
function bars(a, b) {
  if (!number(a) || !number(b)) return null;
  const top = Math.max(a, b) || 1;
  const bar = (value, colour) => h('div', {class: 'bar'},
    h('i', {style: {width: 100 * value / top + '%', background: colour}}));
  return [bar(a, 'var(--accent)'), bar(b, 'var(--other)')];
}
// The same of volumes, in the colours of their kinds.
function stacks(a, b) {
  const top = Math.max(a.total, b.total) || 1;
  return [a, b].map(volume => h('div', {class: 'bar'}, KINDS.filter(kind => volume[kind]).map(kind =>
    h('i', {style: {width: 100 * volume[kind] / top + '%', background: `var(--${kind})`}}))));
}

// The columns: the plan itself, then those beside it. A column's prefix makes the names of its cells: volume.total,
// rival.volume.total, ring_volume.total.
function columns_of(main, rival, same) {
  const {pass} = main;
  const of = ({plan, pass, traffic}, prefix) =>
    ({name: plan.name, prefix, volume: pass.volume, peak: pass.peak_bytes, leaves: pass.leaves_node, traffic});
  const ring = {name: 'Ring Attention', prefix: 'ring_', volume: pass.ring_volume, peak: pass.ring_peak_bytes};
  if (!rival) return [of(main, ''), ring];
  // A rival that is Ring Attention has the ring's numbers and its links besides: one column is enough.
  if (same && is_ring(rival.plan)) return [of(main, ''), {...of(rival, ''), ...ring, name: rival.plan.name}];
  return [of(main, ''), of(rival, 'rival.'), ring];
}

// One row: `value(column)` in each column, and the first as a part of each other.
function row(columns, title, name, value, draw, text, part) {
  const values = columns.map(value), show = text || bytes;
  const cells = columns.flatMap((column, i) => {
    const value = number(values[i]) ? values[i] : null;
    const cell = number_cell(value === null ? '–' : show(value), name && column.prefix + name, value);
    return i ? [cell, h('td', {class: 'number dim'}, ratio(values[0], values[i]))] : [cell];
  });
  return h('tr', {class: part ? 'part' : null}, h('th', {scope: 'row'}, title), cells,
    h('td', {class: 'wide', 'aria-hidden': 'true'}, draw ? draw(values[0], values[1]) : null));
}

// `main` and `rival` (or null) are {plan, pass, traffic}; `same`: they answer the same problem.
function cost_table(main, rival, same) {
  const columns = columns_of(main, rival, same), nodes = main.plan.nodes;
  const heads = ['the busiest rank', ...columns.flatMap((column, i) => i ? [column.name, 'of it'] : [column.name])];
  const head = header_row(heads);
  head.firstChild.append(h('th', {class: 'wide', 'aria-hidden': 'true'}, 'upper bar: the plan'));
  const used = KINDS.filter(kind => columns.some(column => column.volume[kind]));
  const rows = [
    row(columns, 'sends', 'volume.total', c => c.volume.total, () => stacks(columns[0].volume, columns[1].volume)),
    ...used.map(kind => row(columns, kind, 'volume.' + kind, c => c.volume[kind], null, null, true)),
    nodes && row(columns, 'sends out of its node', 'leaves_node', c => c.leaves, bars),
    nodes && row(columns, 'busiest border, node to node', null, c => c.traffic?.border, bars),
    row(columns, 'on its busiest link', null, c => c.traffic?.link, bars),
    row(columns, 'ranks it sends to', null, c => c.traffic?.partners, null, count),
    row(columns, 'peak memory of blocks, at most', 'peak_bytes', c => c.peak, bars),
  ];
  return [
    scroller('what it costs', h('table', {}, head, h('tbody', {}, rows))),
    legend(used.map(kind => key(`var(--${kind})`, kind)),
      'Ring Attention is in the backward that is cheaper for it. ',
      'Memory: blocks only, with every chunk as long as the longest; what the kernel makes for itself comes on top.'),
  ];
}

// ---- memory over the steps

// The rank that holds the most at any time.
const fullest = held => held.reduce((best, row, rank) => most(row) > most(held[best]) ? rank : best, 0);

// Lines that keep a value until the next step; a plan with fewer steps is stretched to the same width.
function stairs(values, X, Y) {
  const points = values.map((value, i) => `${X(i / values.length)} ${Y(value)}H${X((i + 1) / values.length)}`);
  return 'M' + points.join('L');
}

// Memory's curve of the chosen rank, of the fullest one, and of the rival's fullest: {element, draw(rank, steps now)}.
function make_memory(main, rival) {
  const {plan, pass} = main, held = pass.held_bytes, full = fullest(held);
  const lines = [{name: `rank ${full}, the fullest`, values: held[full], colour: 'var(--merge)'}];
  if (rival) {
    const other = rival.pass.held_bytes, rank = fullest(other);
    lines.unshift({name: `${rival.plan.name}’s fullest`, values: other[rank], colour: 'var(--dim)', dash: '5 4'});
  }
  const top = Math.max(1, ...lines.map(line => most(line.values)));
  const picture = s('svg', {role: 'img', class: 'chart', height: 190}), below = legend();
  const element = h('div', {}, h('h3', {}, 'Memory over the steps'), picture, below);

  function draw(rank, now) {
    const width = Math.max(220, element.clientWidth), height = 190, left = 58, bottom = 22;
    const X = share => (left + share * (width - left - 8)).toFixed(1);
    const Y = value => (8 + (1 - value / (top * 1.05)) * (height - 8 - bottom)).toFixed(1);
    const mine = {name: `rank ${rank}`, values: held[rank], colour: 'var(--accent)'}, length = mine.values.length;
    const all = rank === full ? [...lines.slice(0, -1), {...mine, name: lines.at(-1).name}] : [...lines, mine];
    picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    picture.replaceChildren();
    const from = X((now[0] ?? 0) / length), shade = {y: 8, height: height - 8 - bottom, fill: 'var(--faint)'};
    if (now.length) picture.append(s('rect', {x: from, width: X((now.at(-1) + 1) / length) - from, ...shade}));
    for (const tick of ticks(0, top * 1.05, 4)) picture.append(
      s('path', {d: `M${left} ${Y(tick)}H${width - 8}`, stroke: tick ? 'var(--faint)' : 'var(--line)'}),
      s('text', {class: 'dim', x: left - 6, y: Number(Y(tick)) + 4, 'text-anchor': 'end'}, bytes(tick)));
    for (const {values, colour, dash} of all) picture.append(s('path', {
      d: stairs(values, X, Y), fill: 'none', stroke: colour, 'stroke-width': 2, 'stroke-dasharray': dash,
    }));
    const every = Math.ceil(length * 26 / (width - left));
    for (let i = 0; i < length - 1; i += every) picture.append(
      s('text', {class: 'dim', x: X((i + .5) / length), y: height - 7, 'text-anchor': 'middle'}, i + 1));
    below.replaceChildren(
      ...all.map(line => key(line.colour, `${line.name}: ${bytes(most(line.values))}`, line.dash && 'dashed')),
      'Along: the steps of the chosen rank; shaded: now.');
    picture.setAttribute('aria-label', `Memory over the ${pass.ranks[rank].length} steps of ${plan.name}: ` +
      all.map(line => `${line.name} at most ${bytes(most(line.values))}`).join('; '));
  }
  hover(picture, event => {
    const box = picture.getBoundingClientRect(), rank = element.dataset.rank, length = held[rank].length;
    const i = Math.floor((event.clientX - box.left - 58) / (box.width - 66) * length), step = pass.ranks[rank][i];
    if (i < 0 || i >= length) return '';
    const words = step ? `step ${i + 1}: ${step_text(step, pass.blocks)}` : 'the end';
    return `rank ${rank}, ${words}\n${bytes(held[rank][i])}`;
  });
  return {element, draw: (rank, now) => { element.dataset.rank = rank; draw(rank, now); }};
}

Object.assign(startrail, {cost_table, make_memory});
})(window.startrail);
