// A trace as the page reads it: the spans of each rank by how deep they lie, where the time went, messages by rank.
// Times are microseconds since the trace's beginning. Nothing is drawn here.
(function (startrail) {
'use strict';
const {sum, number, time, bytes} = startrail;

// The places in a row of a trace's spans, and the categories: the page's data contract.
const START = 0, LENGTH = 1, NAME = 2, CATEGORY = 3, DEPTH = 4, PASS = 5, LAYER = 6, PLAN_STEP = 7, BLOCK = 8;
const PEER = 9, BYTES = 10;
const STEP = 0, PHASE = 1, COMPUTE = 2, COMMUNICATE = 3, WAIT = 4, TURN = 5;
const WORDS = ['step', 'phase', 'computing', 'communication step', 'waiting for data', 'waiting for a core'];

// One rank's spans. Steps and phases are the ground; other spans lie on it at level 0, or inside each other at 1, 2.
// Spans of one level do not overlap, so that each level can be searched by time. Where two start at once the outer one
// must come first; its length does not tell which that is, once times are rounded.
function read_lane(rows, begin) {
  const lane = {steps: [], phases: [], levels: [], spans: []}, open = [];
  for (const row of rows.slice().sort((a, b) => a[START] - b[START] || a[DEPTH] - b[DEPTH])) {
    const start = row[START] - begin, category = row[CATEGORY], depth = row[DEPTH] ?? 0;
    while (open.length && (open.at(-1).depth >= depth || open.at(-1).end <= start)) open.pop();
    const parent = open.at(-1) || null, ground = category === STEP || category === PHASE;
    const span = {
      start, end: start + row[LENGTH], length: row[LENGTH], category, depth, row, inner: 0, clear: start,
      level: ground ? -1 : parent ? parent.level + 1 : 0,
      in_step: parent !== null && (parent.in_step || parent.category === STEP),
      in_wait: parent !== null && (parent.in_wait || parent.category === WAIT),
    };
    if (parent) {
      parent.inner += span.length;
      if (start <= parent.clear + .01) parent.clear = span.end;  // from here on its name can be read
    }
    open.push(span);
    if (ground) (category === STEP ? lane.steps : lane.phases).push(span);
    else {
      span.index = lane.spans.push(span) - 1;
      (lane.levels[span.level] ||= []).push(span);
    }
  }
  for (let i = 0; i < lane.levels.length; i++) lane.levels[i] ||= [];
  return lane;
}

// Where a rank's time went within its steps; a trace without steps counts as one. Attention and communication steps
// are counted without what lies inside them; a wait inside a wait, or a turn inside one, is not counted again.
function share_of(lane, whole) {
  const steps = lane.steps.filter(span => !span.in_step);
  const total = steps.length ? sum(steps.map(span => span.length)) : whole;
  const share = {total, compute: 0, comm: 0, wait: 0, turn: 0};
  for (const span of lane.spans) {
    if ((steps.length && !span.in_step) || span.in_wait) continue;
    const alone = Math.max(0, span.length - span.inner);
    if (span.category === COMPUTE) share.compute += alone;
    else if (span.category === COMMUNICATE) share.comm += alone;
    else if (span.category === WAIT) share.wait += span.length;
    else if (span.category === TURN) share.turn += span.length;
  }
  share.rest = Math.max(0, share.total - share.compute - share.comm - share.wait - share.turn);
  return share;
}

// A message as an arrow: from when it was sent to when it arrived, or was read where only that is known. Without the
// sender's time the receiver's stands for it, and the arrow is not sure; with none it cannot be drawn.
function read_message(row, begin) {
  const [from, to, kind, size, sent, posted, arrived, read, block] = row;
  const first = [sent, posted].find(number), last = [arrived, read].find(number);
  const drawn = first !== undefined && last !== undefined;
  const since = value => number(value) ? value - begin : null;
  return {
    from, to, kind, size, block: block ?? -1, drawn, sure: number(sent) && (number(arrived) || number(read)),
    start: drawn ? Math.min(first, last) - begin : null, end: drawn ? last - begin : null,
    sent: since(sent), posted: since(posted), arrived: since(arrived), read: since(read),
  };
}

const ready = new Map();  // reading 60,000 spans takes a moment: once is enough
function read_trace(trace) {
  if (ready.has(trace)) return ready.get(trace);
  const begin = trace.t_us[0], length = Math.max(1, trace.t_us[1] - begin);
  const lanes = Array.from({length: trace.ranks}, (_, r) => read_lane(trace.spans[r] || [], begin));
  const messages = trace.messages.map(row => read_message(row, begin)), by_rank = lanes.map(() => []);
  for (const message of messages) {
    by_rank[message.from]?.push(message);
    if (message.to !== message.from) by_rank[message.to]?.push(message);
  }
  const shares = lanes.map(lane => share_of(lane, length)), total = name => sum(shares.map(share => share[name]));
  const names = ['total', 'compute', 'comm', 'wait', 'turn', 'rest'];
  const mean = Object.fromEntries(names.map(name => [name, total(name) / (shares.length || 1)]));
  const exposed = total('total') > 0 ? total('wait') / total('total') : 0;
  const made = {trace, length, lanes, messages, by_rank, mean, exposed};
  ready.set(trace, made);
  return made;
}

// The first span of a level that ends after `at`.
function first_after(spans, at) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].end < at) low = middle + 1; else high = middle;
  }
  return low;
}
// The innermost span of a lane at a time, or null.
function span_at(lane, at, slack) {
  for (const spans of lane.levels.slice().reverse()) {
    const span = spans[first_after(spans, at - slack)];
    if (span && span.start <= at + slack) return span;
  }
  return null;
}

