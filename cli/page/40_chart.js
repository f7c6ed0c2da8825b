// A chart of one column of several runs: lines with raw values behind, validation as circles, an estimate dashed.
// Smoothing looks only back and comes before thinning; thinning keeps the least and the greatest of each pixel column,
// so that no spike is lost. What is not a number is a gap.
(function (startrail) {
'use strict';
const {h, s, legend, key, clamp, least, most, number, three, ticks, time} = startrail;

const HUES = ['#2f7fd0', '#d9602b', '#1d9a72', '#a154c4', '#c39a11', '#d2456b', '#4a9fb5', '#7a8490'];
const LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 22;

// A mean of the past whose weights halve every `half` steps, freed of its start's bias. It looks only back: the past
// of a curve never changes as a run goes on.
function smooth(steps, values, half) {
  if (!half) return values;
  let top = 0, bottom = 0, before = null;
  return values.map((value, i) => {
    if (!number(value)) return null;
    const fade = before === null ? 0 : .5 ** ((steps[i] - before) / half);
    before = steps[i];
    top = top * fade + value;
    bottom = bottom * fade + 1;
    return top / bottom;
  });
}

// The indices to draw: of each of `columns` pixel columns the least and the greatest value.
function thin(xs, ys, low, high, columns) {
  const out = [];
  let column = null, small = -1, great = -1;
  const flush = () => { if (column !== null) out.push(...new Set([Math.min(small, great), Math.max(small, great)])); };
  for (let i = 0; i < xs.length; i++) {
    if (!number(xs[i]) || !number(ys[i]) || xs[i] < low || xs[i] > high) continue;
    const here = Math.floor((xs[i] - low) / (high - low || 1) * columns);
    if (here !== column) {
      flush();
      column = here;
      small = great = i;
    }
    if (ys[i] < ys[small]) small = i;
    if (ys[i] > ys[great]) great = i;
  }
  flush();
  return out;
}

// A path through the thinned points, broken where a value between two of them is not a number.
function path_of(xs, ys, scale) {
  const {X, Y, low, high, columns} = scale, points = thin(xs, ys, low, high, columns);
  if (!points.length) return null;
  const path = points.map((i, k) => {
    const gap = k === 0 || ys.slice(points[k - 1], i).some(value => !number(value));
    // A point alone between gaps is a line of almost no length: with round ends it shows.
    return (gap ? 'M' : 'L') + X(xs[i]).toFixed(1) + ' ' + Y(ys[i]).toFixed(1) + (gap ? 'h.01' : '');
  });
  return path.join('');
}

// Where along the axis a step lies: at the last row up to it.
function x_of_step(run, xs, step) {
  let i = run.step.length - 1;
  while (i > 0 && run.step[i] > step) i--;
  return xs[i];
}

// Marks of a logarithmic axis.
function log_ticks(low, high) {
  const out = [], factors = high / low > 30 ? [1] : high / low > 5 ? [1, 2, 5] : [1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const factor of factors) out.push(Number((factor * 10 ** power).toPrecision(3)));
  return out.filter(tick => tick >= low && tick <= high);
}

// The bounds of the values: from zero where that means something, else with a little room.
function bounds(values, from_zero, log, greatest) {
  if (!values.length) return [log ? .1 : 0, 1];
  let low = from_zero && !log ? 0 : least(values), high = most(values);
  if (high === low) [low, high] = log ? [low / 1.5, high * 1.5] : [from_zero ? 0 : low - (Math.abs(low) || 1) / 2,
    high + (Math.abs(high) || 1) / 2];
  if (log) return [low / 1.05, high * 1.05];
  const room = (high - low) * .05;
  return [from_zero ? 0 : low - room, greatest ? Math.min(high + room, greatest) : high + room];
}

// `what`: title, unit, column, show(value), and optionally tick(value), smooth, validation, estimate, from_zero,
// can_log, greatest, tall. `state` is shared by all charts of the view: runs, on, axis, half, log, from, range,
// point, show.
function make_chart(what, state) {
  const height = what.tall ? 270 : 180, show = value => number(value) ? what.show(value) : 'no number';
  const picture = s('svg', {class: 'chart', role: 'img', height}), readout = legend();
  const element = h('div', {class: 'card'},
    h('h3', {}, what.title, what.unit ? h('span', {class: 'dim'}, ', ' + what.unit) : null), picture, readout);
  let now = null;  // what the last drawing showed, for the pointer

  // The shown runs with what to draw of them. On a logarithmic axis only positive values can be drawn.
  function series() {
    const log = what.can_log && state.log, usable = value => number(value) && (!log || value > 0) ? value : null;
    return state.runs.map((run, index) => ({run, index})).filter(one => state.on[one.index]).map(({run, index}) => {
      const xs = state.axis.values(run), raw = run[what.column].map(usable);
      const line = what.smooth ? smooth(run.step, raw, state.half) : raw;
      const validation = !what.validation ? [] : run.validation.map(point => ({
        step: point[0], y: usable(point[1]), x: state.axis.validation(point) ?? x_of_step(run, xs, point[0]),
      })).filter(point => point.y !== null && number(point.x));
      return {run, index, xs, raw, line, validation, estimate: what.estimate ? usable(run[what.estimate]) : null};
    });
  }
  function scale_of(all, width) {
    const ends = all.flatMap(one => [...one.xs, ...one.validation.map(point => point.x)]).filter(number);
    const last = ends.length ? most(ends) : 1, first = ends.length ? Math.min(least(ends), last) : 0;
    const start = first <= last * .1 ? Math.min(0, first) : first;
    let [low, high] = state.range || [start + (last - start) * state.from, last];
    if (high <= low) high = low + 1;
    const inside = x => number(x) && x >= low && x <= high, log = what.can_log && state.log;
    const ys = all.flatMap(one => [...one.raw.filter((_, i) => inside(one.xs[i])), one.estimate,
      ...one.validation.filter(point => inside(point.x)).map(point => point.y)]).filter(number);
    const [bottom, top] = bounds(ys, what.from_zero, log, what.greatest), F = log ? Math.log : value => value;
    return {
      low, high, bottom, top, log, inside, columns: width - LEFT - RIGHT,
      X: x => LEFT + (x - low) / (high - low) * (width - LEFT - RIGHT),
      Y: y => TOP + (F(top) - F(y)) / (F(top) - F(bottom)) * (height - TOP - BOTTOM),
    };
  }
  function draw_axes(scale, width) {
    const {X, Y, low, high, bottom, top} = scale, text = (x, y, anchor, words) =>
      s('text', {class: 'dim', x: x.toFixed(1), y: y.toFixed(1), 'text-anchor': anchor}, words);
    for (const tick of scale.log ? log_ticks(bottom, top) : ticks(bottom, top, height / 50)) picture.append(
      s('path', {d: `M${LEFT} ${Y(tick).toFixed(1)}H${width - RIGHT}`, stroke: 'var(--faint)'}),
      text(LEFT - 6, Y(tick) + 4, 'end', (what.tick || three)(tick)));
    const name = state.axis.name + ' →', room = 8 * name.length + 12;
    picture.append(s('path', {d: `M${LEFT} ${height - BOTTOM}H${width - RIGHT}`, stroke: 'var(--line)'}),
      text(width - RIGHT, height - 5, 'end', name));
    for (const tick of ticks(low, high, width / 90)) if (X(tick) < width - room) picture.append(
      s('path', {d: `M${X(tick).toFixed(1)} ${height - BOTTOM}v4`, stroke: 'var(--line)'}),
      text(X(tick), height - 5, 'middle', state.axis.tick(tick)));
  }
  function draw_raw(one, scale) {
    const d = path_of(one.xs, one.raw, scale), stroke = HUES[one.index % HUES.length];
    if (d) picture.append(s('path', {d, fill: 'none', stroke, 'stroke-width': 1, opacity: .3}));
  }
  // Lines of earlier runs are wider: where two runs agree to the last bit both still show.
  function draw_run(one, place, scale, width) {
    const {X, Y} = scale, stroke = HUES[one.index % HUES.length];
    const round = {'stroke-linejoin': 'round', 'stroke-linecap': 'round'};
    const add = (d, look) => { if (d) picture.append(s('path', {d, fill: 'none', stroke, ...round, ...look})); };
    if (one.estimate !== null) add(`M${LEFT} ${Y(one.estimate).toFixed(1)}H${width - RIGHT}`,
      {'stroke-width': 1.4, 'stroke-dasharray': '6 5', 'stroke-linecap': 'butt'});
    add(path_of(one.xs, one.line, scale), {'stroke-width': 1.8 + 1.5 * Math.min(2, place)});
    const points = one.validation.filter(point => scale.inside(point.x));
    if (points.length > 1) add('M' + points.map(p => X(p.x).toFixed(1) + ' ' + Y(p.y).toFixed(1)).join('L'),
      {'stroke-width': 1.1, opacity: .8});
    for (const p of points) picture.append(s('circle', {
      cx: X(p.x).toFixed(1), cy: Y(p.y).toFixed(1), r: 3.4, fill: 'var(--card)', stroke, 'stroke-width': 1.8,
    }));
  }
  function draw() {
    const width = Math.max(240, element.clientWidth - (innerWidth <= 560 ? 24 : 34)), all = series();
    const scale = scale_of(all, width), hair = s('path', {d: 'M0 0', stroke: 'var(--dim)', 'stroke-dasharray': '3 3'});
    picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    picture.replaceChildren();
    draw_axes(scale, width);
    if (what.smooth && state.half) all.forEach(one => draw_raw(one, scale));
    all.forEach((one, i) => draw_run(one, all.length - 1 - i, scale, width));
    picture.append(hair);
    const words = all.map(one => `${one.run.name} ends at ${show(one.line.at(-1))}` +
      (one.validation.length ? `, validation ${show(one.validation.at(-1).y)}` : '') +
      (one.estimate !== null ? `, estimated ${show(one.estimate)}` : ''));
    picture.setAttribute('aria-label', `${what.title}: ${words.join('; ') || 'no run is shown'}`);
    now = {all, scale, width, hair};
    point(null);
  }
  // Under the chart: the values at the pointer, or the last.
  function point(x) {
    const {all, scale, hair} = now;
    hair.setAttribute('d', x === null ? 'M0 0' : `M${scale.X(x).toFixed(1)} ${TOP}V${height - BOTTOM}`);
    readout.replaceChildren(...all.map(one => {
      let i = one.xs.length - 1;
      if (x !== null) while (i > 0 && !(one.xs[i - 1] < x)) i--;
      const step = one.run.step[i], seen = one.validation.filter(p => x === null || p.step <= step).at(-1);
      const parts = [
        `step ${step ?? '–'}: ${show(one.line[i])}`, what.smooth && state.half ? ` (raw ${show(one.raw[i])})` : '',
        seen ? `, validation ${show(seen.y)}` : '', one.estimate !== null ? `, estimated ${show(one.estimate)}` : '',
      ];
      return key(HUES[one.index % HUES.length], parts.join(''));
    }));
  }
  function x_at(event) {
    const box = picture.getBoundingClientRect(), {scale, width} = now;
    const share = ((event.clientX - box.left) * width / box.width - LEFT) / (width - LEFT - RIGHT);
    return scale.low + clamp(share, 0, 1) * (scale.high - scale.low);
  }
  let from = null;  // where a drag began
  picture.addEventListener('pointermove', event => state.point(x_at(event)));
  picture.addEventListener('pointerleave', () => state.point(null));
  picture.addEventListener('pointerdown', event => {
    from = event.pointerType === 'mouse' ? {pixel: event.clientX, x: x_at(event)} : null;
  });
  picture.addEventListener('pointerup', event => {
    if (from && Math.abs(event.clientX - from.pixel) > 8) state.show([from.x, x_at(event)].sort((a, b) => a - b));
    from = null;
  });
  picture.addEventListener('dblclick', () => state.show(null));
  return {element, draw, point};
}

// What a chart can run along: each run's values for its rows, and a validation's own where it has one (else that of
// its step).
const clock = value => value ? time(value * 1e6) : '0';
const AXES = [
  {name: 'step', values: run => run.step, validation: point => point[0], tick: three},
  {name: 'tokens', values: run => run.tokens, validation: () => null, tick: three},
  {name: 'time', values: run => run.elapsed, validation: point => point[2], tick: clock},
];

Object.assign(startrail, {HUES, AXES, make_chart, smooth, thin});
})(window.startrail);
