// Calls, objects and JSON: work of a second or two.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
console.log(fib(38));
const counts = {};
for (let i = 0; i < 10e6; i++) {
    const key = String(i % 5000);
    counts[key] = (counts[key] || 0) + i;
}
console.log(Object.keys(counts).length);
console.log(JSON.stringify([...Array(800000).keys()]).length);
