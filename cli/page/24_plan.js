// The plan view: a panel for the plan and one for its rival, moved through the beats together, and below them the
// whole pass, the steps of the chosen rank, costs, memory and links. Everything is counted; nothing here is a time.
(function (startrail) {
'use strict';
const {h, button, badge, note, pick, clamp, bytes, ratio, count, plural, calm} = startrail;
const {list_text, step_text, beats_of, count_met, pass_beside, traffic_of, colours_of} = startrail;
const {make_rings, make_matrix, make_strip, make_links, cost_table, make_memory} = startrail;

const BEAT_MS = 1500, REST_MS = 250;  // how long a beat plays, and how much of that its messages rest at their ends

const same_problem = (a, b) => a.ranks === b.ranks && JSON.stringify(a.problem) === JSON.stringify(b.problem);

// What the matrix proves, in words.
function met_text(met, share, ranks, slices) {
  const done = Math.round(share * met.total);
  const each = slices > 1 ? ` (${count(ranks * ranks)} in each of ${slices} slices of the heads)` : '';
  const so_far = `${count(done)} of ${count(met.total)} pairs of chunks met${each}; `;
  if (met.once) return so_far + 'the steps meet each exactly once.';
  const {query, key, slice, times} = met.first, of = slices > 1 ? ` in slice ${slice}` : '';
  return `NOT each pair of chunks exactly once: ${met.missed} missed, ${met.twice} met more than once; the first is ` +
    `queries ${query} × keys ${key}${of}, met ${times} times.`;
}

// One plan: its rings, its matrix, its strip. `id` 0 is the subject, 1 the rival.
function make_panel(plan, id, select) {
  const colours = colours_of(plan), slices = plan.axes.heads;
  const view = {plan, pass: null, beats: [], now: 0, rank: 0, met: null};
  const line = (name, rank) => list_text(plan.lines[name].find(ranks => ranks.includes(rank)));
  const steps_now = rank => (view.beats[view.now]?.steps[rank] || [])
    .map(i => step_text(view.pass.ranks[rank][i], view.pass.blocks));
  const about = rank => [
    `rank ${rank}` + (plan.nodes ? `, node ${plan.nodes[rank]}` : '') + `: ${plural(plan.tokens_of[rank], 'token')}`,
    plan.axes.heads > 1 ? 'heads ' + line('head_groups', rank) : '',
    plan.axes.team > 1 ? 'team ' + line('teams', rank) : '',
    plan.axes.ring > 1 ? 'ring ' + line('rings', rank) : '',
    plan.axes.stripe > 1 ? 'stripe ' + line('stripes', rank) : '', ...steps_now(rank),
  ].filter(Boolean).join('\n');
  const rings = make_rings(plan, colours, id, rank => select(rank), about);
  const matrix = make_matrix(plan, colours, view, rank => select(rank));
  const strip = make_strip(plan, colours, view, (rank, beat) => select(rank, id === 0 ? beat : undefined));
  const which = h('span'), caption = note(), met = h('p', {class: 'note'}), sent = note(), fill = h('i');
  const proof = h('span');
  const axes = plan.order.map(axis => `${axis} ${plan.axes[axis]}`).join(' × ');
  const element = h('div', {class: 'card'}, h('h2', {}, plan.name, proof),
    note(which, `, ${plural(plan.ranks, 'rank')}: ${axes}`),
    h('div', {class: 'viz'}, h('div', {}, rings.element, caption),
      h('div', {}, matrix.canvas, met, sent, h('div', {class: 'bar'}, fill))));
  fill.style.background = 'var(--accent)';

  function set_pass(pass) {
    view.pass = pass;
    view.beats = beats_of(pass);
    view.met = count_met(plan, pass, view.beats);
    view.traffic = traffic_of(plan, pass);
    proof.replaceChildren(!view.met.once ? badge('not each pair met once', 'wrong') : plan.checked ? badge('proved') :
      badge('not proved: give --check', 'counted'));
    which.textContent = pass.pass + (pass.pass === plan.backward ? ' (which auto takes)' : '');
  }
  // Draws beat `now`; the bars of both panels are parts of `most_sent`.
  function draw(now, rank, most_sent) {
    Object.assign(view, {now, rank});
    const beat = view.beats[now] || {messages: [], sent: [0], share: 0}, few = rings.draw(view);
    matrix.draw();
    if (strip.canvas.parentElement) strip.draw();
    const side = view.pass.pass === 'backward_queries' ? 'queries' : 'keys';
    const parts = [
      'Disc: a rank.', `Band: the owners of the ${side} it works on.`,
      plan.axes.ring > 1 ? '' : 'No ring: all is there at once.', plan.axes.team > 1 ? 'Grey: a team.' : '',
      plan.axes.stripe > 1 ? 'Dotted: a stripe.' : '',
      plan.axes.heads > 1 ? 'Outlined: ranks that share out the heads.' : '',
      few ? '' : `${beat.messages.length} messages travel in this beat; those of rank ${rank} are drawn.`,
    ];
    caption.textContent = parts.filter(Boolean).join(' ');
    met.textContent = met_text(view.met, beat.share, plan.ranks, slices);
    met.className = view.met.once ? 'note' : 'alarm';
    const so_far = Math.max(...beat.sent), all = Math.max(...view.beats.at(-1).sent);
    sent.textContent = `Sent so far by the busiest rank: ${bytes(so_far)} of ${bytes(all)}.`;
    fill.style.width = 100 * so_far / (most_sent || 1) + '%';
    rings.picture.setAttribute('aria-label', `${plan.name}, ${now < 0 ? 'before the first beat' :
      `beat ${now + 1} of ${view.beats.length}: ${beat.messages.length} messages`}. Rank ${rank}: ` +
      (steps_now(rank).join('; ') || 'nothing'));
    matrix.canvas.setAttribute('aria-label', `${plan.name}: ${met.textContent}`);
  }
  return {plan, element, strip, view, set_pass, draw, frame: rings.frame};
}

// The beat of `beats` at which the same share of the work is done; -1: before the first.
function same_share(beats, share, at_end) {
  if (at_end) return beats.length - 1;
  if (share === 0) return beats[0].share ? -1 : 0;
  return beats.findIndex(beat => beat.share >= share - 1e-9);
}

// What is asked of the plan, in a line.
function problem_text(plan) {
  const p = plan.problem, keys = p.key_tokens !== p.tokens ? ` (${count(p.key_tokens)} of keys)` : '';
  const nodes = plan.nodes ? new Set(plan.nodes).size : 0;
  const parts = [
    plural(p.tokens, 'token') + keys, p.batch > 1 ? `batch ${p.batch}` : '',
    `${p.heads} heads (${p.kv_heads} key/value)`, `dim ${p.dim}`,
    `${p.dtype}, partial results ${p.partial}`, `mask: ${p.mask}`, `${p.layout} layout`,
    nodes ? plural(nodes, 'node') : '',
  ];
  return parts.filter(Boolean).join(', ') + '.';
}
// The rival's map has the same scale, so that the two can be compared.
const busiest_text = (link, scale) =>
  `: ${bytes(link)} over the busiest link` + (link < scale ? `; darkest would be ${bytes(scale)}` : '');
function lead_text(plan, pass, rival, beside) {
  const name = rival ? rival.name : 'ring', volume = rival ? beside.volume.total : pass.ring_volume.total;
  const peak = rival ? beside.peak_bytes : pass.ring_peak_bytes;
  const as_part = (value, other) => other > 0 ? `, ${ratio(value, other)} of ${name}’s ${bytes(other)}` : '';
  return `${plan.name} on ${plural(plan.ranks, 'rank')} sends ${bytes(pass.volume.total)} a rank in ${pass.pass}` +
    `${as_part(pass.volume.total, volume)}; it holds at most ${bytes(pass.peak_bytes)}` +
    `${as_part(pass.peak_bytes, peak)}.`;
}

// The view for a subject and a rival (or null). `choose` holds the selects of plans, where there are several.
function show_plans(place, plan, rival, choose) {
  const names = plan.passes.map(pass => pass.pass);
  let beat = 0, rank = 0, playing = false, began = 0, links = [], memory = null;
  const panels = [plan, rival].filter(Boolean).map((one, id) => make_panel(one, id, select)), [main, other] = panels;
  const lead = h('p', {class: 'lead'}), live = h('div', {class: 'live', 'aria-live': 'polite'});
  const slider = h('input', {type: 'range', min: 0, 'aria-label': 'beat', oninput: () => go(Number(slider.value))});
  const play = button('Play', toggle), title = h('h3');
  const steps = h('ol', {class: 'steps', tabindex: 0, 'aria-label': 'steps of the chosen rank'});
  const ranks = h('select', {onchange: event => select(Number(event.target.value))},
    plan.tokens_of.map((_, r) => h('option', {value: r}, r)));
  const costs = h('div'), curve = h('div', {class: 'card'}), maps = h('div', {class: 'viz'});
  const end = () => main.view.beats.length - 1;

  function controls() {
    const passes = names.map(name => name + (name === plan.backward ? ' (auto)' : ''));
    const player = h('div', {class: 'row'},
      h('span', {class: 'row'}, button('‹', () => go(beat - 1), {'aria-label': 'previous beat'}), play,
        button('›', () => go(beat + 1), {'aria-label': 'next beat'})),
      h('div', {class: 'grow'}, slider), h('label', {}, 'Rank ', ranks));
    return [h('div', {class: 'row controls'}, choose, pick('Pass', passes, 0, start)),
      h('div', {class: 'card sticky'}, player, live)];
  }
  function layout() {
    const how = note(other ? `${rival.name} is shown where it has done the same share of the work, in the backward ` +
      'that is cheaper for it. ' : '', 'A beat is one attend with what travels meanwhile; beats differ in size and ',
    'are not times. In the matrix the inner square’s area is the share of a cell’s token pairs that the mask lets ',
    'through. Keys: ← → from beat to beat, space plays.');
    place.replaceChildren(...[lead,
      note(problem_text(plan), ' One attention; all numbers here are counted from the plan, none is a time.'),
      other && !same_problem(plan, rival) ? h('p', {class: 'alarm'}, 'The two plans do not answer the same problem: ' +
        `${rival.name} has ${plural(rival.ranks, 'rank')}, ${problem_text(rival)}`) : null,
      ...controls(), h('div', {class: 'pair'}, panels.map(panel => panel.element)), how,
      h('div', {class: 'card'},
        h('h3', {}, 'The whole pass: whose keys (or queries, where those ride) each rank works on'),
        h('div', {class: 'viz'}, panels.map(panel => h('div', {}, note(panel.plan.name), panel.strip.canvas)))),
      h('div', {class: 'card'}, h('h3', {}, 'What it costs a rank'), costs),
      h('div', {class: 'pair'}, h('div', {class: 'card'}, title, steps), curve),
      h('div', {class: 'card'}, h('h3', {}, 'Who sends to whom, in the whole pass'), maps),
    ].filter(Boolean));
  }
  function start(index) {
    main.set_pass(plan.passes[index]);
    if (other) other.set_pass(pass_beside(rival, names[index]));
    slider.max = end();
    const beside = other ? other.view : null, same = other && same_problem(plan, rival);
    lead.textContent = lead_text(plan, main.view.pass, rival, beside && beside.pass);
    costs.replaceChildren(...cost_table(main.view, beside, same));
    memory = make_memory(main.view, beside);
    curve.replaceChildren(memory.element);
    const scale = Math.max(...panels.map(panel => panel.view.traffic.link)) || 1;
    links = panels.map(panel => make_links(panel.plan, panel.view.traffic, scale));
    maps.replaceChildren(...panels.map((panel, i) => h('div', {}, links[i].canvas, note(
      panel.plan.name + (panel.view.traffic.link ? busiest_text(panel.view.traffic.link, scale) : ': nothing is sent') +
      (panel.plan.nodes ? '; outlined: inside a node' : '')))));
    list_steps();
    go(Math.max(0, main.view.beats.findIndex(one => one.tiles.length)));
    links.forEach(map => map.draw());
  }
  function list_steps() {
    const {pass} = main.view;
    title.textContent = `Steps of rank ${rank} in ${pass.pass}`;
    steps.replaceChildren(...pass.ranks[rank].map(step => h('li', {}, step_text(step, pass.blocks))));
  }
  function go(wanted) {
    beat = clamp(wanted, 0, end());
    slider.value = beat;
    const most_sent = Math.max(...panels.map(panel => Math.max(...panel.view.beats.at(-1).sent)));
    main.draw(beat, rank, most_sent);
    if (other) other.draw(same_share(other.view.beats, main.view.beats[beat].share, beat === end()),
      Math.min(rank, rival.ranks - 1), most_sent);
    const mine = main.view.beats[beat].steps[rank], {pass, beats} = main.view;
    const words = mine.map(i => step_text(pass.ranks[rank][i], pass.blocks)).join('; ') || 'nothing';
    live.textContent = `Beat ${beat + 1} of ${beats.length}. Rank ${rank}: ${words}`;
    slider.setAttribute('aria-valuetext', `beat ${beat + 1} of ${beats.length}`);
    [...steps.children].forEach((item, i) => item.classList.toggle('now', mine.includes(i)));
    if (mine.length) steps.scrollTop = steps.children[mine[0]].offsetTop - 90;
    memory.draw(rank, mine);
  }
  function select(chosen, wanted = beat) {
    rank = clamp(chosen, 0, plan.ranks - 1);
    ranks.value = rank;
    list_steps();
    go(wanted);
  }
  function toggle() {
    playing = !playing;
    play.textContent = playing ? 'Pause' : 'Play';
    if (!playing) return panels.forEach(panel => panel.frame(.5));
    if (beat === end()) go(0);
    began = performance.now();
    requestAnimationFrame(tick);
  }
  // requestAnimationFrame may give a time before `began`: the share is clamped.
  function tick(now) {
    if (!playing || !place.isConnected) return;
    if (now - began >= BEAT_MS) {
      if (beat === end()) return toggle();
      began = now;
      go(beat + 1);
    }
    if (!calm) panels.forEach(panel => panel.frame(clamp((now - began) / (BEAT_MS - REST_MS), 0, 1)));
    requestAnimationFrame(tick);
  }
  // Arrow keys and space, except where they already mean something: in a select, on a slider or on a button.
  function press(event) {
    const {tagName} = event.target, arrow = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (/^(INPUT|SELECT)$/.test(tagName) && (arrow || tagName === 'SELECT')) return false;
    if (event.key === ' ' && /^(BUTTON|SUMMARY)$/.test(tagName)) return false;
    if (arrow) go(beat + arrow);
    else if (event.key === ' ') toggle();
    else return false;
    return true;
  }
  layout();
  start(0);
  return {press, draw: () => { go(beat); links.forEach(map => map.draw()); }, stop: () => { if (playing) toggle(); }};
}

// The view of all plans: plans[0] is the subject and plans[1] its rival, unless others are chosen.
function plan_view(section, plans) {
  const place = h('div'), chosen = [0, plans.length > 1 ? 1 : -1], names = plans.map(plan => plan.name);
  let shown = null;
  const show = (which, index) => {
    if (which !== undefined) chosen[which] = index < plans.length ? index : -1;
    if (shown) shown.stop();
    const choose = plans.length < 2 ? null : h('span', {class: 'row'}, pick('Plan', names, chosen[0], i => show(0, i)),
      pick('beside', [...names, 'none'], chosen[1] < 0 ? plans.length : chosen[1], i => show(1, i)));
    shown = show_plans(place, plans[chosen[0]], plans[chosen[1]] || null, choose);
  };
  section.append(place);
  show();
  document.addEventListener('keydown', event => {
    if (section.hidden || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (shown.press(event)) event.preventDefault();
  });
  startrail.redraws.push(() => { if (!section.hidden) shown.draw(); });
}

Object.assign(startrail, {plan_view});
})(window.startrail);
