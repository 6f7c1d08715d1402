// Package e2e holds a whole Penstock, over real HTTP and embedded NATS, against
// what its documents promise.
package e2e
