// Clock, ids and randomness of a foreign Node program, held still: the twin of sitecustomize.py.
// Loaded before the program with NODE_OPTIONS=--require. process.hrtime and performance.now run on.
const crypto = require("crypto");
const moment = Date.parse(process.env.AGENT_WORLD_CLOCK || "2026-01-05T09:00:00Z");
const seed = "agent-world:" + (process.env.AGENT_WORLD_SEED || "0");
const hash = crypto.createHash;
let drawn = 0;

function bytes(size) {
  const parts = [];
  for (let have = 0; have < size; have += 32) {
    parts.push(hash("sha256").update(seed + ":" + drawn++).digest());
  }
  return Buffer.concat(parts).subarray(0, size);
}

const RealDate = Date;
globalThis.Date = new Proxy(RealDate, {
  construct: (target, args, newTarget) =>
    Reflect.construct(target, args.length ? args : [moment], newTarget === Date ? target : newTarget),
  apply: (target) => new target(moment).toString(),
  get: (target, name) => (name === "now" ? () => moment : Reflect.get(target, name)),
});
Math.random = () => bytes(6).readUIntBE(0, 6) / 2 ** 48;
crypto.randomBytes = (size, done) => (done ? process.nextTick(done, null, bytes(size)) : bytes(size));
crypto.randomUUID = () => {
  const raw = bytes(16);
  raw[6] = (raw[6] & 15) | 64;
  raw[8] = (raw[8] & 63) | 128;
  return raw.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
};
crypto.randomFillSync = (target, offset = 0, size) => {
  const raw = new Uint8Array(target.buffer || target, target.byteOffset || 0, target.byteLength);
  raw.set(bytes(size ?? raw.length - offset), offset);
  return target;
};
crypto.randomInt = (...given) => {
  const done = typeof given[given.length - 1] === "function" ? given.pop() : null;
  const [low, high] = given.length > 1 ? given : [0, given[0]];
  const drawn = low + Math.floor(Math.random() * (high - low));
  return done ? process.nextTick(done, null, drawn) : drawn;
};
const fill = (target) => crypto.randomFillSync(target);
crypto.getRandomValues = fill;
for (const [name, value] of Object.entries({ getRandomValues: fill, randomUUID: crypto.randomUUID })) {
  Object.defineProperty(crypto.webcrypto, name, { value, configurable: true, writable: true });
}
require("module").syncBuiltinESMExports();
