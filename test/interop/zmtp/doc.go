// Package zmtp holds penstock/internal/zmtp against libzmq, both ways: every pair
// of sockets that talk with each other, who dials and who listens, sizes from
// nothing to 8 MiB, heartbeats, restarts, peers that stop. The libzmq side is
// peer.py, which does what it is told; ../zmtp.sh installs what it needs and runs
// the tests once for each libzmq it found.
package zmtp
