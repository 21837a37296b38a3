// The query as a graph: streams on the left, the output on the right.
import { html } from "./vendor.js";

const KINDS = ["union", "filter", "map", "aggregate", "join", "lookup", "distinct", "deduplicate", "top"];
const WIDTH = 118, HEIGHT = 40, GAP = 44, LINE = 52;

function inputsOf(operator) {
  const kind = KINDS.find((each) => each in operator);
  return { kind, inputs: kind ? [].concat(operator[kind]) : [] };
}

export function layers(spec) {
  const depth = {}, nodes = {};
  for (const name of Object.keys(spec.streams)) nodes[name] = { name, kind: "stream", inputs: [] };
  for (const [name, operator] of Object.entries(spec.operators || {})) nodes[name] = { name, ...inputsOf(operator) };
  const deep = (name) => (depth[name] ??= nodes[name].inputs.length ? 1 + Math.max(...nodes[name].inputs.map(deep)) : 0);
  const columns = [];
  for (const name of Object.keys(nodes)) (columns[deep(name)] ??= []).push(nodes[name]);
  return columns;
}

export function Dag({ spec, inputs, missing }) {
  const columns = layers(spec);
  const rows = Math.max(...columns.map((column) => column.length));
  const at = {};
  columns.forEach((column, x) => column.forEach((node, y) => {
    at[node.name] = { x: 4 + x * (WIDTH + GAP), y: 4 + (y + (rows - column.length) / 2) * LINE };
  }));
  const width = columns.length * (WIDTH + GAP) + 36, height = rows * LINE;
  const stateOf = (name) => (missing.has(name) ? "cut" : (inputs.find((input) => input.name === name) || {}).state || "");
  const words = Object.keys(spec.streams).map((name) => `${name} ${missing.has(name) ? "is missing" : stateOf(name)}`).join(", ");
  const wire = (from, to, cut) => {
    const x1 = at[from].x + WIDTH, y1 = at[from].y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2;
    return html`<path class=${cut ? "cut" : ""} d="M${x1} ${y1} C${x1 + GAP / 2} ${y1} ${x2 - GAP / 2} ${y2} ${x2} ${y2}" />`;
  };
  const end = { x: width - 34, y: at[spec.output].y };
  return html`<div class="graph scroll" tabindex="0"><svg class="dag" viewBox="0 0 ${width} ${height}" role="img" aria-label="The query's operators. Inputs: ${words}.">
    ${columns.flat().flatMap((node) => node.inputs.map((from) => wire(from, at[node.name], missing.has(from))))}
    ${wire(spec.output, end, false)}<text x=${end.x + 2} y=${end.y + HEIGHT / 2 + 5}>out</text>
    ${columns.flat().map((node) => html`<g class=${stateOf(node.name)}><rect x=${at[node.name].x} y=${at[node.name].y} width=${WIDTH} height=${HEIGHT} rx="6" />
      <text x=${at[node.name].x + 9} y=${at[node.name].y + 17}>${missing.has(node.name) ? "✂ " : ""}${node.name.slice(0, 14)}</text>
      <text class="kind" x=${at[node.name].x + 9} y=${at[node.name].y + 32}>${node.kind === "stream" ? (missing.has(node.name) ? "missing" : stateOf(node.name)) : node.kind}</text></g>`)}
  </svg></div>`;
}