// What a wait or a step waited for: messages to this rank that were read in it.
function messages_of(made, rank, span) {
  const inside = at => at !== null && at >= span.start - .2 && at <= span.end + .2;
  return made.by_rank[rank].filter(message => message.to === rank && inside(message.read ?? message.arrived));
}
// Everything that is known of a span, a line each.
function span_text(made, rank, span) {
  const {row} = span, {names, blocks} = made.trace, has = place => (row[place] ?? -1) >= 0;
  const name = names[row[NAME]] ?? '?', joined = parts => parts.filter(Boolean).join(', ');
  const inner = span.inner > 0 ? ` (${time(span.length - span.inner)} without what is inside)` : '';
  const lines = [`rank ${rank}: ${name}` + (name === WORDS[span.category] ? '' : ', ' + WORDS[span.category])];
  lines.push(`${time(span.length)}${inner}, from ${time(span.start)}`);
  lines.push(joined([has(PASS) ? names[row[PASS]] : '', has(LAYER) ? `layer ${row[LAYER]}` : '',
    has(PLAN_STEP) ? `plan step ${row[PLAN_STEP] + 1}` : '']));
  lines.push(has(BLOCK) && blocks ? blocks[row[BLOCK]] : '');
  lines.push(joined([has(PEER) ? `peer: rank ${row[PEER]}` : '', row[BYTES] > 0 ? bytes(row[BYTES]) : '']));
  for (const message of messages_of(made, rank, span).slice(0, 5)) {
    const known = message.sent !== null && message.arrived !== null;
    const way = known ? `, ${time(message.arrived - message.sent)} on its way` : '';
    const block = message.block >= 0 && blocks ? ` (${blocks[message.block]})` : '';
    lines.push(`${names[message.kind]} from rank ${message.from}${block}, ${bytes(message.size)}${way}`);
  }
  return lines.filter(Boolean).join('\n');
}

Object.assign(startrail, {
  categories: {STEP, PHASE, COMPUTE, COMMUNICATE, WAIT, TURN}, read_trace, first_after, span_at, span_text,
  name_of: (made, span) => made.trace.names[span.row[NAME]] ?? '?',
});
})(window.startrail);
