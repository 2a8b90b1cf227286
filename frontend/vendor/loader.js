// The modules of the bundle that follows, each run when it is first asked for.
const modules = new Map();
function define(name, needs, make) {
  modules.set(name, { needs, make, exports: null });
}
function load(name) {
  const module = modules.get(name);
  if (module === undefined) {
    if (typeof elsewhere === "function") return elsewhere(name);
    throw new Error(`there is no module ${name}`);
  }
  if (module.exports === null) {
    module.exports = {};
    const given = { require: load, exports: module.exports };
    module.make(...module.needs.map((need) => given[need] ?? load(need)));
  }
  return module.exports;
}
