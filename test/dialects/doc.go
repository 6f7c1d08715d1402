// Package dialects holds the whole of Penstock in front of servers that speak as other engines do
// (package mimic), over real sockets: what their caches have is what the router knows, predictions
// come true, and each thing that can go wrong ends in a whole answer or a clear error, and in an index
// that is right again.
package dialects
