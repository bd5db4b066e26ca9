// Calls functions of the page under Node.js: reads [{module, name, args}] from standard input, and writes their results.
//
// {"$": "bytes" | "floats", "data": [...]} stands for an array of numbers of this kind, in arguments; results are lists.
import {readFileSync} from "node:fs";
import {pathToFileURL} from "node:url";

const KINDS = {bytes: Uint8ClampedArray, floats: Float32Array};
const calls = JSON.parse(readFileSync(0, "utf8"), (_, value) => (value && value.$ ? KINDS[value.$].from(value.data) : value));
const results = [];
for (const {module, name, args} of calls) {
  const functions = await import(pathToFileURL(process.argv[2] + "/" + module));
  if (name === "tokens") args.push(text => Array.from(text, letter => letter.charCodeAt(0)));  // in place of a tokenizer
  results.push(functions[name](...args));
}
process.stdout.write(JSON.stringify(results, (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value)));
