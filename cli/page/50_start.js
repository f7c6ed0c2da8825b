// Starts the page: reads the data, makes a tab for each kind of thing there is, draws the first, and draws again when
// the width or the theme changes or the page is printed. Comes last of the scripts.
(function (startrail) {
'use strict';
const {h, button, note, fail, redraws} = startrail;

const root = document.documentElement, main = document.getElementById('main'), tabs = document.getElementById('tabs');
const redraw = () => redraws.forEach(draw => draw());
const dark = matchMedia('(prefers-color-scheme: dark)');

function views_of(data) {
  const {plan_view, trace_view, run_view} = startrail;
  const all = [['Plan', data.plans, plan_view], ['Trace', data.traces, trace_view], ['Run', data.runs, run_view]];
  return all.filter(([, list]) => list && list.length).map(([name, list, draw]) => ({
    name, id: name.toLowerCase(), list, draw, made: false,
    section: h('section', {id: name.toLowerCase(), role: 'tabpanel', 'aria-label': name, hidden: true}),
  }));
}
function nothing_here() {
  main.append(h('div', {class: 'card'}, h('p', {class: 'lead'}, 'There is nothing to show in this file yet.'),
    note('Give the command something to show: a grid or a plan, traces, or the folders of runs.'),
    h('pre', {}, [
      'startrail show --ranks 16 --grid startrail:2 --compare ring -o plan.html',
      'startrail attend --ranks 8 --profile trace.json; startrail show trace.json',
      'startrail show runs/quickstart -o run.html',
    ].join('\n'))));
}

// Tabs only where there is a choice; arrow keys go from one to the next.
function make_tabs(views, open) {
  if (views.length < 2) {
    tabs.remove();
    return;
  }
  views.forEach((view, i) => tabs.append(button(view.name, () => open(i), {
    role: 'tab', 'aria-controls': view.id, onkeydown: event => {
      const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (!by) return;
      event.preventDefault();
      open((i + by + views.length) % views.length);
      tabs.children[(i + by + views.length) % views.length].focus();
    },
  })));
}
// A view is drawn when it is first opened: hidden it has no width.
function show(view) {
  view.section.hidden = false;
  if (view.made) return;
  view.made = true;
  view.draw(view.section, view.list);
}

function start(data) {
  document.title = data.title || 'StarTrail';
  document.getElementById('title').textContent = data.title || 'StarTrail';
  document.getElementById('waiting').remove();
  const views = views_of(data);
  main.append(...views.map(view => view.section));
  let current = 0;
  const open = index => {
    current = index;
    views.forEach((view, i) => { view.section.hidden = i !== index; });
    [...tabs.children].forEach((tab, i) => {
      tab.setAttribute('aria-selected', i === index);
      tab.tabIndex = i === index ? 0 : -1;
    });
    if (location.hash !== '#' + views[index].id) history.replaceState(null, '', '#' + views[index].id);
    if (views[index].made) redraw();
    show(views[index]);
  };
  const wanted = () => Math.max(0, views.findIndex(view => '#' + view.id === location.hash));
  make_tabs(views, open);
  if (!views.length) return nothing_here();
  open(wanted());
  if (data.version) main.append(note(`Made by StarTrail ${data.version}.`));
  addEventListener('hashchange', () => open(wanted()));
  // On paper everything there is, in light colours.
  addEventListener('beforeprint', () => {
    const theme = root.dataset.theme;
    root.dataset.theme = 'light';
    views.forEach(show);
    redraw();
    addEventListener('afterprint', () => {
      if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
      open(current);
    }, {once: true});
  });
}

document.getElementById('theme').addEventListener('click', () => {
  root.dataset.theme = (root.dataset.theme || (dark.matches ? 'dark' : 'light')) === 'dark' ? 'light' : 'dark';
  redraw();
});
dark.addEventListener('change', redraw);
let resizing = 0;
addEventListener('resize', () => {
  clearTimeout(resizing);
  resizing = setTimeout(redraw, 80);
});

const data = JSON.parse(document.getElementById('data').textContent);
if (data.format !== 1) fail(`its data has format ${data.format}, and this page reads format 1`);
else start(data);
root.dataset.state ||= 'drawn';  // tests wait for this
})(window.startrail);
