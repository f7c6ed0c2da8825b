// The plan's three maps, as canvases: query chunk x key chunk (who meets what), rank x beat (the whole pass at a
// glance) and rank x rank (who sends to whom). Each has draw() and answers the pointer.
(function (startrail) {
'use strict';
const {h, clamp, bytes, percent, plural, palette, surface, pointer, hover, number, step_text, riding_side} = startrail;

const MARGIN = 36;
// How many numbers to skip along an axis so that they do not touch.
const stride = cell => [1, 2, 4, 8, 16, 32].find(n => n * cell >= 15) || 64;

// Numbers along the top and the left of a square map, and the names of its axes.
function draw_axes(g, ranks, cell, colour, across, down) {
  g.fillStyle = colour;
  for (let i = 0; i < ranks; i += stride(cell)) {
    g.textAlign = 'center';
    g.fillText(i, MARGIN + (i + .5) * cell, MARGIN - 8);
    g.textAlign = 'right';
    g.fillText(i, MARGIN - 5, MARGIN + (i + .5) * cell);
  }
  g.textAlign = 'left';
  g.fillText(across, MARGIN, 6);
  g.save();
  g.translate(6, MARGIN + cell * ranks);
  g.rotate(-Math.PI / 2);
  g.fillText(down, 0, 0);
  g.restore();
}
// A square map as wide as its place allows: its cell's size, and which cell an event is on.
function square(canvas, ranks, widest) {
  const room = clamp(canvas.parentElement.clientWidth, 200, widest), cell = Math.min(110, (room - MARGIN - 2) / ranks);
  const width = MARGIN + cell * ranks + 2;
  const find = event => {
    const {x, y} = pointer(event, canvas);
    const column = Math.floor((x - MARGIN) / cell), row = Math.floor((y - MARGIN) / cell);
    return row >= 0 && column >= 0 && row < ranks && column < ranks ? [row, column] : null;
  };
  return {width, cell, find};
}

// ---- query x key

// With more slices of the heads than a cell has room for, some of them stand for all.
function slices_shown(slices, cell) {
  const every = Math.ceil(slices / Math.max(1, Math.floor(cell / 2)));
  return {every, part: cell / Math.ceil(slices / every)};
}

// `view` is the panel's state: pass, beats, now, rank, met. `select` gets the rank of a cell that was pressed.
function make_matrix(plan, colours, view, select) {
  const canvas = h('canvas', {class: 'map', role: 'img'}), ranks = plan.ranks;
  // The share of a cell's token pairs that the mask lets through; an empty chunk has none.
  const visible = (query, key) => {
    if (!plan.tokens_of[query] || !plan.key_tokens_of[key]) return 0;
    return plan.visible && number(plan.visible[query][key]) ? plan.visible[query][key] : 1;
  };
  // All of a cell in a pale tone, and in it a square whose area is what the mask lets through.
  function draw_cell(g, x, y, wide, high, share, colour, alpha) {
    g.fillStyle = colour;
    if (share < 1) {
      g.globalAlpha = alpha * .28;
      g.fillRect(x, y, wide, high);
    }
    const side = Math.sqrt(share);
    g.globalAlpha = alpha;
    g.fillRect(x + wide * (1 - side) / 2, y + high * (1 - side) / 2, wide * side, high * side);
    g.globalAlpha = 1;
  }
  function draw_tile(g, tile, fresh, cell, ink) {
    const gap = cell > 9 ? 1 : cell > 5 ? .5 : 0, mine = tile.rank === view.rank;
    const {every, part} = slices_shown(view.pass.slices || 1, cell), colour = colours[tile.rank].fill;
    g.strokeStyle = ink;
    g.lineWidth = mine ? 1.6 : .7;
    for (const slice of tile.slices) {
      if (slice % every) continue;
      for (const query of tile.queries) for (const key of tile.keys) {
        const x = MARGIN + key * cell + slice / every * part, y = MARGIN + query * cell;
        draw_cell(g, x + gap, y + gap, part - 2 * Math.min(gap, part / 4), cell - 2 * gap, visible(query, key), colour,
          mine || fresh ? 1 : .62);
        if (mine ? part > 3 : fresh && part > 12) g.strokeRect(x + .5, y + .5, part - 1, cell - 1);
      }
    }
  }
  // What is not met exactly once is struck through, whatever the beat.
  function draw_wrong(g, cell, colour) {
    const {met} = view;
    g.strokeStyle = colour;
    g.lineWidth = Math.max(1.5, cell / 8);
    met.times.forEach((n, i) => {
      if (n === 1) return;
      const x = MARGIN + i % ranks * cell, y = MARGIN + Math.floor(i / ranks) % ranks * cell;
      g.strokeRect(x, y, cell, cell);
      g.beginPath();
      g.moveTo(x, y);
      g.lineTo(x + cell, y + cell);
      g.moveTo(x + cell, y);
      g.lineTo(x, y + cell);
      g.stroke();
    });
  }
  function draw() {
    const colour = palette('ink', 'faint', 'dim', 'bad'), {width, cell} = square(canvas, ranks, 560);
    const g = surface(canvas, width, MARGIN + cell * ranks + 2), gap = cell > 9 ? 1 : cell > 5 ? .5 : 0;
    g.fillStyle = colour.faint;
    for (let q = 0; q < ranks; q++) for (let k = 0; k < ranks; k++)
      g.fillRect(MARGIN + k * cell + gap, MARGIN + q * cell + gap, cell - 2 * gap, cell - 2 * gap);
    view.beats.slice(0, view.now + 1).forEach((beat, i) => {
      for (const tile of beat.tiles) draw_tile(g, tile, i === view.now, cell, colour.ink);
    });
    if (!view.met.once) draw_wrong(g, cell, colour.bad);
    draw_axes(g, ranks, cell, colour.dim, 'keys of chunk →', 'queries of chunk →');
  }
  // Who meets a cell and when: a list, since each slice of the heads has its own rank.
  function meetings(query, key) {
    const out = [];
    view.beats.forEach(({tiles}, beat) => tiles.forEach(({rank, queries, keys, slices}) => {
      if (queries.includes(query) && keys.includes(key)) out.push({rank, beat, slices});
    }));
    return out;
  }
  function about(event) {
    const cell = square(canvas, ranks, 560).find(event);
    if (!cell) return '';
    const [query, key] = cell, list = meetings(query, key), slices = view.pass.slices || 1;
    const who = list.slice(0, 8).map(m => `rank ${m.rank} in beat ${m.beat + 1}` +
      (slices > 1 ? `, slice ${m.slices.join(',')} of the heads` : ''));
    const sizes = `${plural(plan.tokens_of[query], 'query token')} × ${plural(plan.key_tokens_of[key], 'key token')}`;
    const mask = `${percent(visible(query, key))} of their pairs are visible (${plan.problem.mask})`;
    return [`queries ${query} × keys ${key}`, ...(list.length ? who : ['met by no rank']),
      list.length > 8 ? `and ${list.length - 8} more` : '', sizes, mask].filter(Boolean).join('\n');
  }
  hover(canvas, about);
  canvas.addEventListener('click', event => {
    const cell = square(canvas, ranks, 560).find(event), first = cell && meetings(...cell)[0];
    if (first) select(first.rank);
  });
  return {canvas, draw};
}

// ---- rank x beat

// The whole pass: a row for each rank, a column for each beat, in the colours of the chunks it works on.
function make_strip(plan, colours, view, select) {
  const canvas = h('canvas', {
    class: 'map', role: 'img', 'aria-label': `${plan.name}: the chunks that each rank works on, beat by beat`,
  });
  const top = 22, ranks = plan.ranks;
  function shape() {
    const width = Math.min(620, canvas.parentElement.clientWidth);
    return {
      width, wide: Math.min(92, (width - MARGIN - 2) / view.beats.length), high: clamp(Math.floor(420 / ranks), 6, 21),
    };
  }
  // A cell without an attend says what is shared in it, where there is room.
  function draw_shared(g, steps, x, y, wide, high, colour) {
    g.fillStyle = colour.faint;
    g.fillRect(x + .5, y + .5, wide - 1, high - 1);
    if (!steps.length || wide <= 44 || high <= 11) return;
    g.fillStyle = colour.dim;
    g.fillText([...new Set(steps.map(step => step[0]))].join(', '), x + wide / 2, y + high / 2 + .5, wide - 4);
  }
  function draw_cell(g, beat, rank, x, y, wide, high, colour) {
    const {pass} = view, steps = beat.steps[rank].map(i => pass.ranks[rank][i]);
    const attend = steps.find(step => step[0] === 'attend');
    if (!attend) return draw_shared(g, steps, x, y, wide, high, colour);
    const chunks = pass.blocks[attend[riding_side(pass)]][1], part = (wide - 1) / chunks.length;
    chunks.forEach((chunk, k) => {
      g.fillStyle = colours[chunk].fill;
      g.fillRect(x + .5 + k * part, y + .5, part, high - 1);
      if (part <= 15 || high <= 11) return;
      g.fillStyle = colours[chunk].dark ? '#fff' : '#10151b';
      g.fillText(chunk, x + .5 + (k + .5) * part, y + high / 2 + .5);
    });
  }
  function draw() {
    const {width, wide, high} = shape(), colour = palette('ink', 'dim', 'faint');
    const g = surface(canvas, width, top + ranks * high + 3), every = Math.ceil(18 / wide);
    g.textAlign = 'center';
    view.beats.forEach((beat, i) => {
      g.fillStyle = i === view.now ? colour.ink : colour.dim;
      if (i % every === 0) g.fillText(i + 1, MARGIN + (i + .5) * wide, 14);
      g.globalAlpha = i > view.now ? .5 : 1;
      for (let r = 0; r < ranks; r++) draw_cell(g, beat, r, MARGIN + i * wide, top + r * high, wide, high, colour);
      g.globalAlpha = 1;
    });
    g.strokeStyle = colour.ink;
    g.lineWidth = 1.6;
    if (view.now >= 0) g.strokeRect(MARGIN + view.now * wide, top - .5, wide, ranks * high + 1);
    g.strokeRect(MARGIN, top + view.rank * high, wide * view.beats.length, high);
    g.textAlign = 'right';
    for (let r = 0; r < ranks; r += high > 11 ? 1 : Math.ceil(13 / high)) {
      g.fillStyle = r === view.rank ? colour.ink : colour.dim;
      g.fillText(r, MARGIN - 5, top + (r + .5) * high);
    }
    g.textAlign = 'left';
    g.fillStyle = colour.dim;
    g.fillText('beat →', 0, 5);
  }
  function find(event) {
    const {wide, high} = shape(), {x, y} = pointer(event, canvas);
    const beat = Math.floor((x - MARGIN) / wide), rank = Math.floor((y - top) / high);
    return view.beats[beat] && rank >= 0 && rank < ranks ? {beat, rank} : null;
  }
  hover(canvas, event => {
    const at = find(event);
    if (!at) return '';
    const {pass, beats} = view, steps = beats[at.beat].steps[at.rank].map(i => pass.ranks[at.rank][i]);
    return [`rank ${at.rank}, beat ${at.beat + 1}`, ...steps.map(step => step_text(step, pass.blocks))].join('\n');
  });
  canvas.addEventListener('click', event => {
    const at = find(event);
    if (at) select(at.rank, at.beat);
  });
  return {canvas, draw};
}

// ---- rank x rank

// Bytes from each rank to each other, darkest at `scale` bytes, with the nodes outlined.
function make_links(plan, traffic, scale) {
  const canvas = h('canvas', {
    class: 'map', role: 'img',
    'aria-label': `${plan.name}: bytes from rank to rank, at most ${bytes(traffic.link)} over one link`,
  });
  const {ranks, nodes} = plan;
  function draw() {
    const colour = palette('faint', 'accent', 'ink', 'dim'), {width, cell} = square(canvas, ranks, 440);
    const g = surface(canvas, width, MARGIN + cell * ranks + 2);
    g.fillStyle = colour.faint;
    g.fillRect(MARGIN, MARGIN, cell * ranks, cell * ranks);
    g.fillStyle = colour.accent;
    traffic.to.forEach((row, from) => row.forEach((size, to) => {
      if (!size) return;
      g.globalAlpha = .18 + .82 * size / scale;
      g.fillRect(MARGIN + to * cell + .4, MARGIN + from * cell + .4, Math.max(.5, cell - .8), Math.max(.5, cell - .8));
    }));
    g.globalAlpha = 1;
    g.strokeStyle = colour.ink;
    g.lineWidth = 1.2;
    for (let i = 0, end; nodes && i < ranks; i = end) {
      for (end = i; end < ranks && nodes[end] === nodes[i];) end++;
      g.strokeRect(MARGIN + i * cell, MARGIN + i * cell, (end - i) * cell, (end - i) * cell);
    }
    draw_axes(g, ranks, cell, colour.dim, 'to rank →', 'from rank →');
  }
  hover(canvas, event => {
    const cell = square(canvas, ranks, 440).find(event);
    if (!cell) return '';
    const [from, to] = cell, size = traffic.to[from][to];
    const inside = !nodes ? '' : nodes[from] === nodes[to] ? `\ninside node ${nodes[from]}`
      : `\nleaves node ${nodes[from]} for node ${nodes[to]}`;
    return `rank ${from} → rank ${to}: ${size ? bytes(size) : 'nothing'}${inside}`;
  });
  return {canvas, draw};
}

Object.assign(startrail, {make_matrix, make_strip, make_links});
})(window.startrail);
