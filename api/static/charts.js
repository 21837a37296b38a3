// The delay of results against X, and the states of the replicas, over the same span of time. Each has a table.
import { SIGNS, WORDS, clock, seconds } from "./api.js";
import { html, uPlot, useEffect, useRef } from "./vendor.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function DelayChart({ points, x, from, to }) {
  const box = useRef(null), plot = useRef(null);
  useEffect(() => {
    const axis = { stroke: () => color("--soft"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { stroke: () => color("--line") } };
    plot.current = new uPlot({
      width: box.current.clientWidth, height: 190, legend: { show: false }, cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, min, max) => [0, Math.max(max || 0, 0.1) * 1.12] } },
      axes: [axis, { ...axis, values: (_, values) => values.map((value) => `${value} s`) }],
      series: [{},
        { label: "stable", stroke: () => color("--stable"), paths: () => null, points: { show: true, size: 6, fill: () => color("--stable") } },
        { label: "tentative", stroke: () => color("--tentative"), paths: () => null, points: { show: true, size: 8, fill: () => color("--tentative-page") } },
        { label: "X", stroke: () => color("--bad"), dash: [6, 4], points: { show: false }, spanGaps: true }],
    }, [[], [], [], []], box.current);
    const watch = new ResizeObserver(([entry]) => plot.current.setSize({ width: entry.contentRect.width, height: 190 }));
    watch.observe(box.current);
    return () => { watch.disconnect(); plot.current.destroy(); };
  }, []);
  useEffect(() => {
    const shown = points.filter((point) => point.at >= from && point.at <= to);
    const times = [from, ...shown.map((point) => point.at), to];
    const of = (kind) => [null, ...shown.map((point) => (point.kind === kind ? point.delay : null)), null];
    plot.current.setData([times.map((ms) => ms / 1000), of("stable"), of("tentative"), times.map(() => x / 1000)], true);
  }, [points, x, from, to]);
  const newest = points.slice(-20).reverse();
  return html`<div ref=${box} role="img" aria-label="Delay of each new result, against X of ${seconds(x)}"></div>
    <p class="soft">● stable · ◯ tentative · dashed: X</p>
    <details><summary>The last results as a table</summary><div class="scroll"><table>
      <thead><tr><th>time</th><th>kind</th><th class="n">delay</th></tr></thead>
      <tbody>${newest.map((point) => html`<tr><td>${clock(point.at)}</td><td>${point.kind}</td><td class="n">${seconds(point.delay * 1000)}</td></tr>`)}</tbody></table></div></details>`;
}

// The states of each replica, from the journal and the present status: { replica: [{ state, from, to }] }.
export function spansOf(status, now) {
  const spans = {};
  for (const replica of status.replicas) spans[`${replica.fragment}.${replica.replica}.${replica.shard}`] = [];
  for (const entry of status.journal || []) {
    const change = entry.kind === "state" && /^(\w+) -> (\w+)/.exec(entry.text);
    const own = change && spans[entry.who];
    if (!own) continue;
    if (own.length) own[own.length - 1].to = entry.at_ms;
    else if (change[1] !== "STARTING") own.push({ state: change[1], from: 0, to: entry.at_ms });
    own.push({ state: change[2], from: entry.at_ms, to: now });
  }
  for (const replica of status.replicas) {
    const own = spans[`${replica.fragment}.${replica.replica}.${replica.shard}`];
    if (!own.length || own[own.length - 1].state !== replica.state) {
      const from = replica.since_ms || now;
      if (own.length) own[own.length - 1].to = from;
      own.push({ state: replica.state, from, to: now });
    }
  }
  return spans;
}

export function Strips({ status, marks, from, to }) {
  const spans = spansOf(status, to);
  const place = (at) => (100 * (Math.min(Math.max(at, from), to) - from)) / (to - from);
  const changes = (status.journal || []).filter((entry) => ["state", "fault"].includes(entry.kind)).slice(-30).reverse();
  return html`<div class="strips">${Object.entries(spans).map(([who, own]) => html`<span>${who.replace(/\.0$/, "")}</span>
      <svg class="strip" viewBox="0 0 100 18" preserveAspectRatio="none" role="img" aria-label="${who} is ${WORDS[own[own.length - 1].state]}">
        <rect class="back" width="100" height="18" />${own.filter((span) => span.to > from).map((span) =>
          html`<rect class="c-${span.state}" x=${place(span.from)} width=${Math.max(place(span.to) - place(span.from), 0.25)} y=${span.state === "STABLE" ? 5 : 0} height=${span.state === "STABLE" ? 8 : 18}><title>${WORDS[span.state]}</title></rect>`)}</svg>`)}
    <span>events</span><div class="marks" aria-hidden="true">${marks.filter((mark) => mark.at >= from && mark.at <= to).map((mark) =>
      html`<span style=${{ left: `${place(mark.at)}%` }} title="${mark.text}, ${clock(mark.at)}">${mark.sign}</span>`)}</div></div>
    <p class="soft">thin: ${SIGNS.STABLE} stable · thick: ◆ input missing, ⟲ correcting, ✖ failed · ✂ fault, ⟲ undo</p>
    <details><summary>Changes as a table</summary><div class="scroll"><table>
      <thead><tr><th>time</th><th>who</th><th>what</th></tr></thead>
      <tbody>${changes.map((entry) => html`<tr><td>${clock(entry.at_ms)}</td><td>${entry.who}</td><td>${entry.text}</td></tr>`)}</tbody></table></div></details>`;
}
