// Paints the lanes of one trace on a canvas: the ground (steps and phases), spans inside spans, messages as arrows.
// Only what shows at this zoom is painted: a span that adds no pixel to the one before it is left out.
(function (startrail) {
'use strict';
const {palette, surface, KINDS, categories, first_after, name_of} = startrail;
const {COMPUTE, COMMUNICATE, WAIT, TURN} = categories;

const ROW = 16;           // of the heading, where rank 0's steps and phases have their names
const MOST_ARROWS = 1500;  // more would hide the lanes

// Small pictures to fill with: waits are hatched, turns dotted, so that they differ by more than colour.
function pattern(g, ground, colour, lines) {
  const tile = document.createElement('canvas'), t = tile.getContext('2d');
  tile.width = tile.height = 6;
  t.fillStyle = ground;
  t.fillRect(0, 0, 6, 6);
  t.strokeStyle = colour;
  t.lineWidth = 1.3;
  t.beginPath();
  for (const [x0, y0, x1, y1] of lines) {
    t.moveTo(x0, y0);
    t.lineTo(x1, y1);
  }
  t.stroke();
  return g.createPattern(tile, 'repeat');
}
const HATCH = [[-1, 7, 7, -1], [-1, 1, 1, -1], [5, 7, 7, 5]], UPRIGHT = [[1.5, 0, 1.5, 6], [4.5, 0, 4.5, 6]];

// The colours of a painting, and how wide spans of a category are filled; thin ones are plain.
function look_of(g) {
  const colour = palette('ink', 'dim', 'faint', 'card', 'compute', 'comm', 'wait', 'turn', 'step', 'phase', 'phase2',
    ...KINDS);
  const plain = {[COMPUTE]: colour.compute, [COMMUNICATE]: colour.comm};
  return {
    colour,
    wide: {
      ...plain,
      [WAIT]: pattern(g, colour.card, colour.wait, HATCH), [TURN]: pattern(g, colour.card, colour.turn, UPRIGHT),
    },
    thin: {...plain, [WAIT]: colour.wait + 'a0', [TURN]: colour.turn + 'a0'},
  };
}

// A name where there is room for it, a long one cut. Measuring each would be slow: letters are taken to be 6.4 wide.
function write(g, text, x, y, room) {
  const letters = Math.floor(room / 6.4), fits = text.length <= letters;
  if (fits || letters > 8) g.fillText(fits ? text : text.slice(0, letters - 1) + '…', x, y);
}

// The heading's rows: the names of rank 0's steps and of its phases.
function headings(made) {
  const lane = made.lanes[0];
  return lane ? [lane.steps, lane.phases].filter(spans => spans.length) : [];
}
const heading_height = made => headings(made).length * ROW + 3;

function paint_headings(g, made, look, {X, left, right}) {
  g.textAlign = 'left';
  headings(made).forEach((spans, i) => {
    for (let k = 0; k < spans.length; k++) {
      const a = Math.max(X(spans[k].start), left), b = Math.min(X(spans[k].end), right);
      if (b - a < 2) continue;
      g.fillStyle = i === 0 && headings(made).length > 1 ? look.colour.step : look.colour.phase2;
      g.fillRect(a, i * ROW, b - a - 1, ROW - 2);
      g.fillStyle = look.colour.dim;
      write(g, name_of(made, spans[k]), a + 4, i * ROW + ROW / 2 - .5, b - a - 8);
    }
  });
}

// One rank. A span inside another is inset from above, so that what holds it still shows.
function paint_lane(g, made, lane, y, bar, look, {X, low, high}) {
  lane.phases.forEach((span, k) => {
    if (span.end < low || span.start > high) return;
    g.fillStyle = k & 1 ? look.colour.phase2 : look.colour.phase;
    g.fillRect(X(span.start), y, Math.max(.7, X(span.end) - X(span.start)), bar);
  });
  lane.levels.forEach((spans, level) => {
    const inset = Math.min(level * 4, bar * .4), last = [];
    for (let k = first_after(spans, low); k < spans.length && spans[k].start <= high; k++) {
      const span = spans[k], a = X(span.start), b = X(span.end), wide = b - a;
      if (b < last[span.category] + .4) continue;  // adds no pixel
      last[span.category] = b;
      g.fillStyle = (wide > 4 ? look.wide : look.thin)[span.category] || look.colour.dim;
      g.fillRect(a, y + inset, Math.max(wide - (wide > 3 ? .6 : 0), .7), bar - inset);
      if (wide < 46 || bar < 12 || span.category > COMMUNICATE) continue;
      g.fillStyle = look.colour.ink;
      const from = Math.max(X(span.clear), X(low));
      write(g, name_of(made, span), from + 4, y + bar / 2 + .5, b - from - 6);
    }
  });
}

// The frame around the chosen lane and span.
function paint_chosen(g, span, y, bar, look, {X, left, right}) {
  g.strokeStyle = look.colour.ink;
  g.lineWidth = 1.4;
  g.strokeRect(left + .7, y - 1.3, right - left - 2, bar + 2.6);
  if (!span) return;
  g.lineWidth = 2.4;
  g.strokeRect(X(span.start), y - .5, Math.max(2, X(span.end) - X(span.start)), bar + 1);
}

// One arrow; `halo` lifts it off what it crosses. An arrow without length in time goes straight up or down.
function paint_arrow(g, message, colour, halo, {X, middle}) {
  const x0 = X(message.start), x1 = X(message.end), y0 = middle(message.from), y1 = middle(message.to);
  const bend = Math.min(40, (x1 - x0) / 2), steep = x1 - x0 < 8 && y0 !== y1, down = y1 > y0 ? 1 : -1;
  const line = (style, width) => {
    g.strokeStyle = style;
    g.lineWidth = width;
    g.stroke();
  };
  g.beginPath();
  g.moveTo(x0, y0);
  if (steep) g.lineTo(x1, y1); else g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
  if (halo) line(halo, 3.4);
  g.setLineDash(message.sure ? [] : [5, 3]);
  line(colour, 1.5);
  g.setLineDash([]);
  g.fillStyle = colour;
  g.beginPath();
  g.moveTo(x1, y1);
  g.lineTo(steep ? x1 - 3 : x1 - 6, steep ? y1 - 6 * down : y1 - 3);
  g.lineTo(steep ? x1 + 3 : x1 - 6, steep ? y1 - 6 * down : y1 + 3);
  g.fill();
  g.beginPath();
  g.arc(x0, y0, 2, 0, 7);
  g.fill();
}

// Which messages to draw: those in view, without those that would lie on one already drawn.
function arrows_in_view(messages, {X, low, high}) {
  const seen = new Set(), out = [];
  for (const message of messages) {
    if (!message.drawn || message.end < low || message.start > high) continue;
    const place = [message.from, message.to, Math.round(X(message.start)), Math.round(X(message.end))].join(' ');
    if (seen.has(place)) continue;
    seen.add(place);
    out.push(message);
  }
  return out;
}
// `which`: 'all', 'chosen' or 'none'. Returns what to say where not all that were asked for are drawn.
function paint_arrows(g, made, which, rank, look, frame) {
  if (which === 'none') return '';
  const all = which === 'all' ? arrows_in_view(made.messages, frame) : null, few = all && all.length <= MOST_ARROWS;
  const list = few ? all : arrows_in_view(made.by_rank[rank] || [], frame);
  if (!few && list.length > Math.max(60, (frame.right - frame.left) / 8))
    return `Rank ${rank} has ${list.length} messages here, too many to draw as arrows: zoom in.`;
  for (const message of list) {
    const colour = look.colour[made.trace.names[message.kind]] || look.colour.ink;
    paint_arrow(g, message, colour, few ? null : look.colour.card, frame);
  }
  if (!all || few) return '';
  return `${all.length} messages are too many to draw at once: those of rank ${rank} are; zoom in for all.`;
}

function paint_grid(g, marks, height, look, {X}) {
  g.strokeStyle = look.colour.faint;
  g.lineWidth = 1;
  g.globalAlpha = .7;
  g.beginPath();
  for (const mark of marks) {
    g.moveTo(X(mark) + .5, 0);
    g.lineTo(X(mark) + .5, height);
  }
  g.stroke();
  g.globalAlpha = 1;
}

// Paints all of one trace. `frame`: X (time to pixel), left and right (pixels), low and high (times); `chosen`: the
// rank and span to mark, or null; `rank`: whose arrows are drawn.
function paint_lanes(canvas, made, {frame, marks, lane_height, arrows, chosen, rank}) {
  const top = heading_height(made), g = surface(canvas, frame.right + 6, top + lane_height * made.lanes.length + 4);
  const look = look_of(g);
  const bar = lane_height - (lane_height > 16 ? 5 : 3), middle = r => r * lane_height + 3 + bar / 2;
  g.save();
  g.beginPath();
  g.rect(frame.left, 0, frame.right + 6 - frame.left, canvas.height);
  g.clip();
  paint_headings(g, made, look, frame);
  g.translate(0, top);
  made.lanes.forEach((lane, r) => paint_lane(g, made, lane, r * lane_height + 3, bar, look, frame));
  paint_grid(g, marks, lane_height * made.lanes.length, look, frame);
  if (chosen) paint_chosen(g, chosen.span, chosen.rank * lane_height + 3, bar, look, frame);
  const said = paint_arrows(g, made, arrows, rank, look, {...frame, middle});
  g.restore();
  g.textAlign = 'right';
  made.lanes.forEach((_, r) => {
    g.fillStyle = chosen && chosen.rank === r ? look.colour.ink : look.colour.dim;
    g.fillText(frame.left > 50 ? 'rank ' + r : r, frame.left - 7, top + middle(r));
  });
  return said;
}

Object.assign(startrail, {paint_lanes, heading_height});
})(window.startrail);
