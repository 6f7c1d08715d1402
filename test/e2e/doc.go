// Package e2e tests a whole Penstock, over real HTTP and embedded NATS, against the promises of its
// documents.
package e2e
