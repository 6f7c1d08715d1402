// Package interop holds a running Penstock against the official clients of the
// API it speaks. It is a module of its own, so that those clients stay out of
// the product's dependencies. run.sh installs what it needs and starts Penstock.
package interop
