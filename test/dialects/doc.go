// Package dialects tests the whole of Penstock in front of engine mocks of other engines, over real sockets:
// the router's index equals the engines' caches, predictions are accurate, and every fault ends in a complete
// response or a clear error, and in a correct index.
package dialects
