// The trace view: one or two traces on one axis of time, with zoom, drag and keys, and a table of where the time went.
// What is measured, emulated or predicted is said at every trace; the two are never mixed.
(function (startrail) {
'use strict';
const {h, button, badge, note, legend, pick, key, number_cell, header_row, clamp, bytes, percent, time} = startrail;
const {ticks, plural, sum, number, css, surface, pointer, tip, read_trace, first_after, span_at} = startrail;
const {scroller, span_text, paint_lanes, heading_height} = startrail;

const SMALLEST_US = 1;  // the shortest time that fills the window
const ARROWS = ['chosen', 'all', 'none'];

const label = trace => `${trace.name} (${trace.source})`;
// What the file says of itself, whatever it is.
function conditions(about) {
  const text = value => value !== null && typeof value === 'object' ? JSON.stringify(value) : String(value);
  const lines = Object.entries(about || {}).map(([name, value]) => `${name} = ${text(value)}`);
  if (!lines.length) return null;
  return h('details', {}, h('summary', {class: 'note'}, 'conditions'), h('pre', {}, lines.join('\n')));
}

// ---- where the time went

const PARTS = [
  ['compute', 'attention'], ['comm', 'communication steps'], ['wait', 'waiting'], ['turn', 'turns'],
  ['rest', 'the rest'],
];
const LOOKS = {compute: 'var(--compute)', comm: 'var(--comm)', rest: 'var(--other)'};
const HATCHED = {wait: 'hatch', turn: 'dots'};

function share_bar(made, longest) {
  return h('div', {class: 'bar tall'}, PARTS.map(([name]) => {
    const width = 100 * made.mean[name] / longest + '%';
    return h('i', {class: HATCHED[name], style: {width, background: LOOKS[name] || 'none'}});
  }));
}
function share_row(made, longest) {
  const {trace, mean, exposed} = made, own = trace.wait_share;
  const apart = number(own) && Math.abs(own - exposed) > .01;
  return h('tr', {}, h('th', {scope: 'row'}, trace.name, badge(trace.source)),
    number_cell(time(mean.total), 'total_us', mean.total),
    number_cell((100 * exposed).toFixed(1) + '%', 'exposed', exposed),
    h('td', {class: 'number', 'data-name': 'wait_share', 'data-value': own},
      number(own) ? (100 * own).toFixed(1) + '%' : '–', apart ? badge('differs', 'wrong') : null),
    PARTS.map(([name]) => number_cell(time(mean[name]), name + '_us', mean[name])),
    h('td', {class: 'wide', 'aria-hidden': 'true'}, share_bar(made, longest)));
}
function share_table(shown) {
  const longest = Math.max(...shown.map(made => made.mean.total)) || 1;
  const parts = PARTS.map(part => part[1]);
  const head = header_row(['mean of the ranks', 'a rank’s steps', 'exposed', 'the run’s count', ...parts]);
  head.firstChild.append(h('th', {class: 'wide', 'aria-hidden': 'true'}));
  return [
    scroller('where the time went', h('table', {}, head, h('tbody', {}, shown.map(made => share_row(made, longest))))),
    note('Attention and communication steps without the waits and turns inside them. Exposed: waiting for data as a ',
      'share of the steps, all ranks; beside it the share that the run itself counted over the same steps, where it ',
      'did. A trace takes from its first rank’s start to its last rank’s end.'),
    new Set(shown.map(made => made.trace.source)).size > 1
      ? note('The two are not of the same kind: compare shapes before lengths.') : null,
  ].filter(Boolean);
}

// ---- the view

function trace_text(made) {
  const {trace} = made, parts = [
    time(made.length), plural(trace.ranks, 'rank'), plural(made.messages.length, 'message'),
    bytes(sum(made.messages.map(message => message.size || 0))) + ' received', trace.note,
  ];
  return parts.filter(Boolean).join(' · ');
}
function lead_text([a, b]) {
  const mixed = b && a.trace.source !== b.trace.source, source = String(a.trace.source);
  const one = made => `${mixed ? label(made.trace) : made.trace.name} takes ${time(made.length)}, ` +
    `and ${percent(made.exposed)} of its ranks’ time is spent waiting for data`;
  const kind = mixed ? '' : source.charAt(0).toUpperCase() + source.slice(1) + ': ';
  return kind + [a, b].filter(Boolean).map(one).join('; ') + '.';
}

function trace_view(section, traces) {
  const shown = [0, traces.length > 1 ? 1 : -1], view = {low: 0, high: 1}, boards = [];
  let arrows = 0, chosen = {board: 0, rank: 0, span: null}, queued = false, width = 1000;
  const lead = h('p', {class: 'lead'}), live = h('div', {class: 'live', 'aria-live': 'polite'});
  const cards = h('div'), table = h('div'), axis = h('canvas', {'aria-hidden': 'true'});
  const made = () => shown.filter(i => i >= 0).map(i => read_trace(traces[i]));
  const whole = () => Math.max(...made().map(one => one.length)) * 1.005;
  const left = () => width < 560 ? 28 : 62, right = () => width - 6;
  const X = at => left() + (at - view.low) / (view.high - view.low) * (right() - left());
  const T = x => view.low + (x - left()) / (right() - left()) * (view.high - view.low);

  function controls() {
    const names = traces.map(label), other = shown[1] < 0 ? traces.length : shown[1];
    const show = (which, index) => {
      shown[which] = index < traces.length ? index : -1;
      build();
    };
    return h('div', {class: 'card sticky'}, h('div', {class: 'row'}, pick('Upper', names, shown[0], i => show(0, i)),
      traces.length > 1 ? pick('Lower', [...names, 'none'], other, i => show(1, i)) : null,
      pick('Arrows', ['of the chosen rank', 'all', 'none'], arrows, i => { arrows = i; draw(); }),
      h('span', {class: 'row controls'}, button('+', () => zoom(.5), {'aria-label': 'zoom in'}),
        button('−', () => zoom(2), {'aria-label': 'zoom out'}), button('Fit', fit))), live, axis);
  }
  function help() {
    return [legend(key('var(--compute)', 'computing attention'), key('var(--comm)', 'communication step'),
      key('', 'waiting for data', 'hatch'), key('', 'waiting for a core', 'dots'),
      key('var(--phase2)', 'the rest of a pass'), key('var(--p2p)', 'arrow: ring'), key('var(--gather)', 'gather'),
      key('var(--merge)', 'merge'), key('var(--all_to_all)', 'all_to_all'), 'An arrow goes from when a message ',
      'was sent to when it was there; dashed where one of the two is not known.'),
    note('Drag to move, Ctrl and wheel to zoom, double click to zoom to a span. + − 0 zoom in, out and to all. With ',
      'a lane in focus: ← → from span to span, ↑ ↓ from rank to rank.')];
  }
  function board_of(one, index) {
    const {ranks, shortened} = one.trace, said = note(), canvas = h('canvas', {
      class: 'lanes', tabindex: 0, role: 'application',
      'aria-label': `timeline of ${label(one.trace)}, ${plural(ranks, 'rank')}; ` +
        'arrow keys go from span to span and from rank to rank',
    });
    cards.append(h('div', {class: 'card'}, h('h2', {}, one.trace.name, badge(one.trace.source)),
      note(trace_text(one)), conditions(one.trace.about),
      shortened ? h('p', {class: 'note'}, badge('shortened', 'counted'), ' ' + shortened) : null,
      canvas, said));
    return {made: one, canvas, said, index, high: clamp(Math.floor(560 / ranks), 13, 30), painted: false};
  }
  function build() {
    cards.replaceChildren();
    boards.splice(0, boards.length, ...made().map(board_of));
    boards.forEach(wire);
    chosen = {board: 0, rank: 0, span: null};
    live.textContent = '';
    lead.textContent = lead_text(made());
    table.replaceChildren(...share_table(made()));
    fit();
  }

  // ---- moving in time
  function set_view(low, span) {
    const all = whole(), size = clamp(span, SMALLEST_US, all);
    view.low = clamp(low, 0, all - size);
    view.high = view.low + size;
    draw();
  }
  const fit = () => set_view(0, whole());
  function zoom(factor, at = (view.low + view.high) / 2) {
    const now = view.high - view.low, span = clamp(now * factor, SMALLEST_US, whole());
    set_view(at - (at - view.low) * span / now, span);
  }
  const move = by => set_view(view.low + by, view.high - view.low);

  // ---- painting: at most once a frame, and not what is far outside the window
  function draw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      if (!section.hidden) paint(false);
    });
  }
  function paint_axis(marks) {
    const g = surface(axis, width, 22);
    g.fillStyle = css('--dim');
    g.textAlign = 'center';
    for (const mark of marks) {
      g.fillText(mark ? time(mark) : '0', clamp(X(mark), 20, width - 24), 10);
      g.fillRect(X(mark), 17, 1, 5);
    }
  }
  function paint(all) {
    width = Math.max(240, cards.clientWidth - (innerWidth <= 560 ? 24 : 34));
    const marks = ticks(view.low, view.high, clamp(width / 120, 2, 10));
    paint_axis(marks);
    for (const board of boards) {
      const {top, bottom} = board.canvas.getBoundingClientRect();
      board.stale = !all && board.painted && (bottom < -100 || top > innerHeight + 100);
      if (board.stale) continue;
      board.painted = true;
      board.said.textContent = paint_lanes(board.canvas, board.made, {
        frame: {X, left: left(), right: right(), low: view.low, high: view.high}, marks, lane_height: board.high,
        arrows: ARROWS[arrows], chosen: chosen.board === board.index ? chosen : null,
        rank: Math.min(chosen.rank, board.made.trace.ranks - 1),
      });
    }
  }
  addEventListener('scroll', () => { if (boards.some(board => board.stale)) draw(); }, {passive: true});

  // ---- pointer and keys
  function hit(board, event) {
    const {x, y} = pointer(event, board.canvas), rank = Math.floor((y - 2 - heading_height(board.made)) / board.high);
    if (rank < 0 || rank >= board.made.trace.ranks || x < left()) return null;
    return {rank, span: span_at(board.made.lanes[rank], T(x), 2 / (right() - left()) * (view.high - view.low))};
  }
  function choose(board, rank, span) {
    chosen = {board: board.index, rank: clamp(rank, 0, board.made.trace.ranks - 1), span};
    live.textContent = span ? span_text(board.made, chosen.rank, span).replaceAll('\n', '; ') : `rank ${chosen.rank}`;
    const outside = span && (span.start < view.low || span.end > view.high);
    if (outside) move((span.start + span.end - view.low - view.high) / 2);
    draw();
  }
  function press(board, event) {
    const {rank, span} = chosen, {lanes} = board.made, at = span ? span.index : -1;
    const along = {ArrowRight: 1, ArrowLeft: -1}[event.key], down = {ArrowDown: 1, ArrowUp: -1}[event.key];
    const pick_span = (spans, i) => spans[clamp(i, 0, spans.length - 1)] || null;
    if (along) choose(board, rank, pick_span(lanes[rank].spans, at + along));
    else if (down) {  // the span at the same time in the next lane
      const to = clamp(rank + down, 0, lanes.length - 1), spans = lanes[to].levels[0] || [];
      choose(board, to, span && pick_span(spans, first_after(spans, (span.start + span.end) / 2)));
    } else return;
    event.preventDefault();
  }
  function wire(board) {
    const {canvas} = board;
    let from = null, moved = 0;
    const listen = (name, on, options) => canvas.addEventListener(name, on, options);
    listen('pointerdown', event => {
      if (event.pointerType !== 'mouse') return;
      from = event.clientX;
      moved = 0;
      canvas.setPointerCapture(event.pointerId);
    });
    listen('pointermove', event => {
      const at = from === null ? hit(board, event) : null;
      tip(event, at && at.span ? span_text(board.made, at.rank, at.span) : '');
      if (from === null) return;
      moved += Math.abs(event.clientX - from);
      move((from - event.clientX) / (right() - left()) * (view.high - view.low));
      from = event.clientX;
    });
    listen('pointerup', () => { from = null; });
    listen('pointercancel', () => { from = null; });
    listen('pointerleave', event => tip(event, ''));
    listen('click', event => {
      const at = hit(board, event);
      if (at && moved < 4) choose(board, at.rank, at.span);
    });
    listen('dblclick', event => {
      const at = hit(board, event);
      if (at && at.span) set_view(at.span.start - at.span.length, 3 * at.span.length);
    });
    listen('wheel', event => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : .8, T(pointer(event, canvas).x));
      else if (sideways) move(event.deltaX / width * (view.high - view.low));
      else return;
      event.preventDefault();
    }, {passive: false});
    listen('focus', () => { if (chosen.board !== board.index) choose(board, 0, null); });
    listen('keydown', event => press(board, event));
  }
  document.addEventListener('keydown', event => {
    if (section.hidden || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    const at = chosen.span ? (chosen.span.start + chosen.span.end) / 2 : undefined;  // else the middle
    if (event.key === '+' || event.key === '=') zoom(.6, at);
    else if (event.key === '-') zoom(1.6, at);
    else if (event.key === '0') fit();
    else return;
    event.preventDefault();
  });

  // How long one step of zoom takes, in ms: both traces in full, read back so that nothing is left to paint later.
  const probe = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  startrail.measureZoom = () => {
    const began = performance.now();
    zoom(.8);
    paint(true);
    for (const {canvas} of boards) probe.drawImage(canvas, 0, 0);
    probe.getImageData(0, 0, 1, 1);
    return performance.now() - began;
  };
  section.append(lead, controls(), cards, ...help(),
    h('div', {class: 'card'}, h('h3', {}, 'Where the time went'), table));
  startrail.redraws.push(() => { if (!section.hidden) paint(true); });
  build();
  paint(true);
}

Object.assign(startrail, {trace_view});
})(window.startrail);
