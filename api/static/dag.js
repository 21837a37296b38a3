// The query as a graph: streams on the left, the output on the right.
import { html } from "./vendor.js";

const WIDTH = 118, HEIGHT = 40, GAP = 44, LINE = 52;

// nodes, output: of the plan. inputs: of the status, or [] of a query that does not run.
export function Dag({ nodes, output, inputs, missing }) {
  const columns = [];
  for (const node of nodes) (columns[node.layer] ??= []).push(node);
  const rows = Math.max(...columns.map((column) => column.length));
  const at = {};
  columns.forEach((column, x) => column.forEach((node, y) => {
    at[node.name] = { x: 4 + x * (WIDTH + GAP), y: 4 + (y + (rows - column.length) / 2) * LINE };
  }));
  const width = columns.length * (WIDTH + GAP) + 36, height = rows * LINE;
  const stateOf = (name) => (missing.has(name) ? "cut" : (inputs.find((input) => input.name === name) || {}).state || "");
  const words = columns[0].map(({ name }) => `${name} ${missing.has(name) ? "is missing" : stateOf(name)}`.trim()).join(", ");
  const wire = (from, to, cut) => {
    const x1 = at[from].x + WIDTH, y1 = at[from].y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2;
    return html`<path class=${cut ? "cut" : ""} d="M${x1} ${y1} C${x1 + GAP / 2} ${y1} ${x2 - GAP / 2} ${y2} ${x2} ${y2}" />`;
  };
  const end = { x: width - 34, y: at[output].y };
  return html`<div class="graph scroll" tabindex="0"><svg class="dag" viewBox="0 0 ${width} ${height}" role="img" aria-label="The query's operators. Inputs: ${words}.">
    ${nodes.flatMap((node) => node.reads.map((from) => wire(from, at[node.name], missing.has(from))))}
    ${wire(output, end, false)}<text x=${end.x + 2} y=${end.y + HEIGHT / 2 + 5}>out</text>
    ${nodes.map((node) => html`<g class=${stateOf(node.name)}><rect x=${at[node.name].x} y=${at[node.name].y} width=${WIDTH} height=${HEIGHT} rx="6" />
      <text x=${at[node.name].x + 9} y=${at[node.name].y + 17}>${missing.has(node.name) ? "✂ " : ""}${node.name.slice(0, 14)}</text>
      <text class="kind" x=${at[node.name].x + 9} y=${at[node.name].y + 32}>${missing.has(node.name) ? "missing" : stateOf(node.name) || node.kind}</text></g>`)}
  </svg></div>`;
}
