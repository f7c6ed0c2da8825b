// The run view: a table of the runs, charts of what they wrote step by step, and their samples.
// Everything here was measured by the runs themselves, except the memory estimated before the start (dashed).
(function (startrail) {
'use strict';
const {h, badge, note, pick, key, number_cell, header_row, sum, least, most, number, bytes, percent} = startrail;
const {three, time, plural, scroller, HUES, AXES, make_chart} = startrail;

const PICTURE = /^data:image\/(png|jpeg);base64,/;  // what a browser draws and nothing that could run
const LENGTHS = [0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000];  // half-lives of smoothing
const COLUMNS = [
  'loss', 'tokens_per_second', 'wait_share', 'peak_bytes', 'learning_rate', 'gradient_norm', 'seconds', 'elapsed',
  'tokens',
];

// A run whose columns are all there and as long as its steps.
function read_run(run) {
  const step = run.step || [], made = {...run, step, validation: run.validation || [], samples: run.samples || []};
  for (const name of COLUMNS) made[name] = step.map((_, i) => number(run[name]?.[i]) ? run[name][i] : null);
  return made;
}
const mean = values => values.length ? sum(values) / values.length : NaN;
const last = values => values.filter(number).at(-1);
const loss_text = value => number(value) ? (Math.abs(value) < 1e4 ? value.toFixed(4) : three(value)) : '–';

// ---- the table

function run_row(run, index, toggle) {
  const known = name => run[name].filter(number), colour = HUES[index % HUES.length];
  const losses = run.validation.map(point => point[1]).filter(number);
  const peak = known('peak_bytes').length ? most(known('peak_bytes')) : NaN;
  const name = h('button', {
    type: 'button', class: 'run-toggle', 'aria-pressed': 'true', style: {'border-color': colour}, onclick: toggle,
  }, key(colour, run.name));
  const config = run.config || [], lines = config.map(([setting, value]) => `${setting} = ${value}`);
  const settings = config.length ? h('details', {}, h('summary', {class: 'note'}, plural(config.length, 'setting')),
    h('pre', {}, lines.join('\n'))) : null;
  const unread = run.unread ? `${plural(run.unread, 'line')} of its record could not be read` : '';
  const about = [run.folder, run.version, unread].filter(Boolean).join(' · ');
  const best = losses.length ? least(losses) : NaN, estimated = run.estimated_bytes;
  return h('tr', {}, h('th', {scope: 'row'}, name, about ? note(about) : null, settings),
    number_cell(run.step.at(-1) ?? '–', 'step', run.step.at(-1)),
    number_cell(loss_text(last(run.loss)), 'loss', last(run.loss)),
    number_cell(loss_text(last(losses)), 'validation', last(losses)),
    number_cell(loss_text(best), 'lowest', number(best) ? best : null),
    number_cell(three(mean(known('tokens_per_second'))), 'tokens_per_second'),
    number_cell(percent(mean(known('wait_share'))), 'wait_share'),
    number_cell(bytes(peak), 'peak_bytes', number(peak) ? peak : null),
    number_cell(bytes(estimated), 'estimated_bytes', estimated),
    number_cell(time(1e6 * (last(run.elapsed) ?? NaN)), 'elapsed', last(run.elapsed)));
}
function run_table(runs, toggle) {
  const head = header_row(['run (press to hide)', 'steps', 'training loss', 'validation', 'its lowest', 'tokens/s',
    'waiting', 'memory', 'estimated', 'time']);
  const press = i => event => event.currentTarget.setAttribute('aria-pressed', toggle(i));
  const rows = runs.map((run, i) => run_row(run, i, press(i)));
  return h('div', {class: 'card'}, scroller('the runs', h('table', {}, head, h('tbody', {}, rows))));
}

// ---- charts

function make_charts(runs, state) {
  const units = [...new Set(runs.map(run => run.loss_unit || 'unit not recorded'))].join(' / ');
  return [
    {title: 'Loss', unit: units + '; line: training, circles: validation', column: 'loss', smooth: true,
      validation: true, tall: true, can_log: true, show: value => value.toFixed(3)},
    {title: 'Speed', unit: 'tokens a second', column: 'tokens_per_second', smooth: true, from_zero: true, tall: true,
      show: value => three(value) + ' tokens/s'},
    {title: 'Waiting for data', unit: 'share of a step, mean of the ranks', column: 'wait_share', smooth: true,
      from_zero: true, greatest: 1, tick: percent, show: percent},
    {title: 'Peak memory', unit: 'the fullest rank; dashed: as estimated before the start', column: 'peak_bytes',
      estimate: 'estimated_bytes', from_zero: true, show: bytes, tick: bytes},
    {title: 'Learning rate', column: 'learning_rate', from_zero: true, show: value => value.toExponential(2),
      tick: value => value ? value.toExponential(0) : '0'},
    {title: 'Gradient norm', unit: 'before clipping', column: 'gradient_norm', smooth: true, from_zero: true,
      show: three},
  ].filter(what => what.column === 'loss' || runs.some(run => run[what.column].some(number)))
    .map(what => make_chart(what, state));
}

// ---- samples

function sample_of(run, sample) {
  if (typeof sample.image !== 'string') return h('pre', {}, h('b', {}, sample.prompt || ''), sample.text || '');
  if (!PICTURE.test(sample.image)) return note('A picture that is neither PNG nor JPEG was left out.');
  const words = sample.caption || `sample of ${run.name} at step ${sample.step}`;
  return h('figure', {}, h('img', {src: sample.image, alt: words}),
    sample.caption ? h('figcaption', {class: 'note'}, words) : null);
}
// Samples of all runs by step, the latest first; the last of each run is open.
function samples_card(runs) {
  const all = runs.flatMap((run, index) => run.samples.map((sample, i) =>
    ({run, index, sample, open: i === run.samples.length - 1})));
  if (!all.length) return null;
  all.sort((a, b) => b.sample.step - a.sample.step || a.index - b.index);
  return h('div', {class: 'card'}, h('h3', {}, 'Samples'), all.map(({run, index, sample, open}) => h('details', {open},
    h('summary', {}, key(HUES[index % HUES.length], `${run.name}, step ${sample.step}`)), sample_of(run, sample))));
}

// ---- the view

function smoothing(state, draw) {
  const amount = h('span'), say = () => {
    amount.textContent = state.half ? plural(state.half, 'step') : 'none';
    slider.setAttribute('aria-valuetext', amount.textContent);
  };
  const slider = h('input', {type: 'range', min: 0, max: LENGTHS.length - 1, oninput: () => {
    state.half = LENGTHS[Number(slider.value)];
    say();
    draw();
  }});
  slider.value = LENGTHS.indexOf(state.half);
  say();
  return h('label', {class: 'grow'}, 'Smoothing: half-life ', amount, slider);
}
function run_view(section, given) {
  const runs = given.map(read_run);
  const longest = Math.max(...runs.map(run => run.step.length));
  const state = {
    runs, on: runs.map(() => true), axis: AXES[0], half: longest < 30 ? 0 : 5, log: false, from: 0, range: null,
    point: x => charts.forEach(chart => chart.point(x)),
    show: range => { state.range = range; draw(); },
  };
  const charts = make_charts(runs, state), draw = () => charts.forEach(chart => chart.draw());
  const axes = AXES.filter((axis, i) => i === 0 || runs.some(run => axis.values(run).some(number)));
  const toggle = i => {
    state.on[i] = !state.on[i];
    draw();
    return state.on[i];
  };
  const controls = h('div', {class: 'card sticky'}, h('div', {class: 'row'}, smoothing(state, draw),
    pick('Along', axes.map(axis => axis.name), 0, i => { state.axis = axes[i]; state.show(null); }),
    pick('Show', ['all', 'the last half', 'the last tenth'], 0, i => {
      state.from = [0, .5, .9][i];
      state.show(null);
    }),
    pick('Loss axis', ['linear', 'logarithmic'], 0, i => { state.log = i === 1; draw(); })));
  const rest = [run_table(runs, toggle), controls, h('div', {class: 'charts'}, charts.map(chart => chart.element)),
    note(badge('measured'), ' at every step, by the runs. Drag in a chart to zoom, double click for all. Smoothing ',
      'looks only back and is done before thinning; raw values stay visible behind. Validation, memory and learning ',
      'rate are never smoothed. Under a chart: values at the pointer, or the last. A gap is a value that was not a ',
      'number.'),
    samples_card(runs)];
  section.append(...rest.filter(Boolean));
  startrail.redraws.push(() => { if (!section.hidden) draw(); });
  draw();
}

Object.assign(startrail, {run_view});
})(window.startrail);
